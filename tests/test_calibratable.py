"""Calibration after temperature scaling: the debiased error against chance itself, and claims against made-up runs."""

import numpy as np
import pytest

from mixreg.experiments import calibratable
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.results import Results

SIZES = EXPERIMENTS["rescaling"].sizes_at("smoke") | {"model": "resnet9", "repetitions": 4}


def bins(confidence: np.ndarray, right: np.ndarray, count: int = 15) -> dict[str, list[float]]:
    """Counts, mean confidence and accuracy, bin by bin, in NumPy."""
    place = np.minimum((confidence * count).astype(int), count - 1)
    n = np.bincount(place, minlength=count)
    conf, acc = (
        np.bincount(place, weights=values, minlength=count) / np.maximum(n, 1) for values in (confidence, right)
    )
    return {"counts": n.tolist(), "confidence": conf.tolist(), "accuracy": acc.tolist()}


@pytest.mark.parametrize("gap", [0.0, 0.08])
def test_the_debiased_error_is_what_is_there_beyond_chance(gap: float) -> None:
    """Over 400 test sets, its mean is the squared gap; that of the ECE of calibrated predictions is far from 0."""
    random = np.random.default_rng(0)
    found, ece = [], []
    for _ in range(400):
        confidence = random.uniform(0.3, 0.9, 300)
        one = bins(confidence, random.uniform(size=300) < confidence + gap)
        found.append(calibratable.beyond_chance(**one))
        n, conf, acc = (np.array(one[key]) for key in ("counts", "confidence", "accuracy"))
        ece.append((n / n.sum() * abs(acc - conf)).sum())
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    # Confidences vary within a bin, which changes variances in the fourth digit.
    assert abs(np.mean(found) - gap**2) < 4 * error + 2e-4
    assert np.mean(ece) > gap + 0.01


def made_up(run) -> dict:
    """A run whose measures say which predictor, α and seed they are of."""
    config = run.settings["config"]
    is_erm, seed = config["method"] == "erm", config["seed"]
    own = [f"{alpha:g}" for alpha in run.settings["rescale"]]
    names = ["plain", *own, f"{config['alpha']:g}, refreshed"]
    # ECE after temperature scaling; ERM's is the least, and the plain network's the largest.
    ece = {"plain": 0.05, "fitted": 0.01, **dict.fromkeys(own, 0.03), f"{config['alpha']:g}, refreshed": 0.02}
    jitter = 1e-4 * np.random.default_rng([seed, int(10 * config["alpha"])]).normal()
    test, reliability = {}, {}
    for name in [*names, *(f"{name}, tempered" for name in names), "fitted"]:
        after = name.endswith("tempered") or name == "fitted"
        value = (0.004 if is_erm else ece[name.removesuffix(", tempered")]) + jitter if after else 0.2
        test[name] = {"ece": value, "cross_entropy": 10 * value, "accuracy": 0.8, "aurc": 0.1, "brier": 0.3}
        reliability[name] = {"counts": [1000.0], "confidence": [0.8 + value], "accuracy": [0.8]}
    return {"test": test, "reliability": reliability}


@pytest.fixture(scope="module")
def results() -> Results:
    return Results((run, made_up(run)) for run in EXPERIMENTS["calibratable"].runs(SIZES))


def test_the_runs_are_those_of_figure_4() -> None:
    for scale in ("smoke", "paper"):
        sizes = EXPERIMENTS["rescaling"].sizes_at(scale)
        asked = [[run.key for run in EXPERIMENTS[name].runs(sizes)] for name in ("calibratable", "rescaling")]
        assert asked[0] == asked[1]


def test_claims(results: Results) -> None:
    harder, rule, fitted = calibratable.claims(results, SIZES)
    assert [claim.verdict for claim in (harder, rule, fitted)] == ["supported"] * 3
    assert harder.parts[0].difference == pytest.approx(0.046, abs=2e-4)
    # 1e4 (0.05² − 0.004²): chance is the same in both.
    assert harder.parts[1].difference == pytest.approx(24.84, abs=0.2)
    assert [round(part.difference, 3) for part in rule.parts] == [0.02, 0.03, 0.04]
    assert [part.about.partition(" − ")[2] for part in rule.parts] == [
        f"Mixup, {name}, mean over α" for name in ("rescaled", "rescaled, refreshed", "fitted")
    ]
    assert [round(part.difference, 2) for part in fitted.parts] == [0.4, 0.2]


def test_the_table_and_the_figure_show_every_predictor(results: Results) -> None:
    table = calibratable.table(results, SIZES)
    assert len(table.rows) == 1 + 4 * len(SIZES["alphas"])
    rows = {row[1]: row for row in table.rows}
    assert rows["ERM"][2].startswith("0.2000")
    assert rows["Mixup, α = 0.5"][3].startswith("0.05")
    # A fitted rule has one temperature, before and after.
    assert rows["Mixup, fitted, α = 2"][2] == rows["Mixup, fitted, α = 2"][3]
    axes = calibratable.figure(results, SIZES).axes
    assert len(axes) == 3
    assert len(axes[0].lines) == 5
