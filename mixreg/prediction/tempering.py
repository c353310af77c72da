"""Temperature scaling after the rule: what anybody does to the outputs of a network, plain or rescaled.

With the rule's own stretch t = 1 − κ (1 − t̄) at a strength,

    pred(x) = (m_y + (f(m_x + S_κ ∘ (x − m_x)) − m_y) / t) / T.

The family (`mixreg.prediction.family`) scales about m_y instead, with one T for both. Where classes are equally
frequent they are one: m_y shifts all logits alike. Where they are not, a temperature about m_y moves logits towards the
frequent classes, and at κ = 0 changes decisions, which temperature scaling does not. Held-out data says what is better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg.calibration.temperature import LARGEST, SMALLEST
from mixreg.prediction.family_fit import Point
from mixreg.prediction.held_out import HeldOut

# What rounding alone makes of one loss in two ways.
_ROUNDING = 1e-9


class Looked(NamedTuple):
    """A point that was looked at: κ, T and mean loss; the losses of samples (n); whether T comes after the rule."""

    point: Point
    losses: Tensor
    is_after: bool = False


def ruled(held: HeldOut, y_mean: Tensor, own: float) -> HeldOut:
    """Outputs as the rule alone gives them: m_y + (u − m_y) / t; `own` is t."""
    mean = y_mean.reshape(-1).to(held.u.device, torch.float64)
    return HeldOut(held.u if own == 1 else mean + (held.u.double() - mean) / own, held.y)


def is_determined(looked: Looked) -> bool:
    """Whether temperatures are minima, rather than ends of what is looked at."""
    given = looked.point.temperature
    return all(SMALLEST < value < LARGEST for value in (given if isinstance(given, tuple) else (given,)))


def is_better(looked: Looked, other: Looked) -> bool:
    """Whether a point has the lower loss, beyond rounding."""
    loss = other.point.loss
    return looked.point.loss < loss - _ROUNDING * (1 + abs(loss))


Fit = Callable[[HeldOut, Tensor, bool], tuple[float | tuple[float, ...], Tensor]]


def named_points(
    held: HeldOut, y_mean: Tensor, strength: float, own: float, fit: Fit, each: bool, mean: Callable[[Tensor], Tensor]
) -> list[Looked]:
    """Temperatures after the rule at one strength; and, beside one for every output, one for all of both kinds.

    Args:
        held: outputs u on shrunk inputs, and targets.
        y_mean: m_y.
        strength: κ.
        own: t, the rule's own temperature at it.
        fit: of outputs, a centre and whether every output has its own the best temperatures, and losses of samples.
        each: whether every output is to have a temperature of its own.
        mean: of losses, over all processes.
    """
    zero, outputs = torch.zeros_like(y_mean).reshape(-1), ruled(held, y_mean, own)
    kinds = [(outputs, zero, True, each)]
    if each:
        # A label that is always right determines no temperature of its own, and may share that of the others.
        kinds += [(outputs, zero, True, False), (held, y_mean, False, False)]
    found = []
    for given, centre, is_after, has_own in kinds:
        temperature, losses = fit(given, centre, has_own)
        if each and isinstance(temperature, float):
            temperature = (temperature,) * y_mean.numel()
        looked = Looked(Point(strength, temperature, float(mean(losses))), losses, is_after)
        found.extend([looked] if is_determined(looked) else [])
    return found
