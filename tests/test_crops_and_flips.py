"""Figure 4 with crops and flips: its runs are those of Figure 4 but for augmentation, and claims know who is who."""

import numpy as np
import pytest

from mixreg.experiments import alpha_runs, crops_and_flips
from mixreg.experiments.results import Results

SIZES = crops_and_flips.sizes_at("smoke") | {"model": "resnet9", "repetitions": 4}
# How much worse than the best, in the order in which claims have them.
WORSE = {
    "erm": {"plain": 3, "1": 7, "plain, tempered": 4, "1, tempered": 6, "fitted": 5},
    "mixup": {"plain": 6, "1": 2, "plain, tempered": 4, "1, tempered": 1, "fitted": 0},
}


def made_up(run) -> dict:
    config = run.settings["config"]
    noise = np.random.default_rng([config["seed"], config["method"] == "erm"])

    def measures(worse: int) -> dict[str, float]:
        jitter = 1e-4 * noise.normal()
        return {
            "accuracy": 0.9 - 0.01 * worse + jitter,
            "cross_entropy": 0.3 + 0.1 * worse + jitter,
            "ece": 0.01 * worse,
        }

    return {"test": {name: measures(worse) for name, worse in WORSE[config["method"]].items()}}


@pytest.fixture(scope="module")
def results() -> Results:
    return Results((run, made_up(run)) for run in crops_and_flips.runs(SIZES))


def test_runs_are_those_of_figure_4_but_for_the_augmentation() -> None:
    sizes = crops_and_flips.sizes_at("paper") | {"data": "cifar10", "model": "resnet9", "epochs": 12, "repetitions": 3}
    like = alpha_runs.sizes_at("paper") | {"datasets": ["cifar10"], "alphas": [1.0], "model": "resnet9", "epochs": 12}
    found = crops_and_flips.runs(sizes)
    expected = [run for run in alpha_runs.runs(like) if run.settings["config"]["seed"] < 3]
    assert [run.settings["config"] for run in found] == [
        run.settings["config"] | {"augment": "standard"} for run in expected
    ]
    for run in found:
        assert run.settings["fit"] is True
        assert not {"keep", "corruptions"} & set(run.settings)


def test_claims(results: Results) -> None:
    improves, hurts, fitted = crops_and_flips.claims(results, SIZES)
    assert [claim.verdict for claim in (improves, hurts, fitted)] == ["supported"] * 3
    assert [round(part.difference, 2) for part in improves.parts] == [0.04, 0.4, 0.04]
    assert [round(part.difference, 2) for part in hurts.parts] == [0.04, 0.4, 0.04]
    assert [round(part.difference, 2) for part in fitted.parts] == [0.4, 0.1]


def test_the_table_and_the_figure_show_every_predictor(results: Results) -> None:
    rows = {row[0]: row[1:] for row in crops_and_flips.table(results, SIZES).rows}
    assert len(rows) == 9
    assert rows["Mixup, rescaled, with a temperature"][2].startswith("0.0100")
    assert rows["Mixup, fitted"][2].startswith("0.0000")
    axes = crops_and_flips.figure(results, SIZES).axes
    assert len(axes) == 3
    # A point for each row of the table.
    assert all(len(place.containers) == 9 for place in axes)
    assert [text.get_text() for text in axes[0].get_yticklabels()][-1] == "Mixup, fitted"
    assert "crops and flips" in crops_and_flips.caption(SIZES)
    assert "no augmentation" not in crops_and_flips.caption(SIZES)
