"""The rule as one of a family, with a strength κ and a temperature T:

    pred(x) = m_y + (f(m_x + S_κ ∘ (x − m_x)) − m_y) / T,        S_κ = 1 − κ (1 − S̄).

| named point           | κ | T             |
|-----------------------|---|---------------|
| plain                 | 0 | 1             |
| rescaled              | 1 | t̄             |
| temperature scaling   | 0 | fitted        |
| both                  | 1 | fitted        |

Where no temperature is given it is that of the strength, 1 − κ (1 − t̄). `fit` finds both on held-out data, and may
find that T is better one after the rule (`mixreg.prediction.tempering`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixreg.prediction.rule import Share
from mixreg.theory.modified import stretch

if TYPE_CHECKING:
    from typing_extensions import Self

    from mixreg.prediction.family_fit import FamilyFit


class RuleFamily(nn.Module):
    """What a network with a rule has of the family; the rule itself is that of a subclass.

    Attributes:
        net: the network.
        fitted: what `fit` found, if it was called.
    """

    net: nn.Module
    y_mean: Tensor
    x_share_map: Tensor
    y_share_map: Tensor
    output_temperature: Tensor | None
    fitted: FamilyFit | None
    # Whether T comes after the rule, which `fit` may find; whoever sets κ or T has it about m_y again.
    tempers_after: bool = False
    # Of the rule at strength 1; None where it is a map.
    _x_share: float | None
    _y_share: float | None
    _strength: float
    _temperature: float | None

    def _place(self, strength: float, temperature: float | Tensor | None) -> None:
        """Begin at a point of the family, when the rule is there."""
        # One for every output; kept with the numbers of the rule.
        self.register_buffer("output_temperature", None, persistent=False)
        self.fitted = None
        self.strength, self.temperature = strength, temperature

    def place(self, fit: FamilyFit) -> None:
        """Where held-out data has placed it."""
        from mixreg.prediction.family_fit import as_temperature

        self.strength = fit.strength
        found = as_temperature(fit.temperature)
        each = found.reshape(self.y_mean.shape) if isinstance(found, Tensor) and found.numel() > 1 else found
        self.temperature = None if fit.loss == "squared_error" else each
        self.tempers_after = fit.is_after

    def stretched(self, u: Tensor) -> Tensor:
        """The prediction, of what the network makes of shrunk inputs."""
        if not self.tempers_after:
            return self.stretched_by(u, self.current_temperature())
        assert self.temperature is not None
        return tempered(self.stretched_by(u, self._own_temperature()), self.temperature)

    def stretched_by(self, u: Tensor, temperature: Share) -> Tensor:
        """Outputs stretched from m_y."""
        return stretch(u, self.y_mean, temperature)

    def _own_temperature(self) -> Share:
        return 1 - self._strength * (1 - self.y_share)

    def outputs_on_shrunk(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """f on shrunk inputs, before its outputs are stretched; arguments as of a call."""
        raise NotImplementedError(f"{type(self).__name__} has no rule for inputs")

    def current_temperature(self) -> float | Tensor:
        """What outputs are divided by in all: the temperature that was given or fitted, or that of the strength."""
        given = self.temperature
        if given is None:
            return self._own_temperature()
        return self._own_temperature() * given if self.tempers_after else given

    @property
    def y_share(self) -> Share:
        """t̄, the share of outputs of the rule itself: a number, or a map."""
        return self.y_share_map if self._y_share is None else self._y_share

    @property
    def x_share(self) -> Share:
        """S_κ, the share of inputs at this strength: a number, or a map."""
        full: Share = self.x_share_map if self._x_share is None else self._x_share
        return full if self._strength == 1 else 1 - self._strength * (1 - full)

    @property
    def strength(self) -> float:
        """κ: 0 is the plain network's inputs, 1 the rule's."""
        return self._strength

    @strength.setter
    def strength(self, strength: float) -> None:
        value = float(strength)
        if not 0 <= value <= self.largest_strength:
            raise ValueError(f"strength must lie between 0 and {self.largest_strength:g}, got {strength!r}")
        self._strength, self.tempers_after = value, False

    @property
    def largest_strength(self) -> float:
        """Where a share of inputs or outputs reaches 0; ∞ for the identity."""
        full = _smallest(self.x_share_map if self._x_share is None else self._x_share)
        # The temperature of a strength is above 0.
        outputs = _smallest(self.y_share)
        ends = [1 / (1 - full)] if full < 1 else []
        ends += [(1 - 1e-6) / (1 - outputs)] if outputs < 1 else []
        return max(1.0, min(ends, default=math.inf))

    @property
    def temperature(self) -> float | Tensor | None:
        """T, one number or one for every output; None for that of the strength."""
        return self._temperature if self.output_temperature is None else self.output_temperature

    @temperature.setter
    def temperature(self, temperature: float | Tensor | None) -> None:
        self.tempers_after = False
        if isinstance(temperature, Tensor) and temperature.numel() > 1:
            if temperature.shape != self.y_mean.shape:
                given = tuple(temperature.shape)
                raise ValueError(
                    f"there must be one temperature, or one for each of {tuple(self.y_mean.shape)}, got {given}"
                )
            if not bool(((temperature > 0) & torch.isfinite(temperature)).all()):
                raise ValueError("temperatures must be positive and finite")
            self._temperature, self.output_temperature = None, temperature.detach().to(self.y_mean, copy=True)
            return
        value = None if temperature is None else float(temperature)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"the temperature must be positive and finite, got {temperature!r}")
        self._temperature, self.output_temperature = value, None

    def fit(
        self,
        held_out: Any,
        y: Tensor | None = None,
        *,
        loss: str = "cross_entropy",
        per_output: bool = False,
        across_processes: bool = False,
    ) -> Self:
        """Set strength and temperature to what makes held-out data most likely, and return this model.

        Args:
            held_out: a loader of (x, y) batches that were neither trained nor tested on, which can be gone through
                again; or a tensor x (or a tree of them) with `y`.
            y: the targets of x.
            loss: "cross_entropy" (class indices, or rows of probabilities), "logistic" (several labels at once) or
                "squared_error" (which has no temperature).
            per_output: a temperature for every label; with "logistic".
            across_processes: whether every process calls this with its own share of the data.
        """
        from mixreg.prediction.fitting import fit_family

        fit_family(self, held_out, y, loss, per_output, across_processes)
        return self

    def refresh_statistics(self, loader: Iterable[Any]) -> Self:
        """Estimate the running statistics of batch normalisation anew, on inputs as this model shrinks them.

        For averaged weights, whose statistics were those of other weights; loader: of x, or of (x, y).
        """
        from mixreg.prediction.refreshing import refresh_statistics

        refresh_statistics(self, loader)
        return self


def tempered(u: Tensor, temperature: float | Tensor) -> Tensor:
    """u / T, in the dtype of u; one T is a number, exact in every dtype."""
    return u / (temperature.to(u.device, u.dtype) if isinstance(temperature, Tensor) else temperature)


def _smallest(share: Share) -> float:
    if isinstance(share, Tensor):
        return 0.0 if share.is_meta else float(share.min())
    return share
