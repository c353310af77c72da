"""Measurements of single experiments, against something independent of them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LinearRegression

from mixreg import Mixup
from mixreg.data.shifted import subsets
from mixreg.experiments import least_squares, overview, trained
from mixreg.experiments.registry import EXPERIMENTS, KINDS
from mixreg.experiments.reproduce import reproduce
from mixreg.experiments.sweep import Workers
from mixreg.training.trained import load_trained


def nobody(done: float) -> None:
    assert 0 <= done <= 1


def test_regression_functions_of_figure_1() -> None:
    """Against labels of a million sampled and mixed points near a place."""
    settings = {"alpha": 1.0, "components": 6, "spread": 0.2, "points": 10, "side": 30}
    means, labels = overview.components(6)
    generator = torch.Generator().manual_seed(0)
    n = 1_000_000
    which = torch.randint(len(means), (n,), generator=generator)
    x = means[which] + 0.2 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    mixed, soft = Mixup(1.0, generator=generator)(x, labels[which])
    found = overview.measure(settings, Path(), nobody)
    across, upwards = (np.array(found["grid"][axis]) for axis in ("x", "y"))
    checked = 0
    for name, points, values in (("original", x, labels[which]), ("mixup", mixed, soft)):
        for column in range(6, 26, 3):
            for row in range(6, 26, 3):
                place = torch.tensor([across[column], upwards[row]])
                near = values[(points - place).norm(dim=1) < 0.04]
                if len(near) > 500:
                    error = float(near.std()) / math.sqrt(len(near))
                    # The mean over a small disc differs from the value in its middle by its curvature.
                    assert abs(float(near.mean()) - found["regression"][name][row][column]) < 4 * error + 0.01
                    checked += 1
    assert checked > 20


def test_the_minimiser_of_the_mixup_risk() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    inputs, outputs, weights = least_squares.mixed_rows(x, y, 0.7)
    other = LinearRegression().fit(inputs.numpy(), outputs.numpy(), sample_weight=weights.numpy())
    mine = least_squares.minimiser(inputs, outputs, weights)
    np.testing.assert_allclose(mine[:, :-1], other.coef_, atol=1e-10)
    np.testing.assert_allclose(mine[:, -1], other.intercept_, atol=1e-10)
    assert float(weights.sum()) == pytest.approx(1)


def test_a_trained_network_is_measured_as_its_run_says(tmp_path: Path) -> None:
    config = {"data": "digits-32", "model": "lenet", "method": "mixup", "alpha": 2.0, "epochs": 2, "holdout": 0.0}
    settings = {
        "config": config,
        "rescale": [2.0],
        "terms": {"samples": 12, "epochs": [1]},
        "corruptions": {"source": "generated", "images": 8},
    }
    result = KINDS["training"](settings, tmp_path / "run", nobody)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for mine, theirs in (("plain", "plain"), ("2", "rescaled")):
        for measure, value in metrics[theirs].items():
            assert result["test"][mine][measure] == pytest.approx(value, rel=1e-4)
        assert result["log"][-1]["test"][theirs] == pytest.approx(metrics[theirs], rel=1e-4)
    assert "terms" in result["log"][0]
    assert "terms" not in result["log"][1]
    terms = result["log"][0]["terms"]
    assert terms["total"] == pytest.approx(sum(terms[key] for key in ("base", "r1", "r2", "r3", "r4")), abs=1e-4)
    assert sum(result["confidence"]["plain"]["counts"]) == 360
    # The same corruptions from a published folder, and plainly by hand.
    again = settings | {"corruptions": {"source": str(tmp_path / "corruptions" / "digits-32-8"), "images": 8}}
    other = KINDS["training"](again, tmp_path / "run", nobody)
    assert other["corruptions"] == result["corruptions"]
    net = load_trained(tmp_path / "run")
    labels = torch.from_numpy(np.load(tmp_path / "corruptions" / "digits-32-8" / "labels.npy")[:8])
    right = []
    for path in sorted((tmp_path / "corruptions" / "digits-32-8").glob("*.npy")):
        if path.name != "labels.npy":
            images = torch.from_numpy(np.load(path)[16:24]).permute(0, 3, 1, 2)
            right.append(float((net.net(net.pixels.scaled(images)).argmax(1) == labels).double().mean()))
    assert len(right) == 19
    assert result["corruptions"]["plain"]["3"]["accuracy"] == pytest.approx(np.mean(right), abs=1e-5)


def test_terms_need_a_dataset_in_memory() -> None:
    with pytest.raises(ValueError, match="measured on datasets in memory"):
        trained._checked(type("Trainer", (), {"batches": None})(), 3)


@pytest.fixture
def imagenet(tmp_path: Path, monkeypatch) -> Path:
    """Folders laid out like ImageNet and its variants, with a picture or two in each."""
    random = np.random.default_rng(0)

    def save(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (34, 34, 3), dtype=np.uint8)).save(path)

    names = [f"n{index:08d}" for index in range(1000)]
    for name in names:
        save(tmp_path / "imagenet" / "train" / name / "a.png")
        (tmp_path / "imagenet" / "val" / name).mkdir(parents=True)
    for severity in range(1, 6):
        (tmp_path / "imagenet-c" / "fog").mkdir(parents=True, exist_ok=True)
        (tmp_path / "imagenet-c" / "fog" / str(severity)).symlink_to(tmp_path / "imagenet" / "train")
    for name in names[::20]:
        save(tmp_path / "imagenet" / "val" / name / "b.png")
    for index in subsets()["imagenet-a"]:
        save(tmp_path / "imagenet-a" / names[index] / "a.png")
    for index in (3, 77, 500):
        save(tmp_path / "imagenet-v2" / str(index) / "a.png")
    save(tmp_path / "objectnet" / "images" / "chair" / "a.png")
    frames = [f"val/video/{k}.png" for k in range(3)]
    for frame in frames:
        save(tmp_path / "vid-robust" / frame)
    metadata = tmp_path / "vid-robust" / "metadata"
    metadata.mkdir()
    (metadata / "pmsets.json").write_text(json.dumps({frames[0]: frames[1:]}))
    (metadata / "labels.json").write_text(json.dumps({frame: [1] for frame in frames}))
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_table_2_on_an_imitation_of_imagenet(imagenet: Path, tmp_path: Path) -> None:
    changes = {"repetitions": 1, "alphas": [0.25]}
    found = reproduce(["imagenet-ood"], "smoke", tmp_path / "out", Workers(), lambda progress: None, changes)
    assert not found.skipped
    names = [claim.name for claim in found.claims]
    assert names[0] == "ImageNet, standard: rescaling improves accuracy"
    assert names[2] == "ImageNet, imagenet-c: rescaling worsens all measures"
    assert len(found.claims[2].parts) == 4
    experiment = EXPERIMENTS["imagenet-ood"]
    sizes = experiment.sizes_at("smoke")
    assert sizes["sets"] == ["imagenet-a", "imagenet-c", "imagenet-v2", "vid-robust", "objectnet"]
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("mCE", "pm-k accuracy", "rescaled, α = 0.25", "imagenet-v2"):
        assert words in page
    # ImageNet is a row of Figure 4 where it is at hand.
    rescaling = EXPERIMENTS["rescaling"]
    assert rescaling.sizes_at("paper")["datasets"] == ["cifar10", "cifar100", "imagenet"]
    configs = [run.settings["config"] for run in rescaling.runs(rescaling.sizes_at("paper"))]
    assert {config["model"] for config in configs if config["data"] == "imagenet"} == {"resnet50"}
    assert {config["seed"] for config in configs if config["data"] == "imagenet"} == set(range(5))
