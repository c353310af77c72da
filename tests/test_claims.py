"""Parts of claims and verdicts on them: against SciPy's own tests, other ways to compute the same, and brute force."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from mixreg.experiments.claims import (
    Claim,
    Comparison,
    always,
    always_vanishes,
    exceeds,
    follows,
    is_positive,
    stays_within,
    vanishes,
)
from mixreg.experiments.verdicts import CONTRADICTED, MOST, NOT_JUDGED, SUPPORTED, UNDECIDED, holm, marked

# Clearly positive, clearly negative, and neither.
UP, DOWN, OPEN = [1.0, 1.1, 0.9, 1.05], [-1.0, -1.1, -0.9, -1.05], [0.3, -0.1, 0.2, 0.1]


def claim(*parts: Comparison, is_judged: bool = True) -> Claim:
    return Claim("x", "x", "here", parts, is_judged)


def verdicts(*parts: Comparison) -> list[str]:
    return [verdict.name for verdict in claim(*parts).verdicts]


def closed_test(p_values: list[float]) -> list[float]:
    """Holm's corrected p-values another way: a part is rejected if every set of parts that holds it is (Bonferroni)."""
    places = range(len(p_values))
    sets = [chosen for size in places for chosen in combinations(places, size + 1)]
    return [
        max(min(1.0, len(chosen) * min(p_values[k] for k in chosen)) for chosen in sets if place in chosen)
        for place in places
    ]


def exactly(mean: float, deviation: float, n: int) -> np.ndarray:
    """Some n numbers with this mean and standard deviation."""
    values = np.random.default_rng(n).normal(size=n)
    return mean + deviation * (values - values.mean()) / values.std(ddof=1)


