"""The runs of Figures 4 to 6: how long each dataset trains, and what the caption says of it."""

from __future__ import annotations

from mixreg.experiments import alpha_runs
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.sizes import check_sizes

SIZES = alpha_runs.sizes_at("paper") | {"model": "resnet9", "datasets": ["cifar10", "cifar100"], "epochs": 12}


def epochs_of(sizes: dict[str, object]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for run in alpha_runs.runs(sizes):
        config = run.settings["config"]
        found.setdefault(config["data"], set()).add(config["epochs"])
    return found


def test_all_data_trains_alike_unless_told_otherwise() -> None:
    assert epochs_of(SIZES) == {"cifar10": {12}, "cifar100": {12}}
    assert "in 12 epochs" in alpha_runs.caption(SIZES)
    assert alpha_runs.caption(SIZES).endswith("of 10 repetitions")


def test_further_data_can_train_longer() -> None:
    sizes = SIZES | {"longer": 1.33, "repetitions": 5, "others": 3}
    assert epochs_of(sizes) == {"cifar10": {12}, "cifar100": {16}}
    assert "in 12 (CIFAR-100: 16) epochs" in alpha_runs.caption(sizes)
    assert alpha_runs.caption(sizes).endswith("of 5 (CIFAR-100: 3) repetitions")


def test_a_run_is_the_same_whether_its_dataset_is_the_first_or_a_further_one() -> None:
    sizes = SIZES | {"longer": 1.33, "repetitions": 5, "others": 3}
    alone = SIZES | {"datasets": ["cifar100"], "epochs": 16, "repetitions": 3}
    among = [run.settings for run in alpha_runs.runs(sizes) if run.settings["config"]["data"] == "cifar100"]
    assert among == [run.settings for run in alpha_runs.runs(alone)]


def test_a_plan_of_an_earlier_version_is_still_known() -> None:
    for name in ("rescaling", "ood", "calibratable", "batch-norm"):
        experiment = EXPERIMENTS[name]
        sizes = experiment.sizes_at("paper")
        del sizes["longer"]
        check_sizes({**experiment.earlier, **sizes}, experiment.sizes_at("paper"))
