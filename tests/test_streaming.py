"""Streaming measures equal the functions, whatever the batches, the merging and the number of processes."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import run_processes
from test_calibration import problem

from mixreg import calibration as cal

PAIRS = {
    "accuracy": (cal.Accuracy, cal.accuracy),
    "brier": (cal.BrierScore, cal.brier_score),
    "nll": (cal.NegativeLogLikelihood, cal.negative_log_likelihood),
    "ece": (cal.ExpectedCalibrationError, cal.expected_calibration_error),
    "mce": (cal.MaximumCalibrationError, cal.maximum_calibration_error),
    "classwise": (lambda: cal.ClasswiseCalibrationError(5), cal.classwise_calibration_error),
    "histogram": (cal.ConfidenceHistogram, lambda logits, labels: cal.confidence_histogram(logits)),
    "reliability": (lambda: cal.ReliabilityHistogram(7), lambda u, y: cal.reliability(u, y, 7)),
}


def numbers(value) -> torch.Tensor:
    if isinstance(value, cal.Reliability):
        return torch.cat([value.count, value.confidence, value.accuracy, value.upper])
    return value.double()


@pytest.mark.parametrize("name", PAIRS)
def test_batches_add_up(name) -> None:
    logits, labels = problem()
    make, function = PAIRS[name]
    metric = make()
    for start, stop in ((0, 1), (1, 90), (90, 500)):
        batch = logits[start:stop], labels[start:stop]
        before = metric.sums.clone()
        batch_value = metric.value(metric.batch_sums(*batch))
        torch.testing.assert_close(numbers(batch_value), numbers(function(*batch)), rtol=0, atol=1e-12, equal_nan=True)
        assert torch.equal(metric.sums, before)
        metric.update(*batch)
    whole = numbers(function(logits, labels))
    torch.testing.assert_close(numbers(metric.compute()), whole, rtol=0, atol=1e-12, equal_nan=True)
    metric.reset()
    with pytest.raises(ValueError, match="seen no sample"):
        metric.compute()
    metric.update(logits[:10], labels[:10])
    expected = numbers(function(logits[:10], labels[:10]))
    torch.testing.assert_close(numbers(metric.compute()), expected, rtol=0, atol=1e-12, equal_nan=True)


@given(cut=st.integers(1, 499), name=st.sampled_from(sorted(PAIRS)))
def test_merge_is_concatenation(cut, name) -> None:
    logits, labels = problem()
    make, function = PAIRS[name]
    left, right = make(), make()
    left.update(logits[:cut], labels[:cut])
    right.update(logits[cut:], labels[cut:])
    kept = right.sums.clone()
    assert left.merge(right) is left
    whole = numbers(function(logits, labels))
    torch.testing.assert_close(numbers(left.compute()), whole, rtol=0, atol=1e-12, equal_nan=True)
    assert torch.equal(right.sums, kept)


def test_state_is_small_and_constant() -> None:
    metric = cal.ExpectedCalibrationError()
    size = metric.sums.nbytes
    assert size < 4096
    for seed in range(3):
        metric.update(*problem(2000, 50, seed=seed))
    assert metric.sums.nbytes == size


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_float64_whatever_the_logits_are(dtype) -> None:
    # Float16 cannot count past 2048.
    logits, labels = problem(3000, dtype=dtype)
    metric = cal.Accuracy()
    for part in torch.arange(3000).split(100):
        metric.update(logits[part], labels[part])
    assert metric.sums.dtype == torch.float64
    assert metric.sums[1] == 3000
    assert metric.compute() == cal.accuracy(logits.double(), labels)


def test_sums_move_to_a_device_and_batches_follow() -> None:
    metric = cal.ExpectedCalibrationError()
    assert metric.to("meta") is metric
    metric.update(*problem())
    assert metric.sums.device.type == "meta"
    assert metric.sums.dtype == torch.float64
    metric.reset()
    assert metric.sums.device.type == "meta"


def test_inference_mode_may_begin_and_end_between_batches() -> None:
    logits, labels = problem()
    with torch.inference_mode():
        metric, other = cal.BrierScore(), cal.BrierScore()
        metric.update(logits[:100], labels[:100])
        other.update(logits[100:200], labels[100:200])
    metric.merge(other).update(logits[200:], labels[200:])
    torch.testing.assert_close(metric.compute(), cal.brier_score(logits, labels), rtol=0, atol=1e-12)
    metric.reset()
    metric.update(logits, labels)
    assert metric.compute() == cal.brier_score(logits, labels)


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
def test_equal_mass_streaming_is_close_to_exact(scale) -> None:
    logits, labels = problem(20_000, 10, scale)
    metric = cal.ExpectedCalibrationError(equal_mass=True)
    for part in torch.arange(20_000).split(700):
        metric.update(logits[part], labels[part])
    exact = cal.expected_calibration_error(logits, labels, equal_mass=True).item()
    # A sample can be in the wrong bin only if it shares a cell with an edge: bound the difference by their mass.
    cell_share = (metric.sums[:, 0] / 20_000).max().item()
    assert abs(metric.compute().item() - exact) <= 2 * (metric.bins - 1) * cell_share
    assert abs(metric.compute().item() - exact) <= 0.002


def test_only_equal_kinds_merge() -> None:
    with pytest.raises(ValueError, match=r"cannot merge BrierScore"):
        cal.Accuracy().merge(cal.BrierScore())
    with pytest.raises(ValueError, match=r"bins=10.* into ExpectedCalibrationError\(bins=15"):
        cal.ExpectedCalibrationError(15).merge(cal.ExpectedCalibrationError(10))
    with pytest.raises(ValueError, match="probabilities=True"):
        cal.Accuracy().merge(cal.Accuracy(probabilities=True))


def _share(rank: int) -> list[torch.Tensor]:
    logits, labels = problem()
    part = slice(0, 123) if rank == 0 else slice(123, 500)
    values = []
    for make, _ in PAIRS.values():
        metric = make()
        metric.update(logits[part], labels[part])
        values.append(numbers(metric.compute()))
        # Computing twice must not count anything twice.
        values.append(numbers(metric.compute()))
    local = cal.Accuracy()
    local.update(logits[part], labels[part])
    values.append(local.value(local.sums))
    return values


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    logits, labels = problem()
    expected = [numbers(function(logits, labels)) for _, function in PAIRS.values() for _ in range(2)]
    for rank, results in enumerate(run_processes(_share, 2, tmp_path)):
        for got, want in zip(results[:-1], expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-12, equal_nan=True)
        part = slice(0, 123) if rank == 0 else slice(123, 500)
        torch.testing.assert_close(results[-1], cal.accuracy(logits[part], labels[part]))


def test_one_process_may_have_seen_nothing(tmp_path: Path) -> None:
    results = run_processes(_one_rank_only, 2, tmp_path)
    assert results[0] == results[1] == cal.brier_score(*problem())


def _one_rank_only(rank: int) -> torch.Tensor:
    metric = cal.BrierScore()
    if rank == 1:
        metric.update(*problem())
    return metric.compute()
