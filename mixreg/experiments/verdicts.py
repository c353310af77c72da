"""What measurements say of a claim: supported, contradicted, or undecided, and then how many repetitions would decide.

The p-values of a claim's m parts are corrected for their number by Holm's step-down procedure: in increasing order,

    p'_(k) = max_{j ≤ k} min(1, (m − j + 1) · p_(j)).

A part is *supported* if p' < 0.05 and its mean is on the claimed side (for equality: within the margin), *contradicted*
if p' < 0.05 and it is on the other side (outside the margin), and *undecided* otherwise: what is not significant has
not failed. More repetitions of all parts, with the means and spreads as they were measured, would decide it in the end.

A theorem is contradicted by one repetition in which it does not hold, and supported without any. A claim is supported
if every part is, contradicted if one is, and undecided otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixreg.experiments.claims import Comparison

LEVEL = 0.05
# Fewer differences than this say nothing about chance; more repetitions than that nobody carries out.
FEWEST, MOST = 3, 1000

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_JUDGED = "supported", "contradicted", "undecided", "not judged"
SIGNS = {SUPPORTED: "✓", CONTRADICTED: "✗", UNDECIDED: "?", NOT_JUDGED: "–"}


@dataclass(frozen=True)
class Verdict:
    """What is said of one part.

    Attributes:
        name: supported, contradicted, undecided or not judged.
        corrected: the p-value after Holm's correction; None where nothing was tested.
        leans: supported or contradicted, if it is undecided and tested: what the measured mean speaks for.
        needed: the repetitions that would decide what is undecided; None if more than `MOST`, or not known.
    """

    name: str
    corrected: float | None = None
    leans: str | None = None
    needed: int | None = None


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the order given.

    >>> holm([0.02, 0.01, 0.5])
    [0.04, 0.03, 0.5]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def judge(parts: Sequence[Comparison], is_judged: bool = True) -> tuple[Verdict, ...]:
    """The parts of one claim; all but theorems are left alone unless `is_judged`."""
    others = [part for part in parts if not part.is_theorem]
    corrected = iter(_corrected_at(0, others))
    found = []
    for part in parts:
        if part.is_theorem:
            found.append(Verdict(CONTRADICTED if part.exceptions else SUPPORTED))
        elif not is_judged:
            found.append(Verdict(NOT_JUDGED))
        else:
            found.append(_verdict(part, next(corrected), others))
    return tuple(found)


def _verdict(part: Comparison, corrected: float, parts: Sequence[Comparison]) -> Verdict:
    if not part.is_tested:
        return Verdict(UNDECIDED)
    side = SUPPORTED if part.effect > 0 else CONTRADICTED
    if corrected < LEVEL:
        return Verdict(side, corrected)
    return Verdict(UNDECIDED, corrected, side, needed(part, parts))


def _corrected_at(repetitions: int, parts: Sequence[Comparison]) -> list[float]:
    """Corrected p-values of parts that were repeated so often, if they were not repeated more often."""
    return holm([part.p_value_at(max(repetitions, part.repetitions)) for part in parts])


def needed(part: Comparison, parts: Sequence[Comparison]) -> int | None:
    """The smallest number of repetitions of all `parts` that would decide one of them; None if more than `MOST`."""
    place = [one is part for one in parts].index(True)

    def is_decided(repetitions: int) -> bool:
        return _corrected_at(repetitions, parts)[place] < LEVEL

    # With more repetitions all p-values fall.
    least = bisect_left(range(MOST + 1), True, lo=min(part.repetitions, MOST + 1), key=is_decided)
    return least if least <= MOST else None


def overall(verdicts: Sequence[Verdict]) -> str:
    """The verdict on a claim with these parts."""
    names = {verdict.name for verdict in verdicts} or {NOT_JUDGED}
    return next(name for name in (CONTRADICTED, NOT_JUDGED, UNDECIDED, SUPPORTED) if name in names)


def part_words(verdict: Verdict) -> str:
    """A verdict on a part, with the repetitions that would decide it."""
    if verdict.name == NOT_JUDGED:
        return "not judged at this scale"
    return f"{UNDECIDED} ({_needed_words([verdict])})" if verdict.name == UNDECIDED else verdict.name


def claim_words(verdicts: Sequence[Verdict]) -> str:
    """A verdict on a claim: how many parts are which, and the repetitions that would decide it."""
    if not verdicts:
        return "not judged: nothing was measured"
    name, counts = overall(verdicts), Counter(verdict.name for verdict in verdicts)
    if len(verdicts) == 1 or name == NOT_JUDGED:
        return part_words(next(verdict for verdict in verdicts if verdict.name == name))
    if name == SUPPORTED:
        return f"{SUPPORTED} {len(verdicts)} of {len(verdicts)}"
    if name == CONTRADICTED:
        return ", ".join(
            f"{one} {counts[one]}" for one in (CONTRADICTED, SUPPORTED, UNDECIDED, NOT_JUDGED) if counts[one]
        )
    told = f"{counts[SUPPORTED]} of {len(verdicts)} supported, {counts[UNDECIDED]} undecided"
    return f"{UNDECIDED}: {told} ({_needed_words(verdicts)})"


def _needed_words(verdicts: Sequence[Verdict]) -> str:
    """How many repetitions would decide a claim whose parts are supported or undecided, and which way."""
    undecided = [verdict for verdict in verdicts if verdict.name == UNDECIDED]
    if any(verdict.leans is None for verdict in undecided):
        return f"at least {FEWEST} repetitions are needed"
    # One part that is contradicted decides a claim; to support it takes all of them.
    against = [verdict.needed or MOST + 1 for verdict in undecided if verdict.leans == CONTRADICTED]
    least = min(against) if against else max(verdict.needed or MOST + 1 for verdict in undecided)
    if least > MOST:
        return f"more than {MOST:,} repetitions would be needed"
    return f"{least} repetitions would decide {'against' if against else 'for'} it"


def marked(verdict: str, words: str) -> str:
    """Words with the sign of their verdict, for every table."""
    return f"{SIGNS[verdict]} {words}"
