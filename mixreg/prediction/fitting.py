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

**A temperature after the rule.** The family scales outputs about m_y, temperature scaling as anybody does it about 0.
At κ = 0 and κ = 1 both are looked at (`mixreg.prediction.tempering`), and so are no temperature, and one for all
outputs where every output may have its own: what is better than all else is used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixreg._support.processes import sum_over_processes
from mixreg.calibration.temperature import LARGEST, minimising_scales
from mixreg.prediction.family_fit import FamilyFit, Point
from mixreg.prediction.held_out import SCALED_LOSSES, HeldOut, batches_of, outputs_of
from mixreg.prediction.least import least_between
from mixreg.prediction.tempering import Looked, is_better, is_determined, named_points

if TYPE_CHECKING:
    from mixreg.prediction.family import RuleFamily

PASSES = 11
# Beyond the rule itself, but not far: shares of inputs stay positive.
LARGEST_STRENGTH = 1.5
# To find κ more exactly than held-out data can tell is a waste of passes.
TOLERANCE = 0.01


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
    before = model.strength, model.temperature, model.tempers_after
    total: Callable[[Tensor], Tensor] = sum_over_processes if across_processes else Tensor.clone
    # What was looked at; and in the two named points a temperature after the rule, and none.
    found: dict[float, Looked] = {}
    afterwards: list[Looked] = []
    untempered: dict[float, Looked] = {}

    def fit(held: HeldOut, centre: Tensor, each: bool) -> tuple[float | tuple[float, ...], Tensor]:
        return best_temperature(held, centre, loss, each, total=total)

    def mean(losses: Tensor) -> Tensor:
        return _mean(losses, total)

    def look(place: float) -> float:
        strength = float(place)
        if strength not in found:
            model.strength = strength
            held = outputs_of(model, batches_of(held_out, y), may_be_empty=across_processes)
            fixed = _own_temperature(model, strength) if loss == "squared_error" else None
            temperature, losses = best_temperature(held, model.y_mean, loss, per_output, fixed, total)
            found[strength] = Looked(Point(strength, temperature, float(mean(losses))), losses)
            if strength in (0.0, 1.0) and loss != "squared_error":
                own = _own_temperature(model, strength)
                afterwards.extend(named_points(held, model.y_mean, strength, own, fit, per_output, mean))
                _, losses = best_temperature(held, model.y_mean, loss, fixed=own, total=total)
                untempered[strength] = Looked(Point(strength, own, float(mean(losses))), losses)
        return found[strength].point.loss

    try:
        for strength in (0.0, 1.0):
            look(strength)
        upper = min(LARGEST_STRENGTH, model.largest_strength)
        if _changes_inputs(model):
            least_between(look, (0.0, upper), TOLERANCE, PASSES - 2)
        chosen = _chosen(found, afterwards, untempered, loss, model.y_mean.numel(), total)
        model.place(chosen)
    except BaseException:
        model.strength, model.temperature, model.tempers_after = before
        raise
    model.fitted = chosen
    if chosen.note:
        warnings.warn(chosen.note, stacklevel=3)
    return chosen


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


def _chosen(
    found: dict[float, Looked],
    afterwards: list[Looked],
    untempered: dict[float, Looked],
    loss: str,
    outputs: int,
    total: Callable[[Tensor], Tensor],
) -> FamilyFit:
    def loss_of(looked: Looked) -> float:
        return looked.point.loss

    # Of squared errors nothing is fitted but the strength.
    determined = [looked for looked in found.values() if loss == "squared_error" or is_determined(looked)]
    best = min(determined or found.values(), key=loss_of)
    at_ends = [found[strength] for strength in (0.0, 1.0)]
    ends = [looked for looked in at_ends if any(looked is other for other in determined)]
    # Where only what lies between them determines a temperature, the ends have their own.
    named = min(ends or (untempered.values() if determined else at_ends), key=loss_of)
    gain, error, n = _gain(named.losses, best.losses, total)
    used, note = best, ""
    names = {0.0: "the plain network's", 1.0: "the rule's own"}
    if not determined and untempered:
        used = min(untempered.values(), key=loss_of)
        own = f"its own temperature, {names[used.point.strength]},"
        # The smallest temperature is what a few right samples ask for, and would be far too confident of others; the
        # largest one is what is left of a network that knows less than chance, if there are enough to tell.
        flattened_gain, flattened_error, _ = _gain(used.losses, best.losses, total)
        if best.point.temperature == LARGEST and flattened_gain > 2 * flattened_error:
            used, own = best, "the largest temperature"
        note = (
            f"{int(n)} held-out samples determine no temperature (all are right, or at chance): strength "
            f"{used.point.strength:g} with {own} is used"
        )
    elif best.point.strength != named.point.strength and not gain > error:
        used = named
        note = (
            f"{int(n)} held-out samples cannot tell strength {best.point.strength:.2f} from {named.point.strength:g} "
            f"(their loss differs by {gain:.2g} ± {error:.2g}): {names[named.point.strength]} is used"
        )
    # Whoever would have done without all of this is not to be worse off.
    simple = min([*afterwards, *untempered.values()], key=loss_of, default=used)
    if is_better(simple, used):
        used = simple
        kind = "a temperature after the rule" if used.is_after else f"the temperature {_one(used.point.temperature):g}"
        note = f"{note.rpartition(': ')[0]}: strength {used.point.strength:g} with {kind} is used" if note else ""
    points = tuple(sorted(looked.point for looked in found.values()))
    strength, temperature, _ = used.point
    return FamilyFit(
        strength, temperature, loss, int(n), outputs, points, gain, error, note, used.is_after, used.point.loss
    )


def _one(temperature: float | tuple[float, ...]) -> float:
    """A temperature that all outputs share."""
    return temperature[0] if isinstance(temperature, tuple) else temperature


def _gain(losses: Tensor, better: Tensor, total: Callable[[Tensor], Tensor]) -> tuple[float, float, float]:
    """How much less the second losses (n) are on average, its standard error, and n over all processes."""
    difference = losses - better
    n, first, second = total(
        torch.stack([torch.ones_like(difference), difference, difference.square()]).sum(1)
    ).tolist()
    mean = first / n
    # One sample says nothing of its spread.
    return mean, math.sqrt(max(0.0, second / n - mean**2) / (n - 1)) if n > 1 else math.inf, n
