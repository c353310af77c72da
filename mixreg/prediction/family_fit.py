"""What fitting a rule to held-out data found: a point of the family, and the likelihood profile that it was found on.

**Standard error of κ.** With g the mean loss at the best T, n g is a profile of the negative log-likelihood, and
1 / √(n g″) the standard error of κ. For squared errors, g = mean ½‖y − pred‖² over c outputs, the likelihood has a
variance, whose best value leaves (n c / 2) log g as the profile: √(2 g / (n c g″)).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Points of the profile that its curvature is read off are at least so far apart.
_APART = 0.1


class Point(NamedTuple):
    """A strength, the best temperature (one, or one for every output) at it, and the mean held-out loss of both."""

    strength: float
    temperature: float | tuple[float, ...]
    loss: float


@dataclass(frozen=True)
class FamilyFit:
    """What `fit` found.

    Attributes:
        strength: κ, as it is used.
        temperature: as it is used, one or one for every output.
        loss: the name of the loss.
        samples: how many there were.
        outputs: numbers that the network gives for one sample.
        points: all that were looked at, by strength: a likelihood profile.
        gain: of the best point over the better one of κ = 0 and κ = 1, each with its best temperature.
        gain_error: the standard error of this mean.
        note: why a named point is used in place of the best, if one is.
        is_after: whether the temperature is one after the rule (`mixreg.prediction.tempering`).
        mean_loss: on the held-out data, of what is used; None in files of earlier versions.
    """

    strength: float
    temperature: float | tuple[float, ...]
    loss: str
    samples: int
    outputs: int
    points: tuple[Point, ...]
    gain: float
    gain_error: float
    note: str = ""
    is_after: bool = False
    mean_loss: float | None = None

    def at(self, strength: float) -> Point:
        """The point of a strength that was looked at: κ = 0 and κ = 1 always were."""
        return next(point for point in self.points if point.strength == strength)

    @property
    def best(self) -> Point:
        """The point with the lowest loss."""
        return min(self.points, key=lambda point: point.loss)

    @property
    def standard_error(self) -> float:
        """Of the best strength, from the curvature of the profile there; NaN at an end of the profile."""
        b, _, gb = self.best
        below = [point for point in self.points if point.strength <= b - _APART]
        above = [point for point in self.points if point.strength >= b + _APART]
        if not below or not above:
            return math.nan
        (a, _, ga), (c, _, gc) = below[-1], above[0]
        curvature = 2 * ((gc - gb) / (c - b) - (gb - ga) / (b - a)) / (c - a)
        if not curvature > 0:
            return math.nan
        scale = 2 * gb / self.outputs if self.loss == "squared_error" else 1.0
        return math.sqrt(scale / (self.samples * curvature))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        # JSON has no infinity, which is the error of a single sample.
        error = self.gain_error if math.isfinite(self.gain_error) else None
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"points": [list(point) for point in self.points], "gain_error": error}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> FamilyFit:
        """What `to_json` gave."""
        points = tuple(Point(k, _frozen(t), loss) for k, t, loss in content["points"])
        error = math.inf if content["gain_error"] is None else content["gain_error"]
        return cls(**content | {"points": points, "temperature": _frozen(content["temperature"]), "gain_error": error})


def _frozen(temperature: float | Iterable[float]) -> float | tuple[float, ...]:
    return temperature if isinstance(temperature, (int, float)) else tuple(temperature)


def as_temperature(temperature: float | tuple[float, ...]) -> float | Tensor:
    """As `Rescaled` takes it."""
    return torch.tensor(temperature, dtype=torch.float64) if isinstance(temperature, tuple) else temperature
