"""Claims of the paper and what measurements say of them.

A claim is that one paired measurement exceeds another. Over repetitions the differences are tested one-sidedly (paired
t-test): the claim is *reproduced* if they are positive beyond chance (p < 0.05), *not reproduced* otherwise, whatever
the reason, and *not testable* where a scale has too few repetitions to tell. With several parts (losses, accuracies,
values of α), all of them must hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

LEVEL = 0.05
# Fewer differences than this say nothing about chance.
FEWEST = 3

REPRODUCED, NOT_REPRODUCED, NOT_TESTABLE = "reproduced", "not reproduced", "not testable at this scale"


@dataclass(frozen=True)
class Comparison:
    """One part of a claim: the mean of paired differences, half its 95 % interval, the one-sided p-value."""

    about: str
    difference: float
    half_width: float | None
    p_value: float | None
    repetitions: int
    verdict: str


@dataclass(frozen=True)
class Claim:
    """A claim, where the paper makes it, and the verdict over its parts."""

    name: str
    statement: str
    source: str
    parts: tuple[Comparison, ...]

    @property
    def verdict(self) -> str:
        """Reproduced if every part is; without parts there was nothing to measure it on."""
        verdicts = {part.verdict for part in self.parts} or {NOT_TESTABLE}
        for verdict in (NOT_REPRODUCED, NOT_TESTABLE):
            if verdict in verdicts:
                return verdict
        return REPRODUCED

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def is_positive(about: str, differences: Sequence[float]) -> Comparison:
    """That paired differences are positive."""
    return exceeds(about, differences, [0.0] * len(differences))


def exceeds(about: str, larger: Sequence[float], smaller: Sequence[float]) -> Comparison:
    """That `larger` exceeds `smaller`, pair by pair."""
    from scipy import stats

    differences = [a - b for a, b in zip(larger, smaller, strict=True)]
    n = len(differences)
    mean = sum(differences) / n
    if n < FEWEST:
        return Comparison(about, mean, None, None, n, NOT_TESTABLE)
    spread = math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1) / n)
    if spread == 0:
        p_value = 0.0 if mean > 0 else 1.0
        return Comparison(about, mean, 0.0, p_value, n, REPRODUCED if mean > 0 else NOT_REPRODUCED)
    p_value = float(stats.t.sf(mean / spread, n - 1))
    half_width = float(stats.t.ppf(0.975, n - 1)) * spread
    return Comparison(about, mean, half_width, p_value, n, REPRODUCED if p_value < LEVEL else NOT_REPRODUCED)


def always(about: str, values: Sequence[float], slack: float) -> Comparison:
    """What a theorem says of every repetition: that `values` are positive, up to the `slack` of rounding."""
    tested = is_positive(about, [value + slack for value in values])
    is_broken = tested.verdict == REPRODUCED and min(values) < -slack
    verdict = NOT_REPRODUCED if is_broken else tested.verdict
    return replace(tested, difference=tested.difference - slack, verdict=verdict)


def vanishes(about: str, values: Sequence[float], margin: float) -> Comparison:
    """That `values` are 0 up to `margin`."""
    return stays_within(about, values, [0.0] * len(values), margin)


def stays_within(about: str, first: Sequence[float], second: Sequence[float], margin: float) -> Comparison:
    """That two paired measurements agree up to `margin`: both one-sided tests against it reject (TOST)."""
    lower = exceeds(about, [a + margin for a in first], second)
    upper = exceeds(about, [b + margin for b in second], first)
    weaker = max((lower, upper), key=lambda test: -1.0 if test.p_value is None else test.p_value)
    difference = lower.difference - margin
    return Comparison(about, difference, lower.half_width, weaker.p_value, weaker.repetitions, weaker.verdict)