class TestParts:
    def test_directions_are_tested_two_sidedly(self) -> None:
        random = np.random.default_rng(0)
        a, b = random.normal(0.3, 1, 20), random.normal(0, 1, 20)
        part = exceeds("a > b", a.tolist(), b.tolist())
        expected = stats.ttest_rel(a, b)
        assert part.p_value == pytest.approx(expected.pvalue)
        low, high = expected.confidence_interval()
        assert part.difference + part.half_width == pytest.approx(high)
        assert part.difference - part.half_width == pytest.approx(low)
        assert exceeds("b > a", b.tolist(), a.tolist()).p_value == pytest.approx(expected.pvalue)

    @pytest.mark.parametrize("mean", [-0.8, -0.3, 0.0, 0.1, 0.45, 0.6, 2.0])
    def test_equality_is_two_one_sided_tests(self, mean: float) -> None:
        d, margin = np.random.default_rng(1).normal(mean, 0.3, 7), 0.4
        part = stays_within("", (d + 5).tolist(), [5.0] * 7, margin)
        above = stats.ttest_1samp(d, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(d, margin, alternative="less").pvalue
        if abs(d.mean()) < margin:
            assert part.p_value == pytest.approx(max(above, below))
            assert part.effect > 0
        else:
            outside = stats.ttest_1samp(abs(d.mean()) / d.mean() * d, margin, alternative="greater").pvalue
            assert part.p_value == pytest.approx(outside)
            assert part.effect < 0
        assert part.margin == pytest.approx(margin)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_what_follows_is_held_against_the_gap_of_each_repetition(self, sign: int) -> None:
        random = np.random.default_rng(2)
        second = random.normal(0, 1, 8)
        baseline, first = second + sign * random.normal(1, 0.2, 8), second + random.normal(0.05, 0.3, 8)
        part = follows("", first.tolist(), second.tolist(), baseline.tolist())
        margins = sign * (baseline - second) / 2
        tests = [stats.ttest_rel(margins, s * (first - second), alternative="greater").pvalue for s in (1, -1)]
        assert part.p_value == pytest.approx(max(tests))
        assert part.margin == pytest.approx(margins.mean())
        assert part.difference == pytest.approx((first - second).mean())

    def test_a_gap_that_is_the_same_in_every_repetition_is_a_margin(self) -> None:
        d, second = [0.1, -0.05, 0.2, 0.12], [1.0, 2.0, 3.0, 4.0]
        first, baseline = [a + b for a, b in zip(d, second, strict=True)], [b - 0.6 for b in second]
        assert follows("", first, second, baseline).p_value == pytest.approx(
            stays_within("", first, second, 0.3).p_value
        )

    def test_differences_are_compared_with_nothing(self) -> None:
        values, nothing = [0.3, 0.1, 0.25, 0.2], [0.0] * 4
        assert is_positive("x", values) == exceeds("x", values, nothing)
        assert vanishes("x", values, 0.5) == stays_within("x", values, nothing, 0.5)

    def test_a_part_needs_a_repetition(self) -> None:
        with pytest.raises(ValueError, match="needs at least one repetition, got none"):
            is_positive("", [])


class TestHolm:
    def test_by_hand(self) -> None:
        assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
        assert holm([0.012, 0.001, 0.02, 0.9]) == pytest.approx([0.036, 0.004, 0.04, 0.9])
        assert holm([0.5, 0.6]) == [1.0, 1.0]
        assert holm([0.02]) == [0.02]
        assert holm([]) == []

    def test_it_is_the_closed_bonferroni_test(self) -> None:
        random = np.random.default_rng(0)
        for count in range(1, 7):
            p_values = (random.uniform(size=count) ** 3).tolist()
            assert holm(p_values) == pytest.approx(closed_test(p_values))

    def test_parts_of_a_claim_are_corrected_for_their_number(self) -> None:
        values = exactly(1, 1, 8).tolist()
        alone = stats.ttest_1samp(values, 0).pvalue
        assert 0.01 < alone < 0.05
        assert verdicts(is_positive("", values)) == [SUPPORTED]
        assert verdicts(is_positive("", values), is_positive("", OPEN)) == [UNDECIDED, UNDECIDED]
        assert verdicts(is_positive("", values), is_positive("", UP)) == [SUPPORTED, SUPPORTED]
        three = claim(*[is_positive("", values)] * 3)
        assert [verdict.corrected for verdict in three.verdicts] == pytest.approx([3 * alone] * 3)
        assert three.verdict == UNDECIDED


class TestVerdicts:
    def test_of_parts(self) -> None:
        assert verdicts(is_positive("", UP)) == [SUPPORTED]
        assert verdicts(is_positive("", DOWN)) == [CONTRADICTED]
        assert verdicts(is_positive("", OPEN)) == [UNDECIDED]
        assert verdicts(is_positive("", [1.0] * 3)) == [SUPPORTED]
        assert verdicts(is_positive("", [0.0] * 3)) == [UNDECIDED]
        assert verdicts(is_positive("", [math.nan, 1.0, 1.1])) == [UNDECIDED]

    def test_of_equality(self) -> None:
        random = np.random.default_rng(1)
        a = random.normal(0, 1, 30)
        for noise, expected in ((0.01, SUPPORTED), (0.5, CONTRADICTED), (-0.5, CONTRADICTED)):
            assert verdicts(stays_within("", a.tolist(), (a + random.normal(noise, 0.05, 30)).tolist(), 0.1)) == [
                expected
            ]
        assert verdicts(stays_within("", a.tolist(), (a + random.normal(0, 2, 30)).tolist(), 0.1)) == [UNDECIDED]

    def test_of_claims(self) -> None:
        up, down, unclear = is_positive("", UP), is_positive("", DOWN), is_positive("", OPEN)
        assert claim(up, up).verdict == SUPPORTED
        assert claim(up, down).verdict == claim(up, unclear, down).verdict == CONTRADICTED
        assert claim(up, unclear).verdict == UNDECIDED
        assert claim().verdict == NOT_JUDGED
        assert claim(up, down).to_json()["verdict"] == CONTRADICTED
        assert [part["verdict"] for part in claim(up, down).to_json()["parts"]] == [SUPPORTED, CONTRADICTED]

    def test_too_few_repetitions_decide_nothing(self) -> None:
        few = claim(is_positive("", UP), is_positive("", UP[:2]))
        assert few.verdict == UNDECIDED
        assert few.words == "undecided: 1 of 2 supported, 1 undecided (at least 3 repetitions are needed)"
        (part,) = claim(is_positive("", UP[:1])).to_json()["parts"]
        assert (part["p_value"], part["half_width"], part["needed"]) == (None, None, None)

    def test_a_theorem_allows_no_exception(self) -> None:
        gaps = [0.3, 0.2, 0.4, 0.3, -1e-9]
        assert verdicts(always("", gaps, 1e-7)) == [SUPPORTED]
        assert verdicts(always("", gaps, 1e-12)) == [CONTRADICTED]
        assert always("", gaps, 1e-12).exceptions == 1
        assert always("", gaps, 1e-7).difference == pytest.approx(np.mean(gaps))
        # Neither chance nor the number of repetitions has a say.
        assert verdicts(always("", [1e-9, 5.0, -1e-9], 1e-8)) == verdicts(always("", [0.1], 0.0)) == [SUPPORTED]
        assert verdicts(always("", [0.3, math.nan], 1e-7)) == [CONTRADICTED]
        assert verdicts(always_vanishes("", [1e-9, -1e-9], 1e-8)) == [SUPPORTED]
        assert verdicts(always_vanishes("", [1e-9, -1e-7], 1e-8)) == [CONTRADICTED]
        assert verdicts(always_vanishes("", [math.nan], 1e-8)) == [CONTRADICTED]

    def test_only_theorems_are_judged_where_nothing_is(self) -> None:
        up, theorem, broken = is_positive("", UP), always("", UP, 0.0), always("", DOWN, 0.0)
        assert claim(up, is_judged=False).verdict == NOT_JUDGED
        assert claim(up, is_judged=False).words == "not judged at this scale"
        assert claim(theorem, is_judged=False).verdict == SUPPORTED
        assert claim(up, theorem, is_judged=False).verdict == NOT_JUDGED
        assert claim(up, broken, is_judged=False).words == "contradicted 1, not judged 1"

    def test_theorems_do_not_count_among_the_parts_that_are_corrected_for(self) -> None:
        part = is_positive("", UP)
        assert claim(part, always("", UP, 0.0)).verdicts[0].corrected == part.p_value

    def test_words(self) -> None:
        up, down, unclear = is_positive("", UP), is_positive("", DOWN), is_positive("", OPEN)
        assert claim(up).words == "supported"
        assert claim(up, up, up).words == "supported 3 of 3"
        assert claim(up, down, up).words == "contradicted 1, supported 2"
        assert claim(unclear, down).words == "contradicted 1, undecided 1"
        assert claim().words == "not judged: nothing was measured"
        assert marked(SUPPORTED, "supported 3 of 3") == "✓ supported 3 of 3"

    @pytest.mark.parametrize("count", [1, 4])
    def test_false_alarms_are_rare(self, count: int) -> None:
        """Where nothing differs, about one claim in twenty has a part that is called something, however many it has."""
        random = np.random.default_rng(count)
        claims = [claim(*(is_positive("", random.normal(size=5).tolist()) for _ in range(count))) for _ in range(400)]
        wrong = sum(any(verdict.name != UNDECIDED for verdict in one.verdicts) for one in claims)
        assert 5 <= wrong <= 35

    @pytest.mark.parametrize("mean", [0.999, 1.001])
    def test_equality_is_wrong_as_rarely_at_its_margin(self, mean: float) -> None:
        random, wrong = np.random.default_rng(3), CONTRADICTED if mean < 1 else SUPPORTED
        found = [verdicts(vanishes("", random.normal(mean, 0.1, 5).tolist(), 1.0))[0] for _ in range(400)]
        assert 8 <= found.count(wrong) <= 35


class TestNeeded:
    """The repetitions that would decide, against data made to have the same mean and spread, one number at a time."""

    def brute_force(self, values: list[list[float]], place: int) -> int | None:
        """Of parts that claim to be positive."""
        means, deviations = np.mean(values, 1), np.std(values, 1, ddof=1)
        for n in range(len(values[0]), MOST + 1):
            data = [exactly(mean, deviation, n) for mean, deviation in zip(means, deviations, strict=True)]
            if closed_test([stats.ttest_1samp(one, 0).pvalue for one in data])[place] < 0.05:
                return n
        return None

    @pytest.mark.parametrize("sign", [1, -1])
    def test_of_one_part(self, sign: int) -> None:
        values = [sign * value for value in OPEN]
        (verdict,) = claim(is_positive("", values)).verdicts
        assert verdict.needed == self.brute_force([values], 0)
        assert verdict.leans == (SUPPORTED if sign > 0 else CONTRADICTED)

    def test_of_several_parts_that_grow_together(self) -> None:
        values = [OPEN, UP, [0.3, -0.2, 0.1, 0.05], [-0.3, 0.1, -0.2, 0.05]]
        found = claim(*(is_positive("", one) for one in values))
        expected = [self.brute_force(values, place) for place in range(4)]
        assert len(set(expected)) == 4
        assert [verdict.needed for verdict in found.verdicts] == [expected[0], None, expected[2], expected[3]]
        # One part would be contradicted: that decides the claim.
        open_words = f"{expected[3]} repetitions would decide against it"
        assert found.words == f"undecided: 1 of 4 supported, 3 undecided ({open_words})"
        # To support it takes both.
        pair = claim(is_positive("", OPEN), is_positive("", [0.3, 0.2, 0.1, -0.05]))
        assert all(verdict.leans == SUPPORTED for verdict in pair.verdicts)
        most = max(verdict.needed for verdict in pair.verdicts)
        assert pair.words == f"undecided: 0 of 2 supported, 2 undecided ({most} repetitions would decide for it)"

    @pytest.mark.parametrize("mean", [0.1, 0.4, -0.4])
    def test_of_equality(self, mean: float) -> None:
        margin, values = 0.3, exactly(mean, 0.5, 4)
        (verdict,) = claim(vanishes("", values.tolist(), margin)).verdicts
        for n in range(4, MOST):
            d = exactly(mean, 0.5, n)
            inside = [
                stats.ttest_1samp(d, -margin, alternative="greater").pvalue,
                stats.ttest_1samp(d, margin, alternative="less").pvalue,
            ]
            p_value = max(inside) if abs(mean) < margin else min(1 - p for p in inside)
            if p_value < 0.05:
                break
        assert verdict.needed == n
        assert verdict.leans == (SUPPORTED if abs(mean) < margin else CONTRADICTED)

    def test_what_nobody_carries_out(self) -> None:
        never = claim(is_positive("", [1.0, -1.0, 0.5, -0.5]))
        assert never.verdicts[0].needed is None
        assert never.words == "undecided (more than 1,000 repetitions would be needed)"
        many = claim(is_positive("", [1.0, -1.0] * 600))
        assert many.verdicts[0].needed is None
