"""Learning rates over a run. Nothing here needs PyTorch.

With t in [0, 1] for how much of the run is done, w for the part of it that is warm-up, and the rate η that was asked:

    step        η, divided by 10 after each of the given fractions of the epochs
    cosine      η (1 + cos(π (t − w) / (1 − w))) / 2
    one-cycle   linearly from 0 up to η at w (by default a fifth of the run), and linearly down to 0 (Smith, 2018)

Step and cosine rise linearly from 0 during warm-up, if there is any. Rates that change from step to step are those of
the middle of a step, so that neither the first nor the last one is wasted on a rate of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SCHEDULES = ("step", "cosine", "one-cycle")
# The part of a run during which a cycle's rate rises.
RISE = 0.2


def learning_rate(
    schedule: str,
    rate: float,
    epochs: int,
    drops: Sequence[float],
    warm_up: float,
    epoch: int,
    part: float,
) -> float:
    """The rate of a step.

    Args:
        schedule: one of `SCHEDULES`.
        rate: η.
        epochs: of the run.
        drops: fractions of the epochs after which "step" divides by 10.
        warm_up: in epochs.
        epoch: the step's, counted from 0.
        part: how much of its epoch is done in the middle of the step, in (0, 1).
    """
    done = (epoch + part) / epochs
    rise = warm_up / epochs
    if schedule == "one-cycle":
        rise = rise or RISE
        return rate * (done / rise if done < rise else (1 - done) / (1 - rise))
    warmed = min(1.0, done / rise) if rise else 1.0
    if schedule == "cosine":
        return rate * warmed * (1 + math.cos(math.pi * max(0.0, done - rise) / (1 - rise))) / 2
    # Rounded as the paper's epochs are: 0.33 of 200 is 66.
    dropped = sum(epoch >= max(1, round(drop * epochs)) for drop in drops)
    return rate * warmed * 0.1**dropped
