"""A network with the prediction rule that belongs to its training (eq. testmodif and Algorithm 1 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.network import unwrapped
from mixreg._support.structure import leaves
from mixreg.prediction.calls import first_parameter, input_among
from mixreg.prediction.family import RuleFamily
from mixreg.prediction.rule import Rule, require_output, shrink_tree
from mixreg.theory.boxes import own_share
from mixreg.theory.moments import DataMoments
from mixreg.theory.theta import scalar_forms


class Rescaled(RuleFamily):
    """A Mixup-trained network with the prediction rule that belongs to it.

    The wrapped network is `model.net`; means are buffers and shares are part of the `state_dict`, so a saved model is
    complete. Means are cast to the dtype and device of the network's parameters, if it has any.

        Rescaled(net, alpha=1.0, x_mean=x_mean, y_mean=y_mean)     # Mixup's rule
        Rescaled(net, rule=method.rule(moments))                   # that of any method
        Rescaled(net, rule=method.rule(moments)).fit(held_out)     # as strong as held-out data says

    Args:
        net: any module; called with the shrunk x and any further arguments, it must return one tensor.
        alpha: the α of Mixup that the network was trained with; setting `model.alpha` changes the rule.
        x_mean: x̄, of one sample's shape or one that broadcasts to it; for inputs of several tensors a tuple, list or
            dict of means of the same structure.
        y_mean: ȳ, of one output's shape.
        rule: instead of the three above.
        strength: κ, at least 0; above 1 as far as shares stay at least 0.
        temperature: T above 0, one number or one for every output; None for that of the strength.

    Attributes:
        fitted: what `fit` found, if it was called.
    """

    # What the network calls its input, and its inputs if they are several by name: for calls by keyword.
    _first: str | None = None
    _named: tuple[str, ...] = ()

    def __init__(
        self,
        net: nn.Module,
        alpha: float | None = None,
        x_mean: Any = None,
        y_mean: Tensor | None = None,
        *,
        rule: Rule | None = None,
        strength: float = 1.0,
        temperature: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        self.net = net
        self._first = first_parameter(unwrapped(net).forward)
        self._alpha: float | None = None
        if rule is None:
            if alpha is None or x_mean is None or y_mean is None:
                raise TypeError(
                    "Rescaled needs alpha, x_mean and y_mean, or a rule; a method that has none is used as it is"
                )
            rule = Rule.of_mixup(alpha, x_mean, y_mean)
            self._alpha = scalar_forms(alpha, "Rescaled").alpha
        elif not (alpha is None and x_mean is None and y_mean is None):
            raise TypeError("a rule has its own shares and means: give it alone, or alpha, x_mean and y_mean")
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        # Python numbers: exact in every dtype, and constants to compilers.
        self._y_share = None
        if isinstance(rule.y_share, Tensor):
            self.register_buffer("y_share_map", _as_buffer(rule.y_share, "y_share", like))
        else:
            self._y_share = rule.y_share
        self._x_share = None
        if isinstance(rule.x_share, Tensor):
            # A copy: what is computed once is shared by all.
            self.register_buffer("x_share_map", _as_buffer(rule.x_share, "x_share", like))
        else:
            self._x_share = rule.x_share
        # One buffer "x_mean", or for several input tensors "x_mean_0", "x_mean_1", …: expression in x -> buffer.
        self._x_buffers: dict[str, str] = {}
        self._named = tuple(rule.x_mean) if isinstance(rule.x_mean, dict) else ()
        for index, (name, mean) in enumerate(leaves(rule.x_mean, "x")):
            self._x_buffers[name] = "x_mean" if mean is rule.x_mean else f"x_mean_{index}"
            self.register_buffer(self._x_buffers[name], _as_buffer(mean, f"the mean of {name}", like))
        if not self._x_buffers:
            raise ValueError("x_mean holds no tensor")
        self.register_buffer("y_mean", _as_buffer(rule.y_mean, "y_mean", like))
        self._place(strength, temperature)

    @classmethod
    def from_loader(
        cls, net: nn.Module, loader: Iterable[Any], alpha: float, num_classes: int | None = None
    ) -> Rescaled:
        """Wrap `net` with the means of one pass over its training loader of (x, y) batches.

        Of this process's loader alone: where each has its share, join `DataMoments` with `all_reduce` and wrap with
        their means.
        """
        moments = DataMoments.from_loader(loader, num_classes)
        return cls(net, alpha, moments.x_mean, moments.y_mean)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """pred(x); x as the network takes it, first or by its name; further arguments reach it unchanged."""
        return self.stretched(self.outputs_on_shrunk(x, *args, **kwargs))

    def outputs_on_shrunk(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """f on shrunk inputs, before its outputs are stretched; arguments as of a call."""
        if self._first not in (None, "x") and self._first in kwargs and not args:
            # Called by names, of which one is x.
            kwargs, x = kwargs | ({} if x is None else {"x": x}), None
        if x is None and not args:
            return require_output(self.net(**self._shrunk_by_name(kwargs)))
        return require_output(self.net(shrink_tree(x, self._means(), self.x_share), *args, **kwargs))

    def _shrunk_by_name(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._named and all(name in given for name in self._named):
            # As many keywords as there are means.
            return given | shrink_tree({name: given[name] for name in self._named}, self._means(), self.x_share)
        name = input_among(given, self._first)
        return given | {name: shrink_tree(given[name], self._means(), self.x_share)}

    def _means(self) -> dict[str, Tensor]:
        return {name: getattr(self, buffer) for name, buffer in self._x_buffers.items()}

    @property
    def theta_mean(self) -> float:
        """θ̄, the (mean) share of outputs."""
        return float(self.y_share_map.mean()) if self._y_share is None else self._y_share

    @property
    def alpha(self) -> float | None:
        """The α that the rule was made for; None if it was given as a rule."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        if self._alpha is None:
            raise AttributeError("this model was given a rule, which has no alpha to set; make a new one")
        self._set_alpha(scalar_forms(alpha, type(self).__name__).alpha)

    def _set_alpha(self, alpha: float) -> None:
        self._alpha = alpha
        self._x_share = self._y_share = scalar_forms(alpha, "Rescaled").mean
        self.strength = self._strength  # which may be too large now

    def get_extra_state(self) -> Tensor:
        """α, shares, κ and T (NaN for none), as a tensor so that formats which hold only tensors can save them.

        A negative number behind them says that T comes after the rule.
        """
        numbers = [self._alpha, self._y_share, self._x_share, self._strength]
        if self.output_temperature is None:
            numbers.append(self._temperature)
        else:
            numbers += self.output_temperature.flatten().tolist()
        numbers += [-1.0] if self.tempers_after else []
        return torch.tensor([math.nan if n is None else n for n in numbers], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take α, shares, κ and T from a `state_dict`, also from one that has no κ and T yet."""
        alpha, y_share, x_share, *family = state.tolist()
        self._y_share = None if math.isnan(y_share) else y_share
        strength, *temperatures = family or (1.0, math.nan)
        is_after = len(temperatures) > 1 and temperatures[-1] < 0
        temperatures = temperatures[:-1] if is_after else temperatures
        self._strength = strength
        if len(temperatures) == 1:
            self.temperature = None if math.isnan(temperatures[0]) else temperatures[0]
        else:
            self.temperature = torch.tensor(temperatures, dtype=torch.float64).reshape(self.y_mean.shape)
        self.tempers_after = is_after
        self._x_share = None if math.isnan(x_share) else x_share
        # A map says nothing of the α it was made for, but to those who made it.
        self._alpha = None if math.isnan(alpha) or not self._is_made_for(self._x_share) else alpha

    @staticmethod
    def _is_made_for(x_share: float | None) -> bool:
        return x_share is not None

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        inputs = "a map" if self._x_share is None else f"{self._x_share:.4f}"
        outputs = "a map" if self._y_share is None else f"{self._y_share:.4f}"
        rule = f"x_share={inputs}, y_share={outputs}"
        if self._alpha is not None:
            rule = f"alpha={self._alpha}, theta_mean={self.theta_mean:.4f}"
        if self._strength != 1:
            rule += f", strength={self._strength:.4f}"
        if self._temperature is not None:
            rule += f", temperature={self._temperature:.4f}"
        return rule if self.output_temperature is None else f"{rule}, a temperature for every output"


class RescaledCutMix(Rescaled):
    """A CutMix-trained network with the prediction rule that belongs to it: a share for every pixel.

    Args:
        net: any module that takes images and returns one tensor.
        alpha: the α that it was trained with; setting `model.alpha` changes the rule.
        x_mean: x̄, … × height × width.
        y_mean: ȳ, of one output's shape.
    """

    def __init__(self, net: nn.Module, alpha: float, x_mean: Tensor, y_mean: Tensor) -> None:
        if not isinstance(x_mean, Tensor) or x_mean.ndim < 2:
            given = tuple(x_mean.shape) if isinstance(x_mean, Tensor) else type(x_mean).__name__
            raise TypeError(f"x_mean must be a mean image … × height × width, got {given}")
        share = own_share(float(alpha), x_mean.shape[-2], x_mean.shape[-1])
        super().__init__(net, rule=Rule(share, float(share.mean()), x_mean, y_mean))
        self._alpha = float(alpha)

    @staticmethod
    def _is_made_for(x_share: float | None) -> bool:
        return x_share is None

    def _set_alpha(self, alpha: float) -> None:
        share = own_share(alpha, *self.x_share_map.shape)
        self._alpha, self._y_share = alpha, float(share.mean())
        self.x_share_map.copy_(share)
        self.strength = self._strength


def _as_buffer(value: Tensor, name: str, like: Tensor | None) -> Tensor:
    """A copy, finite, in the dtype and on the device of the network's parameters."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        given = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {given}")
    if not value.is_meta and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} holds non-finite values; the mean of the training data must be finite")
    value = value.detach().clone()
    return value if like is None else value.to(like.device, like.dtype)
