"""Over-training: the best time without looking at it, runs on noisy labels, and claims against made-up curves."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mixreg.data.loading import load
from mixreg.experiments import over_training
from mixreg.experiments.registry import EXPERIMENTS, KINDS
from mixreg.experiments.results import Results
from mixreg.experiments.sizes import SizesError
from mixreg.training.config import Config
from mixreg.training.open_batches import open_batches

SIZES = EXPERIMENTS["over-training"].sizes_at("smoke") | {"moons": 4, "repetitions": 4}


def test_the_best_time_of_curves_that_do_not_change_is_no_better_than_the_end() -> None:
    """Where nothing but noise varies the least value lies far below the last, and the chosen one does not."""
    random = np.random.default_rng(0)
    gaps, naive = [], []
    for _ in range(500):
        curves = random.normal(size=(4, 20))
        end, best = over_training.end_after_best(curves.tolist())
        assert end == curves[:, -1].tolist()
        gaps.append(np.mean(end) - np.mean(best))
        naive.append((curves[:, -1] - curves.min(1)).mean())
    assert abs(np.mean(gaps)) < 4 * np.std(gaps, ddof=1) / np.sqrt(len(gaps))
    assert np.mean(naive) > 1


def test_labels_are_flipped_by_the_settings_of_a_run() -> None:
    (config,) = (
        run.settings["config"]
        for run in over_training.runs(SIZES)
        if run.kind == "training" and run.settings["config"]["seed"] == 1 and run.settings["config"]["until"]
    )
    assert (config["label_noise"], config["until"], config["epochs"]) == (0.2, 4, 5)
    noisy, clean = (open_batches(Config(**config | {"label_noise": noise})) for noise in (0.2, 0.0))
    assert int((noisy.y != clean.y).sum()) == 40
    assert torch.equal(noisy.held_out[1], clean.held_out[1])
    np.testing.assert_array_equal(noisy.test[1], load("digits-32").test.y)
    assert {run.settings["flipped"] for run in over_training.runs(SIZES) if run.kind == "two-moons"} == {0.2}


def test_a_network_is_switched_off_late(tmp_path: Path) -> None:
    """Until then it is Mixup's, epoch by epoch, and not afterwards."""
    runs = [run for run in over_training.runs(SIZES) if run.kind == "training"][1:3]
    logs = []
    for run in runs:
        result = KINDS["training"](run.settings, tmp_path / run.key, lambda done: None)
        assert result["fits"]["fitted"]["strength"] >= 0
        logs.append([record["train_loss"] for record in result["log"]])
        assert all("rescaled" in record["test"] for record in result["log"])
    assert logs[0][:4] == logs[1][:4]
    # Labels that are not mixed are easier to fit, or harder: not the same.
    assert logs[0][4] != logs[1][4]


def made_up(run) -> dict:
    """Errors: ERM's stay, Mixup's rise again, switching off keeps them where they were, and the rule adds 0.1 to it."""
    settings = run.settings | run.settings.get("config", {})
    is_off = settings["until"] > 0
    curve = np.array([0.5, 0.2, 0.2, 0.2 if is_off or settings["method"] == "erm" else 0.3])
    if run.kind == "two-moons":
        jitter = 1e-3 * np.random.default_rng(int(is_off)).normal(size=(settings["repetitions"], 1))
        plain = 1 - (curve + jitter * [0, 1, 2, 3])
        ruled = plain - 0.1 * is_off
        return {
            "steps": [0, 1, 2, 3],
            "measures": {
                "plain": {"test_accuracy": plain.tolist()},
                "rescaled": {"test_accuracy": ruled.tolist()},
            },
        }
    jitter = 1e-3 * np.random.default_rng([settings["seed"], int(is_off)]).normal()
    log = [
        {
            "epoch": k + 1,
            "test": {"plain": {"accuracy": 1 - e - k * jitter}, "rescaled": {"accuracy": 1 - e - 0.1 * is_off}},
        }
        for k, e in enumerate(curve)
    ]
    log.insert(2, {"epoch": 9, "train_loss": 1.0})  # an epoch without a look at the test set
    losses = {"plain": 0.7, "1": 0.7 + 0.2 * is_off, "fitted": 0.6}
    return {
        "log": log,
        "test": {name: {"cross_entropy": value + jitter * len(name)} for name, value in losses.items()},
        "train": {"accuracy": 0.9},
        "fits": {"fitted": {"strength": 0.1 + jitter if is_off else 0.8}},
    }


def test_claims_figure_and_table() -> None:
    results = Results((run, made_up(run)) for run in over_training.runs(SIZES))
    claims = over_training.claims(results, SIZES)
    assert [claim.verdict for claim in claims] == ["supported"] * 7
    found = [round(part.difference, 2) for claim in claims for part in claim.parts]
    assert found == [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.7]
    rows = over_training.table(results, SIZES).rows
    assert [row[:2] for row in rows[:2]] == [["two moons", "ERM"], ["two moons", "Mixup"]]
    assert rows[1][2].startswith("0.20")
    assert rows[1][3].startswith("0.30")
    assert rows[1][-1] == "–"
    assert rows[5][4].startswith("0.300")
    axes = over_training.figure(results, SIZES).axes
    # Three trainings, of which ERM is plain beside the rule too, and the line where Mixup is switched off.
    assert [len(place.lines) for place in axes] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"repetitions": 1}, "repetitions must be at least 2: the best time of one is chosen by the others"),
        ({"switch": 0.99}, "switch must leave a part of 5 on both sides, got 0.99"),
        ({"noise": 1.0}, "noise must be a part of the labels below 1, got 1"),
    ],
)
def test_sizes_that_make_no_sense(changes: dict, sentence: str) -> None:
    with pytest.raises(SizesError, match=sentence):
        over_training.runs(SIZES | changes)
