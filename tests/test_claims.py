"""Verdicts: against SciPy's own tests, on data where the answer is known."""

import numpy as np
import pytest
from scipy import stats

from mixreg.experiments.claims import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    Claim,
    always,
    exceeds,
    is_positive,
    stays_within,
    vanishes,
)


def test_p_values_are_those_of_a_paired_t_test() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(0.3, 1, 20), random.normal(0, 1, 20)
    part = exceeds("a > b", a.tolist(), b.tolist())
    expected = stats.ttest_rel(a, b, alternative="greater")
    assert part.p_value == pytest.approx(expected.pvalue)
    low, high = stats.ttest_rel(a, b).confidence_interval()
    assert part.difference + part.half_width == pytest.approx(high)
    assert part.difference - part.half_width == pytest.approx(low)


def test_verdicts() -> None:
    up, down = [1.0, 1.1, 0.9, 1.05], [0.0, 0.1, 0.05, -0.1]
    assert exceeds("", up, down).verdict == REPRODUCED
    assert exceeds("", down, up).verdict == NOT_REPRODUCED
    assert exceeds("", up[:2], down[:2]).verdict == NOT_TESTABLE
    assert exceeds("", [1.0] * 3, [0.0] * 3).verdict == REPRODUCED
    assert exceeds("", [1.0] * 3, [1.0] * 3).verdict == NOT_REPRODUCED
    claim = Claim("x", "x", "here", (exceeds("", up, down), exceeds("", down, up)))
    assert claim.verdict == NOT_REPRODUCED
    assert claim.to_json()["verdict"] == NOT_REPRODUCED
    assert Claim("x", "x", "here", (exceeds("", up, down), exceeds("", up[:2], down[:2]))).verdict == NOT_TESTABLE


def test_agreement_needs_evidence() -> None:
    random = np.random.default_rng(1)
    a = random.normal(0, 1, 30)
    close, far = a + random.normal(0.01, 0.05, 30), a + random.normal(0.5, 0.05, 30)
    assert stays_within("", a.tolist(), close.tolist(), 0.1).verdict == REPRODUCED
    assert stays_within("", a.tolist(), far.tolist(), 0.1).verdict == NOT_REPRODUCED
    vague = a + random.normal(0, 2, 30)
    assert stays_within("", a.tolist(), vague.tolist(), 0.1).verdict == NOT_REPRODUCED


def test_differences_are_compared_with_nothing() -> None:
    values, nothing = [0.3, 0.1, 0.25, 0.2], [0.0] * 4
    assert is_positive("x", values) == exceeds("x", values, nothing)
    assert vanishes("x", values, 0.5) == stays_within("x", values, nothing, 0.5)


def test_a_theorem_allows_no_exception() -> None:
    gaps = [0.3, 0.2, 0.4, 0.3, -1e-9]
    assert always("", gaps, 1e-7).verdict == REPRODUCED
    assert always("", gaps, 1e-12).verdict == NOT_REPRODUCED
    assert always("", gaps, 1e-7).difference == pytest.approx(np.mean(gaps))
    assert always("", gaps[:2], 1e-7).verdict == NOT_TESTABLE


@pytest.mark.parametrize("seed", range(3))
def test_false_alarms_are_rare(seed) -> None:
    """Where nothing differs, about one claim in twenty is called reproduced."""
    random = np.random.default_rng(seed)
    verdicts = [exceeds("", random.normal(size=5).tolist(), random.normal(size=5).tolist()).verdict for _ in range(400)]
    assert 5 <= verdicts.count(REPRODUCED) <= 40
