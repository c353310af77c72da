"""Mixup on a network that underfits: gains and claims against made-up runs."""

import numpy as np
import pytest

from mixreg.experiments import underfitting
from mixreg.experiments.results import Results
from mixreg.experiments.sizes import SizesError

SIZES = underfitting.sizes_at("smoke") | {"lengths": [2.0, 8.0, 4.0], "repetitions": 5}


def made_up(run) -> dict:
    """Mixup's plain accuracy is ERM's less 0.06 after 2 epochs, plus 0.06 after 8; rescaling adds 0.01."""
    config = run.settings["config"]
    is_mixup, noise = config["method"] == "mixup", 1e-4 * np.random.default_rng(config["seed"]).normal()
    gain = is_mixup * (0.02 * (config["epochs"] - 5) + noise)
    plain = {"accuracy": 0.7 + gain, "cross_entropy": 1.0 - 2 * gain, "ece": 0.1}
    ruled = plain | {"accuracy": plain["accuracy"] + 0.01}
    return {"test": {"plain": plain, "1": ruled}, "train": {"accuracy": 0.9 - 0.1 * is_mixup}}


@pytest.fixture(scope="module")
def results() -> Results:
    return Results((run, made_up(run)) for run in underfitting.runs(SIZES))


def test_every_length_is_a_run_of_its_own() -> None:
    runs = underfitting.runs(SIZES)
    configs = [run.settings["config"] for run in runs]
    assert len({run.key for run in runs}) == 30
    assert {(one["method"], one["epochs"]) for one in configs} == {(m, e) for m in ("erm", "mixup") for e in (2, 4, 8)}


def test_claims_compare_the_shortest_and_the_longest(results: Results) -> None:
    hurts, grows = underfitting.claims(results, SIZES)
    assert [claim.verdict for claim in (hurts, grows)] == ["supported"] * 2
    assert [part.difference for part in hurts.parts] == pytest.approx([0.06, 0.12], abs=1e-3)
    assert [part.difference for part in grows.parts] == pytest.approx([0.12, 0.24], abs=1e-9)
    assert "2 epochs" in hurts.statement


def test_the_table_has_both_rules_at_every_length(results: Results) -> None:
    rows = underfitting.table(results, SIZES).rows
    assert [row[:2] for row in rows[:3]] == [["2", "ERM"], ["2", "Mixup"], ["2", "Mixup, rescaled"]]
    assert float(rows[5][2].split(" ")[0]) == pytest.approx(0.77, abs=1e-3)
    assert float(rows[4][-1].split(" ")[0]) == pytest.approx(0.8)


def test_lengths_that_say_nothing_are_refused() -> None:
    for lengths, found in (([2.0, 2.0], "at least two different ones"), ([0.5, 2.0], "numbers of epochs")):
        with pytest.raises(SizesError, match=found):
            underfitting.runs(SIZES | {"lengths": lengths})
