"""Claims of the paper and the tests of their parts.

A part of a claim compares measurements that share their seed, by paired t-tests over n repetitions. What must be
positive (a difference; for equality both *margin − difference* and *margin + difference*) has a mean and a standard
deviation; their quotient, the smaller one if there are two, is the part's *effect*, and √n · effect is its t-statistic:

    p(n) = sides · P(T_{n−1} > √n · |effect|),

with two sides for a direction. Equality has one: where it holds it can only be contradicted wrongly, and where it does
not it can only be supported wrongly (TOST). So p(n) is also known for repetitions that were not carried out, as long as
mean and spread stay. A theorem needs no test: it holds in every repetition, or it does not.

What all of this says of a claim is decided in `mixreg.experiments.verdicts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mixreg.experiments import verdicts
from mixreg.experiments.verdicts import FEWEST, Verdict

# What follows Mixup is nearer to it than this part of the way from Mixup to ERM.
FOLLOWING = 0.5


@dataclass(frozen=True)
class Comparison:
    """One part of a claim.

    Attributes:
        about: what was compared.
        difference: mean of the paired differences.
        half_width: half of its 95 % interval; None for too few repetitions.
        repetitions: how many there are.
        effect: mean of what must be positive, in its standard deviations; NaN where there is none.
        margin: up to which an equality holds; None for a direction.
        exceptions: repetitions in which a theorem does not hold; None for what is no theorem.
    """

    about: str
    difference: float
    half_width: float | None
    repetitions: int
    effect: float = math.nan
    margin: float | None = None
    exceptions: int | None = None

    @property
    def is_theorem(self) -> bool:
        return self.exceptions is not None

    @property
    def is_tested(self) -> bool:
        """Whether there are enough repetitions to say something about chance."""
        return not self.is_theorem and self.repetitions >= FEWEST

    def p_value_at(self, repetitions: int) -> float:
        """The p-value that so many repetitions with the measured mean and spread would have; 1 without a test."""
        from scipy.special import stdtr

        if not self.is_tested or math.isnan(self.effect):
            return 1.0
        sides = 2 if self.margin is None else 1
        return sides * float(stdtr(repetitions - 1, -math.sqrt(repetitions) * abs(self.effect)))

    @cached_property
    def p_value(self) -> float | None:
        """Of this part by itself; None without a test."""
        return self.p_value_at(self.repetitions) if self.is_tested else None


@dataclass(frozen=True)
class Claim:
    """A claim, where the paper makes it, and its parts.

    Attributes:
        name, statement, source: what is claimed, in short and in full, and where.
        parts: what was compared; without any there was nothing to measure it on.
        is_judged: whether it was measured at a scale to judge it at; theorems are judged at any.
    """

    name: str
    statement: str
    source: str
    parts: tuple[Comparison, ...]
    is_judged: bool = True

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Part by part."""
        return verdicts.judge(self.parts, self.is_judged)

    @property
    def verdict(self) -> str:
        """Supported if every part is, contradicted if one is, undecided otherwise."""
        return verdicts.overall(self.verdicts)

    @property
    def words(self) -> str:
        """The verdict with how many parts are which, and how many repetitions would decide."""
        return verdicts.claim_words(self.verdicts)

    def to_json(self) -> dict[str, Any]:
        parts = [_part_json(part, verdict) for part, verdict in zip(self.parts, self.verdicts, strict=True)]
        told = {"name": self.name, "statement": self.statement, "source": self.source, "parts": parts}
        return told | {"verdict": self.verdict, "words": self.words}


def _part_json(part: Comparison, verdict: Verdict) -> dict[str, Any]:
    found = {name: getattr(part, name) for name in ("about", "difference", "half_width", "margin", "repetitions")}
    found |= {"exceptions": part.exceptions, "p_value": part.p_value, "corrected": verdict.corrected}
    return found | {"verdict": verdict.name, "needed": verdict.needed, "words": verdicts.part_words(verdict)}


def is_positive(about: str, differences: Sequence[float]) -> Comparison:
    """That paired differences are positive."""
    return Comparison(about, *_summary(differences), effect=_effect(differences))


def exceeds(about: str, larger: Sequence[float], smaller: Sequence[float]) -> Comparison:
    """That `larger` exceeds `smaller`, pair by pair."""
    return is_positive(about, _differences(larger, smaller))


def vanishes(about: str, values: Sequence[float], margin: float) -> Comparison:
    """That `values` are 0 up to `margin`."""
    return _within(about, values, [margin] * len(values))


def stays_within(about: str, first: Sequence[float], second: Sequence[float], margin: float) -> Comparison:
    """That two paired measurements agree up to `margin`."""
    return vanishes(about, _differences(first, second), margin)


def follows(about: str, first: Sequence[float], second: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """That `first` agrees with `second` up to half of the gap between `baseline` and `second`.

    The gap is uncertain, too: margins are those of each repetition, and the paired tests see them vary.
    """
    gaps = _differences(baseline, second)
    sign = math.copysign(1.0, sum(gaps))
    return _within(about, _differences(first, second), [FOLLOWING * sign * gap for gap in gaps])


def _within(about: str, differences: Sequence[float], margins: Sequence[float]) -> Comparison:
    """That differences lie between −margin and margin: two one-sided tests, of which the weaker counts."""
    sides = [[m + sign * d for d, m in zip(differences, margins, strict=True)] for sign in (1, -1)]
    effect = min((_effect(side) for side in sides), key=lambda one: -math.inf if math.isnan(one) else one)
    return Comparison(about, *_summary(differences), effect=effect, margin=_mean(margins))


def always(about: str, values: Sequence[float], slack: float) -> Comparison:
    """What a theorem says of every repetition: that `values` are positive, up to the `slack` of rounding."""
    # What is not a number is an exception, too.
    return Comparison(about, *_summary(values), exceptions=sum(not value >= -slack for value in values))


def always_vanishes(about: str, values: Sequence[float], slack: float) -> Comparison:
    """What a theorem says of every repetition: that `values` are 0, up to the `slack` of rounding."""
    return Comparison(about, *_summary(values), exceptions=sum(not abs(value) <= slack for value in values))


def _differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("a part of a claim needs at least one repetition, got none")
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation; NaN of a single value."""
    if len(values) < 2:
        return math.nan
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _summary(values: Sequence[float]) -> tuple[float, float | None, int]:
    """Mean, half of its 95 % interval, and how many there are."""
    from scipy import stats

    mean, n = _mean(values), len(values)
    if n < FEWEST:
        return mean, None, n
    return mean, float(stats.t.ppf(0.975, n - 1)) * _deviation(values) / math.sqrt(n), n


def _effect(values: Sequence[float]) -> float:
    """Mean over standard deviation; infinite where nothing varies, and 0 where nothing differs besides."""
    mean, deviation = _mean(values), _deviation(values)
    if deviation == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / deviation
