"""Experiments that share runs: fewer repetitions of controls, and approximate Mixup beside the runs of Figure 4."""

import numpy as np
import pytest

from mixreg.experiments import batch_norm, confidence, lenet_runs, terms
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.results import Results
from mixreg.experiments.sizes import SizesError

LENET = lenet_runs.sizes_at("paper") | {"repetitions": 5, "controls": 3}
EVIDENCE = {"model": "resnet9", "epochs": 12, "images": 2000, "corruptions": "generated", "longer": 1.33}
EVIDENCE |= {"repetitions": 5, "others": 3, "corrupted": 3, "alphas": [0.25, 0.5, 1.0, 2.0, 4.0]}
EVIDENCE |= {"datasets": ["cifar10", "cifar100"]}


def lenet(run) -> dict:
    """A run that says its method and seed: of ERM 4, smoothing 3, Mixup 2; and its terms."""
    config = run.settings["config"]
    value = {"erm": 4.0, "smoothing": 3.0, "mixup": 2.0, "approximate": 1.0, "modified": 5.0}[config["method"]]
    value += 0.01 * np.random.default_rng([config["seed"], int(value)]).normal() + 10 * config["seed"]
    names = ("base", "r1", "r2", "r3", "r4")
    record = {"terms": dict.fromkeys(names, value) | {"total": 3 * value}}
    test = {name: {"accuracy": 0.5, "ece": 0.1} for name in ("plain", "1")}
    return {"confidence": {name: {"mean": value, "counts": [1] * 20} for name in test}, "test": test, "log": [record]}


def test_controls_have_fewer_repetitions() -> None:
    """Compared over the seeds that both have, which vary by far more than methods do."""
    all_runs = {run.key for run in terms.runs(LENET | {"controls": 10})}
    found = terms.runs(LENET)
    assert {run.key for run in found} < all_runs
    methods = [run.settings["config"]["method"] for run in found]
    assert {method: methods.count(method) for method in methods} == {"mixup": 5, "erm": 5, "modified": 3}
    results = Results((run, lenet(run)) for run in found)
    smallest, base = terms.claims(results, LENET)
    assert [part.repetitions for part in smallest.parts] == [5, 3]
    assert [round(part.difference) for part in smallest.parts] == [4, 6]
    assert [part.repetitions for part in base.parts] == [3]
    results = Results((run, lenet(run)) for run in confidence.runs(LENET))
    lower, approximate = confidence.claims(results, LENET)
    assert [part.repetitions for part in (*lower.parts, *approximate.parts)] == [3, 3, 5]
    assert lower.verdict == approximate.verdict == "supported"
    assert len(confidence.table(results, LENET).rows) == 6
    assert "of 5 repetitions (3 of label smoothing and ERM on modified data)" in lenet_runs.caption(LENET)
    assert "repetitions (" not in lenet_runs.caption(LENET | {"controls": 5})


def test_plans_of_earlier_versions_ask_for_the_same_runs() -> None:
    sizes = {**terms.EXPERIMENT.earlier, "data": "cifar10", "model": "lenet", "lr": 0.01, "alpha": 1.0}
    sizes |= {"epochs": 30, "repetitions": 3, "samples": 1000, "looks": 6}
    assert len(terms.runs(sizes)) == 9


def test_only_approximate_mixup_is_trained_besides() -> None:
    sizes = EVIDENCE | {"approximate": 3}
    known = {run.key: run for run in EXPERIMENTS["rescaling"].runs(EVIDENCE)}
    found = batch_norm.runs(sizes)
    new = [run for run in found if run.key not in known]
    assert len(found) == 9
    assert [run.settings["config"]["seed"] for run in new] == [0, 1, 2]
    for run in new:
        config = run.settings["config"]
        assert (config["method"], config["alpha"], config["data"]) == ("approximate", 1.0, "cifar10")
        (mixup,) = (r for r in found if r.settings["config"] == config | {"method": "mixup"})
        assert mixup.settings["evaluate_every"] == run.settings["evaluate_every"]
    with pytest.raises(SizesError, match="approximate must be at most the 5 repetitions of Mixup"):
        batch_norm.runs(EVIDENCE | {"approximate": 6})


def network(run) -> dict:
    """Approximate Mixup lies a quarter of the way from Mixup to ERM; the test set is looked at every other epoch."""
    config = run.settings["config"]
    place = {"erm": 1.0, "mixup": 0.0, "approximate": 0.25}[config["method"]]
    place += 0.01 * np.random.default_rng([config["seed"], int(4 * place)]).normal()
    measures = {"accuracy": 0.9 - 0.1 * place, "cross_entropy": 0.5 + place, "ece": 0.1}
    test = {"test": dict.fromkeys(("plain", "rescaled"), measures)}
    log = [{"epoch": k, "train_loss": 2 + place} | (test if k % 2 == 0 else {}) for k in range(1, 5)]
    return {"log": log, "test": dict.fromkeys(("plain", "1", "fitted"), measures)}


def test_batch_norm_claims_figure_and_table() -> None:
    sizes = EVIDENCE | {"approximate": 3}
    results = Results((run, network(run)) for run in batch_norm.runs(sizes))
    (claim,) = batch_norm.claims(results, sizes)
    assert claim.verdict == "supported"
    assert [part.difference for part in claim.parts] == pytest.approx([0.25, 0.25, -0.025], abs=0.02)
    assert [part.margin for part in claim.parts] == pytest.approx([0.5, 0.5, 0.05], abs=0.02)
    assert [row[0] for row in batch_norm.table(results, sizes).rows[:3]] == ["ERM", "Mixup", "Mixup, rescaled"]
    train, test, _ = batch_norm.figure(results, sizes).axes
    assert [len(line.get_xdata()) for line in train.lines] == [4, 4, 4]
    assert [len(line.get_xdata()) for line in test.lines] == [2] * 5
    assert batch_norm.caption(sizes).startswith("CIFAR-10, α = 1: ResNet-9, SGD with one cycle")
