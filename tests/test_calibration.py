"""Every measure against an implementation that shares nothing with it."""

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss

from mixreg import calibration as cal
from mixreg.calibration import predictions


def problem(n: int = 500, c: int = 5, scale: float = 2.0, seed: int = 0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, c, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator).squeeze(1)
    return logits.to(dtype), labels


def plain_ece(confidence: np.ndarray, hit: np.ndarray, bins: int) -> tuple[float, float]:
    """(ECE, MCE) sample by sample: bin ((b−1)/B, b/B]."""
    gaps, total = [], 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if b == 0:
            inside |= confidence == 0
        if inside.any():
            gaps.append(abs(confidence[inside].mean() - hit[inside].mean()))
            total += inside.mean() * gaps[-1]
    return total, max(gaps)


def top(logits: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    p = np.exp(logits.double().numpy() - logits.double().numpy().max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return p.max(1), (p.argmax(1) == labels.numpy()).astype(float)


@pytest.mark.parametrize("bins", [1, 7, 15, 40])
@pytest.mark.parametrize("c", [2, 5, 30])
def test_ece_and_mce(bins, c) -> None:
    logits, labels = problem(c=c)
    ece, mce = plain_ece(*top(logits, labels), bins)
    assert cal.expected_calibration_error(logits, labels, bins).item() == pytest.approx(ece, abs=1e-12)
    assert cal.maximum_calibration_error(logits, labels, bins).item() == pytest.approx(mce, abs=1e-12)
    p = logits.softmax(1)
    theirs = tm.multiclass_calibration_error(p, labels, c, n_bins=bins, norm="l1")
    assert cal.expected_calibration_error(logits, labels, bins).item() == pytest.approx(theirs.item(), abs=1e-6)
    theirs = tm.multiclass_calibration_error(p, labels, c, n_bins=bins, norm="max")
    assert cal.maximum_calibration_error(logits, labels, bins).item() == pytest.approx(theirs.item(), abs=1e-6)


def test_confidence_of_exactly_one_belongs_to_the_last_bin() -> None:
    # torchmetrics#3510: [.95, 1.0] against [1, 0] is 0.475, not 0.525.
    p, labels = torch.tensor([[0.05, 0.95], [0.0, 1.0]]), torch.tensor([1, 0])
    for equal_mass in (False, True):
        bins = 1 if equal_mass else 15
        value = cal.expected_calibration_error(p, labels, bins, equal_mass=equal_mass, probabilities=True)
        assert value.item() == pytest.approx(0.475, abs=1e-7)
    logits = torch.tensor([[0.0, float(np.log(0.95 / 0.05))], [0.0, 200.0]])
    assert cal.expected_calibration_error(logits, labels).item() == pytest.approx(0.475, abs=1e-6)
    metric = cal.ExpectedCalibrationError(probabilities=True)
    metric.update(p[:1], labels[:1])
    metric.update(p[1:], labels[1:])
    assert metric.compute().item() == pytest.approx(0.475, abs=1e-7)
    histogram = cal.reliability(p, labels, probabilities=True)
    assert histogram.count.tolist() == [0] * 14 + [2]


def test_bin_edges_belong_to_the_lower_bin() -> None:
    p = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    counts = cal.confidence_histogram(p, 4, probabilities=True)
    assert counts.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("bins", [3, 7, 15, 20, 25, 50, 100])
def test_every_exact_edge_belongs_to_the_lower_bin(bins) -> None:
    for k in range((bins + 1) // 2 + 1, bins + 1):
        p = torch.tensor([[k / bins, 1 - k / bins]], dtype=torch.float64)
        counts = cal.confidence_histogram(p, bins, probabilities=True)
        assert counts.nonzero().item() == k - 1


def plain_equal_mass_ece(confidence: np.ndarray, hit: np.ndarray, bins: int) -> float:
    """One sample at a time: bin ⌊B r / n⌋ with r the number of strictly smaller confidences."""
    n = len(confidence)
    groups: dict[int, list[int]] = {}
    for i in range(n):
        groups.setdefault(int((confidence < confidence[i]).sum()) * bins // n, []).append(i)
    return sum(abs(confidence[g].sum() - hit[g].sum()) for g in groups.values()) / n


@given(n=st.integers(1, 120), bins=st.integers(1, 20), seed=st.integers(0, 50), rounding=st.sampled_from([1, 2, 8]))
def test_equal_mass_ece(n, bins, seed, rounding) -> None:
    logits, labels = problem(n, seed=seed)
    p = torch.from_numpy(logits.softmax(1).numpy().round(rounding))
    p[:, -1] += 1 - p.sum(1)
    p = p.clamp(min=0) / p.clamp(min=0).sum(1, keepdim=True)
    confidence = p.max(1).values.numpy()
    hit = (p.argmax(1) == labels).double().numpy()
    expected = plain_equal_mass_ece(confidence, hit, bins)
    value = cal.expected_calibration_error(p, labels, bins, equal_mass=True, probabilities=True)
    assert value.item() == pytest.approx(expected, abs=1e-12)
    order = torch.randperm(n)
    shuffled = cal.expected_calibration_error(p[order], labels[order], bins, equal_mass=True, probabilities=True)
    assert shuffled.item() == pytest.approx(expected, abs=1e-12)


def test_equal_mass_bins_without_ties_are_quantiles() -> None:
    logits, labels = problem(600)
    confidence, hit = top(logits, labels)
    order = np.argsort(confidence)
    parts = [(confidence[g], hit[g]) for g in np.array_split(order, 15)]
    expected = sum(len(c) / 600 * abs(c.mean() - h.mean()) for c, h in parts)
    value = cal.expected_calibration_error(logits, labels, 15, equal_mass=True)
    assert value.item() == pytest.approx(expected, abs=1e-12)


def test_classwise_ece() -> None:
    logits, labels = problem(c=4)
    p = logits.softmax(1).numpy()
    expected = np.mean([plain_ece(p[:, k], (labels == k).double().numpy(), 15)[0] for k in range(4)])
    assert cal.classwise_calibration_error(logits, labels).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores(dtype) -> None:
    logits, labels = problem(dtype=dtype)
    p = logits.double().softmax(1).numpy()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert cal.accuracy(logits, labels).item() == accuracy_score(labels, logits.double().argmax(1))
    nll = log_loss(labels, p / p.sum(1, keepdims=True), labels=range(5))
    assert cal.negative_log_likelihood(logits, labels).item() == pytest.approx(nll, abs=tolerance)
    brier = ((p - np.eye(5)[labels.numpy()]) ** 2).sum(1).mean()
    assert cal.brier_score(logits, labels).item() == pytest.approx(brier, abs=tolerance)


def test_reliability_and_histogram() -> None:
    logits, labels = problem()
    confidence, hit = top(logits, labels)
    shown = cal.reliability(logits, labels, 10)
    counts, edges = np.histogram(confidence, 10, (0, 1))
    np.testing.assert_array_equal(shown.count, counts)
    np.testing.assert_array_equal(cal.confidence_histogram(logits, 10), counts)
    np.testing.assert_allclose([*shown.lower, shown.upper[-1]], edges, atol=1e-15)
    place = np.digitize(confidence, edges[1:-1])
    for b in range(10):
        if counts[b]:
            assert shown.accuracy[b].item() == pytest.approx(hit[place == b].mean(), abs=1e-12)
            assert shown.confidence[b].item() == pytest.approx(confidence[place == b].mean(), abs=1e-12)
        else:
            assert torch.isnan(shown.accuracy[b])
    expected, _ = plain_ece(confidence, hit, 10)
    assert shown.expected_error.item() == pytest.approx(expected, abs=1e-12)


def test_ties_are_resolved_like_argmax() -> None:
    # An untrained network: all logits equal. The first class wins, not whichever the label is.
    logits, labels = torch.zeros(12, 4), torch.arange(12) % 4
    assert cal.accuracy(logits, labels).item() == 0.25
    assert cal.expected_calibration_error(logits, labels).item() == pytest.approx(0.0, abs=1e-7)
    # Distinct logits whose float32 probabilities are equal: the logits decide.
    close = torch.tensor([[0.0, 1e-12]], dtype=torch.float64).float()
    assert close.softmax(1)[0, 0] == close.softmax(1)[0, 1]
    assert cal.accuracy(close, torch.tensor([1])).item() == 1.0
    assert cal.accuracy(close, torch.tensor([0])).item() == 0.0


def test_pieces_do_not_matter(monkeypatch) -> None:
    logits, labels = problem(c=7)
    measures = (
        cal.accuracy,
        cal.brier_score,
        cal.classwise_calibration_error,
        cal.expected_calibration_error,
        cal.negative_log_likelihood,
    )
    whole = [measure(logits, labels).item() for measure in measures]
    monkeypatch.setattr(predictions, "CHUNK_ELEMENTS", 50)
    assert [measure(logits, labels).item() for measure in measures] == pytest.approx(whole, abs=1e-14)


def test_one_logit_for_two_classes() -> None:
    u, labels = torch.randn(50, dtype=torch.float64), torch.arange(50) % 2
    two = torch.stack([torch.zeros(50, dtype=torch.float64), u], 1)
    for form in (u, u.unsqueeze(1)):
        assert cal.expected_calibration_error(form, labels) == cal.expected_calibration_error(two, labels)
    torch.testing.assert_close(
        cal.brier_score(torch.sigmoid(u), labels, probabilities=True), cal.brier_score(two, labels)
    )


def test_probabilities_and_logits_agree() -> None:
    logits, labels = problem()
    p = logits.softmax(1)
    for measure in (cal.accuracy, cal.brier_score, cal.expected_calibration_error, cal.negative_log_likelihood):
        torch.testing.assert_close(measure(p, labels, probabilities=True), measure(logits, labels))


LOGITS, LABELS = problem(6)


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        (LOGITS, LABELS[:5], ValueError, r"labels of shape \(6,\), got \(5,\)"),
        (LOGITS, LABELS + 3, ValueError, r"0\.\.4 for 5 columns"),
        (LOGITS, LABELS - 5, ValueError, r"0\.\.4 for 5 columns"),
        (LOGITS, LABELS.float(), TypeError, "integers, got torch.float32"),
        (LOGITS, LABELS.tolist(), TypeError, "integers, got list"),
        (LOGITS.long(), LABELS, TypeError, "floating-point tensor, got torch.int64"),
        (LOGITS.numpy(), LABELS, TypeError, "floating-point tensor, got ndarray"),
        (LOGITS[:0], LABELS[:0], ValueError, "no sample"),
        (LOGITS[None], LABELS, ValueError, "n × c"),
        (LOGITS.index_fill(0, torch.tensor([4]), torch.nan), LABELS, ValueError, "not finite at sample 4"),
    ],
)
def test_wrong_input(logits, labels, error, message) -> None:
    with pytest.raises(error, match=message):
        cal.expected_calibration_error(logits, labels)
    metric = cal.ExpectedCalibrationError()
    metric.update(LOGITS, LABELS)
    before = metric.sums.clone()
    with pytest.raises(error, match=message):
        metric.update(logits, labels)
    assert torch.equal(metric.sums, before)


@pytest.mark.parametrize("name", sorted(set(cal.__all__) & {"brier_score", "negative_log_likelihood", "accuracy"}))
def test_nan_is_named_by_every_score(name) -> None:
    bad = LOGITS.index_fill(0, torch.tensor([3]), torch.nan)
    with pytest.raises(ValueError, match="not finite at sample 3"):
        getattr(cal, name)(bad, LABELS)
    with pytest.raises(ValueError, match="not finite at sample 3"):
        cal.classwise_calibration_error(bad, LABELS)


def test_scores_keep_their_digits() -> None:
    sure = torch.tensor([[10.0, 0.0, 0.0]])
    exact = cal.brier_score(sure.double(), torch.tensor([0])).item()
    assert cal.brier_score(sure, torch.tensor([0])).item() == pytest.approx(exact, rel=1e-2)
    logits, labels = problem(dtype=torch.float32)
    expected = cal.negative_log_likelihood((logits + 512).double(), labels)
    assert cal.negative_log_likelihood(logits + 512, labels).item() == pytest.approx(expected.item(), abs=1e-6)


def test_other_wrong_input() -> None:
    for bins in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="bins must be a positive integer"):
            cal.expected_calibration_error(LOGITS, LABELS, bins)
        with pytest.raises(ValueError, match="bins must be a positive integer"):
            cal.ExpectedCalibrationError(bins)
    with pytest.raises(ValueError, match="sum to 1"):
        cal.brier_score(LOGITS, LABELS, probabilities=True)
    with pytest.raises(ValueError, match="seen no sample"):
        cal.BrierScore().compute()
    with pytest.raises(ValueError, match="expected logits of 4 classes, got 5"):
        cal.ClasswiseCalibrationError(4).update(LOGITS, LABELS)
