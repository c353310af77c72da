"""What was run, in words: "paper scale" only of what is the paper's, and every other size that differs."""

from dataclasses import replace
from pathlib import Path

import pytest

from mixreg.experiments.against_paper import FULL_SIZE, PAPER_SCALE, against_paper, differences
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.sizes import SCALES

# What the paper carries out; all else are experiments on what it only says, or an illustration.
MEASURED = {"approximation", "terms", "rescaling", "ood", "imagenet-ood", "confidence", "two-moons"}


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path))


def test_as_in_the_design() -> None:
    """The example that the sentence was asked for with."""
    sizes = EXPERIMENTS["ood"].sizes_at("paper") | {"model": "lenet", "epochs": 15, "repetitions": 3}
    told = against_paper(EXPERIMENTS["ood"], sizes)
    assert told == "LeNet instead of ResNet-34, 15 of 200 epochs, 3 of 10 repetitions"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_paper_scale_is_said_of_the_papers_sizes_alone(name: str) -> None:
    experiment = EXPERIMENTS[name]
    told = {scale: against_paper(experiment, experiment.sizes_at(scale)) for scale in SCALES}
    # Data that is not at hand is told.
    lacking = {"rescaling": "without ImageNet", "imagenet-ood": "without sets imagenet-a, imagenet-c, imagenet-v2"}
    if name in MEASURED:
        assert told["paper"].startswith(lacking.get(name, PAPER_SCALE))
        whole = experiment.sizes_at("paper") | experiment.paper_sizes
        assert against_paper(experiment, whole) == PAPER_SCALE
    assert PAPER_SCALE not in told["smoke"] + told["laptop"]
    if name not in MEASURED:
        assert told["paper"] == f"{experiment.unlike}; {FULL_SIZE}"
        assert told["smoke"].startswith(f"{experiment.unlike}; ")
    # Any single size that is another one is told, and nothing else.
    paper = experiment.sizes_at("paper") | experiment.paper_sizes
    for size, value in paper.items():
        if type(value) is int:
            assert len(differences(paper | {size: value + 1}, paper)) == 1
            told = against_paper(experiment, paper | {size: value + 1})
            assert (PAPER_SCALE in told) == (size in experiment.aside and name in MEASURED)


def test_sizes_that_a_figure_does_not_depend_on_are_not_told_with_it() -> None:
    """Figures 4 and 5 share their runs, and only the second shows corrupted images."""
    fewer = {"images": 2000, "corrupted": 3}
    told = {name: against_paper(EXPERIMENTS[name], EXPERIMENTS[name].sizes_at("paper") | fewer) for name in MEASURED}
    assert "2,000 of 10,000 test images" in told["ood"]
    assert "images" not in told["rescaling"]


def test_an_experiment_of_ones_own_is_never_the_papers() -> None:
    mine = replace(EXPERIMENTS["two-moons"], name="mine")
    assert against_paper(mine, mine.sizes_at("paper"), is_papers=False) == FULL_SIZE
    assert against_paper(mine, mine.sizes_at("laptop"), is_papers=False) == "10 of 30 repetitions"


def test_words_for_sizes() -> None:
    paper = {"alphas": [0.1, 1.0], "datasets": ["cifar10", "cifar100"], "lr": 0.01, "samples": 45000, "human": "worst"}
    given = {"alphas": [4.0], "datasets": ["cifar10"], "lr": 0.1, "samples": 50000, "human": "none", "unknown": 3}
    assert differences(given, paper) == [
        "without CIFAR-100",
        "50,000 instead of 45,000 samples",
        "α 4 instead of 0.1, 1",
        "learning rate 0.1 instead of 0.01",
        "human labels none instead of worst",
    ]
    assert differences({"alphas": [1.0]}, {"alphas": [0.1, 1.0]}) == ["without α 0.1"]
    assert differences({"epochs": "many", "sets": []}, {"epochs": 200, "sets": ["a", "b"]}) == [
        "epochs many instead of 200",
        "without sets a, b",
    ]
    assert differences({"datasets": ["cifar10", "imagenet"]}, {"datasets": ["cifar10"]}) == ["also ImageNet"]
    assert differences(paper, paper) == []
