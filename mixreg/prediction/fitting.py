"""Strength and temperature by held-out likelihood.

At each strength κ the network is asked once for its outputs u on the shrunk inputs. With w = u − m_y the predicted
logits are m_y + β w, β = 1/T: the loss is convex in β, and Newton's method finds the best T to rounding. What is left,
the loss at the best T as a function of κ, is smooth and one-dimensional: it is looked at in the two named points κ = 0
and κ = 1 and then by Brent's method, 11 passes over the data in all at most. The best of all points that were looked at
is taken, so that the result is never worse on the held-out data than any named point.

**Undetermined temperatures.** Where all held-out samples are right the loss falls for ever as T does, and where all is
at chance as T grows: no temperature is best. Such points are not used; if there are no others, the plain or the
rescaled network is, whichever has the lower loss, and a warning says so.

**Flat optima.** Let d_i be the gain of sample i over the better of the two named points. If its mean is below its
standard error, the data cannot tell the optimum from that point, which is simpler: it is used, and a warning says so.

**Standard error of κ.** With g the mean loss at the best T, n g is a profile of the negative log-likelihood, and
1 / √(n g″) the standard error of κ. For squared errors, g = mean ½‖y − pred‖² over c outputs, the likelihood has a
variance, whose best value leaves (n c / 2) log g as the profile: √(2 g / (n c g″)).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mixreg._support.processes import sum_over_processes
from mixreg.calibration.temperature import LARGEST, SMALLEST, minimising_scales
from mixreg.prediction.held_out import SCALED_LOSSES, HeldOut, batches_of, outputs_of
from mixreg.prediction.least import least_between

if TYPE_CHECKING:
    from mixreg.prediction.family import RuleFamily

PASSES = 11
# Beyond the rule itself, but not far: shares of inputs stay positive.
LARGEST_STRENGTH = 1.5
# To find κ more exactly than held-out data can tell is a waste of passes.
TOLERANCE = 0.01
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


def fit_family(
    model: RuleFamily,
    held_out: Any,
    y: Tensor | None = None,
    loss: str = "cross_entropy",
    per_output: bool = False,
    across_processes: bool = False,
) -> FamilyFit:
    """Fit strength and temperature of `model`, which then has them; arguments as of `Rescaled.fit`."""
    if loss not in SCALED_LOSSES:
        raise ValueError(f"unknown loss {loss!r}; a family is fitted with {', '.join(SCALED_LOSSES)}")
    if per_output and loss != "logistic":
        raise ValueError(f"a temperature for every output belongs to several labels (logistic), not to {loss}")
    before = model.strength, model.temperature
    total: Callable[[Tensor], Tensor] = sum_over_processes if across_processes else Tensor.clone
    found: dict[float, tuple[Point, Tensor]] = {}
    untempered: dict[float, tuple[Point, Tensor]] = {}

    def look(place: float) -> float:
        strength = float(place)
        if strength not in found:
            model.strength = strength
            held = outputs_of(model, batches_of(held_out, y), may_be_empty=across_processes)
            fixed = _own_temperature(model, strength) if loss == "squared_error" else None
            temperature, losses = best_temperature(held, model.y_mean, loss, per_output, fixed, total)
            found[strength] = Point(strength, temperature, float(_mean(losses, total))), losses
            if strength in (0.0, 1.0) and loss != "squared_error":
                own = _own_temperature(model, strength)
                _, losses = best_temperature(held, model.y_mean, loss, fixed=own, total=total)
                untempered[strength] = Point(strength, own, float(_mean(losses, total))), losses
        return found[strength][0].loss

    try:
        for strength in (0.0, 1.0):
            look(strength)
        upper = min(LARGEST_STRENGTH, model.largest_strength)
        if _changes_inputs(model):
            least_between(look, (0.0, upper), TOLERANCE, PASSES - 2)
        fit = _chosen(found, untempered, loss, model.y_mean.numel(), total)
    except BaseException:
        model.strength, model.temperature = before
        raise
    model.strength, model.fitted = fit.strength, fit
    model.temperature = None if loss == "squared_error" else as_temperature(fit.temperature)
    if fit.note:
        warnings.warn(fit.note, stacklevel=3)
    return fit


def _own_temperature(model: RuleFamily, strength: float) -> float:
    share = model.y_share
    if isinstance(share, Tensor):
        raise ValueError("a rule with a share for every output has no one temperature, and cannot be fitted")
    return 1 - strength * (1 - share)


def _changes_inputs(model: RuleFamily) -> bool:
    model.strength = 1.0
    share = model.x_share
    return bool((share != 1).any()) if isinstance(share, Tensor) else share != 1


def best_temperature(
    held: HeldOut,
    y_mean: Tensor,
    loss: str = "cross_entropy",
    per_output: bool = False,
    fixed: float | None = None,
    total: Callable[[Tensor], Tensor] = Tensor.clone,
) -> tuple[float | tuple[float, ...], Tensor]:
    """The T that makes m_y + (u − m_y) / T most likely (or a `fixed` one), and the loss of each sample (n, float64).

    Args:
        held: outputs u on shrunk inputs, and targets.
        y_mean: m_y.
        loss: its name.
        per_output: a temperature for every output.
        fixed: use this one.
        total: sums over processes.
    """
    kind, mean = SCALED_LOSSES[loss], y_mean.reshape(-1).double()
    kind.check(held)

    def derivatives(beta: Tensor) -> tuple[Tensor, Tensor]:
        beta = beta.to(mean.device)
        parts = [kind.derivatives(mean, u - mean, y, beta) for u, y in held.chunks()]
        sums = torch.stack([torch.stack(part).sum(0) for part in zip(*parts, strict=True)])
        first, second = total(sums if per_output else sums.sum(1, keepdim=True))
        return first, second

    if fixed is None:
        scales, _ = minimising_scales(derivatives, len(mean) if per_output else 1)
    else:
        scales = torch.tensor([1 / fixed], dtype=torch.float64)
    beta = scales.to(mean.device)
    losses = torch.cat([kind.losses(mean + beta * (u - mean), y) for u, y in held.chunks()])
    temperatures = tuple((1 / scales).tolist())
    return temperatures if per_output else temperatures[0], losses


def _mean(losses: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    count, value = total(torch.stack([torch.ones_like(losses).sum(), losses.sum()]))
    return value / count


def _is_determined(point: Point) -> bool:
    """Whether its temperatures are minima, rather than ends of what is looked at."""
    values = point.temperature if isinstance(point.temperature, tuple) else (point.temperature,)
    return all(SMALLEST < value < LARGEST for value in values)


def _chosen(
    found: dict[float, tuple[Point, Tensor]],
    untempered: dict[float, tuple[Point, Tensor]],
    loss: str,
    outputs: int,
    total: Callable[[Tensor], Tensor],
) -> FamilyFit:
    points = tuple(sorted(point for point, _ in found.values()))
    determined = [point for point in points if _is_determined(point)]
    best = min(determined or points, key=lambda point: point.loss)
    at_ends = [found[strength][0] for strength in (0.0, 1.0)]
    named = min([p for p in at_ends if p in determined] or at_ends, key=lambda point: point.loss)
    gain, error, n = _gain(found[named.strength][1], found[best.strength][1], total)
    used, note = best, ""
    names = {0.0: "the plain network's", 1.0: "the rule's own"}
    if not determined and untempered:
        used, losses = min(untempered.values(), key=lambda each: each[0].loss)
        own = f"its own temperature, {names[used.strength]},"
        # The smallest temperature is what a few right samples ask for, and would be far too confident of others; the
        # largest one is what is left of a network that knows less than chance, if there are enough to tell.
        flattened_gain, flattened_error, _ = _gain(losses, found[best.strength][1], total)
        if best.temperature == LARGEST and flattened_gain > 2 * flattened_error:
            used, own = best, "the largest temperature"
        note = (
            f"{int(n)} held-out samples determine no temperature (all are right, or at chance): strength "
            f"{used.strength:g} with {own} is used"
        )
    elif best.strength != named.strength and not gain > error:
        used = named
        note = (
            f"{int(n)} held-out samples cannot tell strength {best.strength:.2f} from {named.strength:g} (their loss "
            f"differs by {gain:.2g} ± {error:.2g}): {names[named.strength]} is used"
        )
    return FamilyFit(used.strength, used.temperature, loss, int(n), outputs, points, gain, error, note)


def _gain(losses: Tensor, better: Tensor, total: Callable[[Tensor], Tensor]) -> tuple[float, float, float]:
    """How much less the second losses (n) are on average, its standard error, and n over all processes."""
    difference = losses - better
    n, first, second = total(
        torch.stack([torch.ones_like(difference), difference, difference.square()]).sum(1)
    ).tolist()
    mean = first / n
    # One sample says nothing of its spread.
    return mean, math.sqrt(max(0.0, second / n - mean**2) / (n - 1)) if n > 1 else math.inf, n
