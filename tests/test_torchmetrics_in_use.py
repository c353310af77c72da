"""The adapter for torchmetrics over processes and in Lightning."""

import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch
from processes import run_processes
from test_calibration import problem
from test_streaming import PAIRS, numbers
from torch.utils.data import DataLoader, TensorDataset

from mixreg import calibration as cal
from mixreg.adapters.torchmetrics import CalibrationMetric

torchmetrics = pytest.importorskip("torchmetrics")


CLOSE = {"rtol": 0, "atol": 1e-12, "equal_nan": True}


def as_numbers(value) -> torch.Tensor:
    """A reliability comes as a dict of its tensors."""
    return numbers(cal.Reliability(**value) if isinstance(value, dict) else value)


def part_of(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = problem()
    part = slice(0, 123) if rank == 0 else slice(123, 500)
    return logits[part], labels[part]


def _share(rank: int) -> dict[str, torch.Tensor]:
    values = {}
    batch = part_of(rank)
    for name, (make, _) in PAIRS.items():
        metric = CalibrationMetric(make())
        values[f"{name}, batch"] = as_numbers(metric(*batch))
        values[f"{name}, all"] = as_numbers(metric.compute())
        # After the sum over processes each goes on from its own.
        metric.update(*batch)
        values[f"{name}, all again"] = as_numbers(metric.compute())
    local = CalibrationMetric(cal.Accuracy(), sync_on_compute=False)
    local.update(*batch)
    values["local"] = local.compute()
    each_step = CalibrationMetric(cal.Accuracy(), dist_sync_on_step=True)
    values["each step"] = each_step(*batch)
    late = CalibrationMetric(cal.BrierScore())
    if rank == 1:
        late.update(*batch)
    with warnings.catch_warnings():
        # On the other process torchmetrics misses an update.
        warnings.filterwarnings("ignore", "The ``compute`` method of metric", UserWarning)
        values["one process only"] = late.compute()
    return values


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    logits, labels = problem()
    for rank, values in enumerate(run_processes(_share, 2, tmp_path)):
        own = part_of(rank)
        for name, (_, function) in PAIRS.items():
            torch.testing.assert_close(values[f"{name}, batch"], numbers(function(*own)), **CLOSE)
            torch.testing.assert_close(values[f"{name}, all"], numbers(function(logits, labels)), **CLOSE)
            twice = torch.cat([logits, logits]), torch.cat([labels, labels])
            torch.testing.assert_close(values[f"{name}, all again"], numbers(function(*twice)), **CLOSE)
        assert values["local"] == cal.accuracy(*own)
        assert values["each step"] == cal.accuracy(logits, labels)
        assert values["one process only"] == cal.brier_score(*part_of(1))


def classifier(lightning):
    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Linear(5, 5)
            self.ece = CalibrationMetric(cal.ExpectedCalibrationError())
            self.train_accuracy = CalibrationMetric(cal.Accuracy())
            self.seen: list[torch.Tensor] = []
            self.steps: list[tuple[float, float]] = []

        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self.net(x)
            value = self.train_accuracy(logits, y)
            self.steps.append((value.item(), cal.accuracy(logits, y).item()))
            self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
            return torch.nn.functional.cross_entropy(logits, y)

        def validation_step(self, batch, batch_idx):
            x, y = batch
            self.seen.append(self.net(x))
            self.ece.update(self.seen[-1], y)
            self.log("val_ece", self.ece)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    return Classifier()


# What Lightning itself uses of PyTorch, and what it thinks of small examples.
@pytest.mark.xdist_group("lightning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_lightning_logs_it_and_resets_it_between_epochs(tmp_path: Path, precision: str) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    x, y = problem(3000, dtype=torch.bfloat16 if precision == "bf16-true" else torch.float32)
    model = classifier(lightning)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision=precision,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, y), 500), DataLoader(TensorDataset(x, y), 700))
    # Five validation batches in each of two epochs, of which the last epoch's count.
    logits = torch.cat(model.seen[5:])
    assert len(logits) == 3000
    expected = cal.expected_calibration_error(logits, y)
    logged = trainer.callback_metrics
    assert logged["val_ece"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert [given for given, _ in model.steps] == [batch for _, batch in model.steps]
    assert logged["train_accuracy_step"].item() == pytest.approx(model.steps[-1][0], abs=1e-6)
    epoch = sum(value for value, _ in model.steps[6:]) / 6
    assert logged["train_accuracy_epoch"].item() == pytest.approx(epoch, abs=1e-6)
    assert model.net.weight.dtype == x.dtype
    assert model.ece.sums.dtype == torch.float64


def test_without_torchmetrics_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "mixreg.adapters.torchmetrics")
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r"needs torchmetrics: pip install 'mixreg\[torchmetrics\]'"):
        import mixreg.adapters.torchmetrics  # noqa: F401
