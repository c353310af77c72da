"""The torchmetrics adapter with the real library: values are the functions', behaviour is torchmetrics'."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from test_calibration import problem
from test_streaming import PAIRS, numbers

from mixreg import calibration as cal

torchmetrics = pytest.importorskip("torchmetrics")
from mixreg.adapters.torchmetrics import CalibrationMetric  # noqa: E402

CLOSE = {"rtol": 0, "atol": 1e-12, "equal_nan": True}


def as_numbers(value) -> torch.Tensor:
    """A reliability comes as a dict of its tensors."""
    return numbers(cal.Reliability(**value) if isinstance(value, dict) else value)


@pytest.mark.parametrize("name", PAIRS)
def test_calling_gives_the_batch_and_compute_the_whole(name) -> None:
    logits, labels = problem()
    make, function = PAIRS[name]
    metric = CalibrationMetric(make())
    for start, stop in ((0, 1), (1, 90), (90, 500)):
        batch = logits[start:stop], labels[start:stop]
        torch.testing.assert_close(as_numbers(metric(*batch)), numbers(function(*batch)), **CLOSE)
    torch.testing.assert_close(as_numbers(metric.compute()), numbers(function(logits, labels)), **CLOSE)
    assert metric.update_count == 3
    metric.reset()
    assert not metric.update_called
    metric.update(logits[:10], labels[:10])
    torch.testing.assert_close(as_numbers(metric.compute()), numbers(function(logits[:10], labels[:10])), **CLOSE)


def test_the_measure_gives_its_settings_and_is_left_alone() -> None:
    logits, labels = problem()
    measure = cal.ExpectedCalibrationError(7, probabilities=True)
    measure.update(logits[:9].softmax(1), labels[:9])
    before = measure.sums.clone()
    metric = CalibrationMetric(measure)
    metric.update(logits.softmax(1), labels)
    torch.testing.assert_close(metric.compute(), cal.expected_calibration_error(logits, labels, 7), **CLOSE)
    assert torch.equal(measure.sums, before)
    assert str(metric) == ("CalibrationMetric(ExpectedCalibrationError(bins=7, equal_mass=False, probabilities=True))")


@pytest.mark.parametrize(
    ("measure", "better"),
    [(cal.Accuracy(), True), (cal.BrierScore(), False), (cal.ReliabilityHistogram(), None)],
)
def test_better_is_what_the_measure_says(measure, better) -> None:
    metric = CalibrationMetric(measure)
    assert metric.higher_is_better is better
    with pytest.raises(RuntimeError, match="Can't change const"):
        metric.higher_is_better = True


def test_a_collection_beside_torchmetrics_own() -> None:
    logits, labels = problem()
    collection = torchmetrics.MetricCollection(
        {
            "ece": CalibrationMetric(cal.ExpectedCalibrationError(15)),
            "their_ece": torchmetrics.classification.MulticlassCalibrationError(5, n_bins=15),
            "accuracy": CalibrationMetric(cal.Accuracy()),
            "their_accuracy": torchmetrics.classification.MulticlassAccuracy(5, average="micro"),
        },
        prefix="val/",
    )
    for part in torch.arange(500).split(64):
        # By the names that torchmetrics gives them, too.
        collection.update(preds=logits[part], target=labels[part])
    values = collection.compute()
    assert values["val/ece"].item() == pytest.approx(values["val/their_ece"].item(), abs=1e-6)
    assert values["val/accuracy"].item() == pytest.approx(values["val/their_accuracy"].item(), abs=1e-6)
    batch = logits[:50], labels[:50]
    assert collection(*batch)["val/ece"] == cal.expected_calibration_error(*batch)
    collection.reset()
    collection.update(*batch)
    assert collection.compute()["val/accuracy"] == cal.accuracy(*batch)


def test_a_collection_does_not_take_one_measure_for_another() -> None:
    # After this batch accuracy's and Brier's sums are (2, 3) both, and those of 64 cells are those of 64 bins:
    # torchmetrics would let metrics share such a state from then on, if it had one name.
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])
    second = torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0])
    accuracy, brier = cal.Accuracy(probabilities=True), cal.BrierScore(probabilities=True)
    bins = cal.ExpectedCalibrationError(64, probabilities=True)
    cells = cal.ExpectedCalibrationError(1, equal_mass=True, probabilities=True)
    assert torch.equal(accuracy.batch_sums(*first), brier.batch_sums(*first))
    assert torch.equal(bins.batch_sums(*first), cells.batch_sums(*first))
    measures = {"accuracy": accuracy, "brier": brier, "bins": bins, "cells": cells}
    collection = torchmetrics.MetricCollection({name: CalibrationMetric(m) for name, m in measures.items()})
    for batch in (first, second):
        collection.update(*batch)
        for measure in measures.values():
            measure.update(*batch)
    assert collection.compute() == {name: measure.compute() for name, measure in measures.items()}


def test_copies_are_independent_and_pickles_carry_on() -> None:
    logits, labels = problem()
    metric = CalibrationMetric(cal.ExpectedCalibrationError())
    metric.update(logits[:200], labels[:200])
    for copied in (metric.clone(), pickle.loads(pickle.dumps(metric))):
        copied.update(logits[200:], labels[200:])
        torch.testing.assert_close(copied.compute(), cal.expected_calibration_error(logits, labels), **CLOSE)
        assert metric.sums[:, 0].sum() == 200
    assert metric.compute() == cal.expected_calibration_error(logits[:200], labels[:200])


def test_state_is_saved_when_it_is_asked_for() -> None:
    logits, labels = problem()
    metric, other = CalibrationMetric(cal.BrierScore()), CalibrationMetric(cal.BrierScore())
    metric.update(logits, labels)
    assert not metric.state_dict()
    metric.persistent(True)
    other.load_state_dict(metric.state_dict())
    other.update(logits, labels)
    torch.testing.assert_close(other.compute(), cal.brier_score(logits, labels), **CLOSE)
    assert other.sums[1] == 1000
    with pytest.raises(RuntimeError, match="Unexpected key"):
        CalibrationMetric(cal.Accuracy()).load_state_dict(metric.state_dict())


@pytest.mark.parametrize("name", PAIRS)
def test_merging_is_concatenation(name) -> None:
    logits, labels = problem()
    make, function = PAIRS[name]
    left, right = CalibrationMetric(make()), CalibrationMetric(make())
    left.update(logits[:123], labels[:123])
    right.update(logits[123:], labels[123:])
    # A value that was computed before must not be returned again.
    left.compute()
    left.merge_state(right)
    torch.testing.assert_close(as_numbers(left.compute()), numbers(function(logits, labels)), **CLOSE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (cal.Accuracy(), cal.BrierScore()),
        (cal.Accuracy(), cal.Accuracy(probabilities=True)),
        (cal.ExpectedCalibrationError(64), cal.ExpectedCalibrationError(1, equal_mass=True)),
    ],
)
def test_only_equal_kinds_merge(one, other) -> None:
    # The states have the same shape, so that torchmetrics could add them up.
    assert one.sums.shape == other.sums.shape
    metric = CalibrationMetric(one)
    with pytest.raises(ValueError, match="Expected state variable sums_of_"):
        metric.merge_state(CalibrationMetric(other))


@pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.half(),
        lambda module: module.bfloat16(),
        lambda module: module.float(),
        lambda module: module.to(torch.float16),
        lambda module: module.to("cpu", torch.float16),
        lambda module: module.type(torch.float16),
    ],
)
def test_a_model_s_precision_is_not_the_metric_s(cast) -> None:
    # Float16 cannot count past 2048.
    logits, labels = problem(3000, dtype=torch.float16)
    model = torch.nn.Linear(5, 5)
    model.metric = CalibrationMetric(cal.Accuracy())
    cast(model)
    # The second time with the sums that a reset makes.
    for _ in range(2):
        for part in torch.arange(3000).split(100):
            model.metric.update(logits[part], labels[part])
        assert model.metric.sums.dtype == torch.float64
        assert model.metric.compute() == cal.accuracy(logits.double(), labels)
        model.metric.reset()


def test_set_dtype_is_obeyed() -> None:
    metric = CalibrationMetric(cal.Accuracy()).set_dtype(torch.float32)
    metric.update(*problem())
    assert metric.sums.dtype == metric.compute().dtype == torch.float32


def test_a_model_s_device_is_the_metric_s() -> None:
    model = torch.nn.Module()
    model.metric = CalibrationMetric(cal.Accuracy())
    model.to("meta")
    assert model.metric.sums.device == model.metric.device == torch.device("meta")
    model.metric.reset()
    assert model.metric.sums.device.type == "meta"


def test_sums_stay_on_the_cpu_where_the_device_has_no_float64() -> None:
    metric = CalibrationMetric(cal.Accuracy())
    # What `.to("mps")` does, on a machine that has none.
    metric._apply(lambda tensor: SimpleNamespace(device=torch.device("mps")))
    metric.update(*problem())
    assert metric.compute() == cal.accuracy(*problem())


def test_inference_mode_may_end_between_reset_and_update() -> None:
    metric = CalibrationMetric(cal.BrierScore())
    with torch.inference_mode():
        metric.update(*problem())
        metric.reset()
    metric.update(*problem())
    assert metric.compute() == cal.brier_score(*problem())


def test_wrong_input() -> None:
    with pytest.raises(TypeError, match="streaming measures, got <class"):
        CalibrationMetric(cal.Accuracy)
    metric = CalibrationMetric(cal.Accuracy())
    with (
        pytest.warns(UserWarning, match="before the ``update`` method"),
        pytest.raises(ValueError, match="seen no sample"),
    ):
        metric.compute()
    logits, labels = problem()
    metric.update(logits, labels)
    with pytest.raises(ValueError, match=r"labels of shape \(500,\), got \(499,\)"):
        metric.update(logits, labels[1:])
    assert metric.sums[1] == 500
