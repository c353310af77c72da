"""What one network is measured as: every predictor by name is the one that its parts make by hand."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mixreg import Rescaled, calibration
from mixreg.experiments.registry import KINDS
from mixreg.training.finished import load
from mixreg.training.open_batches import open_batches
from mixreg.training.trained import load_trained


def test_a_network_with_all_that_held_out_data_can_fit(tmp_path: Path) -> None:
    config = {
        "data": "digits-32",
        "model": "resnet9-16",
        "method": "mixup",
        "alpha": 0.5,
        "epochs": 4,
        "samples": 600,
        "lr": 0.05,
        "augment": "none",
        "schedule": "one-cycle",
        "batch_size": 64,
        "holdout": 0.2,
    }
    run = tmp_path / "runs" / "one"
    settings = {"config": config, "rescale": [0.5], "fit": True, "keep": "digits-mixup"}
    result = KINDS["training"](settings, run, lambda done: None)
    trained = load_trained(run)
    batches = open_batches(trained.config, like=trained.preparation)
    x, y = (torch.cat(part) for part in zip(*batches.test_batches(), strict=True))
    held_x, held_y = (torch.cat(part) for part in zip(*batches.held_out_batches(), strict=True))
    means = trained.moments.x_mean, trained.moments.y_mean
    refreshed = Rescaled(trained.net, 0.5, *means).eval()
    with torch.no_grad():
        plain, rescaled = trained.net(x), refreshed(x)
        temperature = calibration.fit_temperature(trained.net(held_x), held_y)
        # Statistics by hand: those of shrunk training inputs, layer by layer, averaged over batches.
        norms = [module for module in trained.net.modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        for batch in batches.epoch(0, 0):
            refreshed.outputs_on_shrunk(batch.x)
        trained.net.eval()
        expected = {
            "plain": plain,
            "0.5": rescaled,
            "plain, tempered": plain / temperature,
            "0.5, refreshed": refreshed(x),
        }
    for name, logits in expected.items():
        assert result["test"][name]["cross_entropy"] == pytest.approx(
            float(nn.functional.cross_entropy(logits, y)), rel=1e-4
        ), name
    fit = result["fits"]["fitted"]
    assert min(point[2] for point in fit["points"]) <= min(point[2] for point in fit["points"] if point[0] in (0, 1))
    assert set(result["test"]) == {
        *expected,
        "0.5, tempered",
        "0.5, refreshed, tempered",
        "fitted",
        "fitted, refreshed",
    }
    assert sum(result["reliability"]["fitted"]["counts"]) == len(y)
    assert 0 <= result["train"]["accuracy"] <= 1
    # The kept model is one to predict with.
    kept = load(tmp_path / "models" / "digits-mixup.safetensors")
    assert kept.config.alpha == 0.5
