"""Results: found by settings; and those in the repository: complete, drawn from what is stored, told as they are."""

import json
import re
import shutil
from pathlib import Path

import pytest

from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.reproduce import draw
from mixreg.experiments.results import Results
from mixreg.experiments.store import Run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SIGNS = {"reproduced": "✓ reproduced", "not reproduced": "✗ not reproduced"}


def stored() -> list[dict]:
    return json.loads((RESULTS / "claims.json").read_text())["claims"]


def test_every_stored_run_is_one_that_an_experiment_asks_for() -> None:
    """Keys are never recomputed differently: a stored result must find its run."""
    plan = json.loads((RESULTS / "experiments.json").read_text())
    sizes = {name: {**EXPERIMENTS[name].earlier, **entry["sizes"]} for name, entry in plan.items()}
    asked = {run.key for name in plan for run in EXPERIMENTS[name].runs(sizes[name])}
    assert asked == {record["key"] for record in json.loads((RESULTS / "results.json").read_text())}


def test_figures_and_verdicts_follow_from_the_stored_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("mixreg.experiments.workers.carry_out", None)
    for name in ("results.json", "experiments.json"):
        shutil.copy(RESULTS / name, tmp_path / name)
    found = draw(tmp_path)
    assert json.loads((tmp_path / "claims.json").read_text())["claims"] == stored()
    kept = {path.name for path in (RESULTS / "figures").iterdir()}
    assert {path.name for path in found.figures} == kept
    assert {f"{name}.png" for name in EXPERIMENTS if name != "imagenet-ood"} <= kept


def test_the_readme_tells_every_verdict() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \| ([✓✗–] .*?) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    expected = [(c["name"], c["source"], SIGNS.get(c["verdict"], "– not testable here")) for c in stored()]
    assert rows == expected


def test_nothing_tells_of_the_machine_it_was_made_on() -> None:
    for path in (RESULTS / "report.html", RESULTS / "claims.json", RESULTS / "results.json"):
        assert str(Path.home()) not in path.read_text()


def training(method: str, seed: int, **config: float) -> Run:
    return Run("training", {"config": {"data": "digits", "method": method, "seed": seed, **config}, "rescale": [1.0]})


class TestSelect:
    RUNS = (
        *(training("mixup", seed, alpha=alpha) for seed in (1, 0, 2) for alpha in (0.5, 1.0)),
        *(training("erm", seed) for seed in (2, 1, 0)),
        *(training("erm", seed, dropout=0.5) for seed in (0, 1)),
        Run("steps", {"rounds": 3}),
    )

    @pytest.fixture
    def results(self) -> Results:
        # As many times as experiments ask for them.
        return Results([(run, {"key": run.key}) for run in self.RUNS + self.RUNS])

    def test_by_settings_in_order_of_seeds(self, results: Results) -> None:
        expected = [{"key": training("mixup", seed, alpha=0.5).key} for seed in range(3)]
        assert results.select(method="mixup", alpha=0.5) == expected
        assert results.select(kind="training", data="digits", alpha=0.5, rescale=[1.0]) == expected
        assert results.one(kind="steps") == results.one(rounds=3) == {"key": self.RUNS[-1].key}
        # What a configuration does not name has its default.
        assert results.select(method="erm", dropout=0.0) == [{"key": training("erm", s).key} for s in range(3)]
        assert len(results.select(dropout=0.5)) == 2

    def test_one_sentence_says_what_does_not_match(self, results: Results) -> None:
        with pytest.raises(LookupError, match=r"^no run has method='mixup', alpha=2\.0$"):
            results.select(method="mixup", alpha=2.0)
        with pytest.raises(LookupError, match=r"^no run has moons=3$"):
            results.select(moons=3)
        with pytest.raises(LookupError, match=r"^2 runs with seed 0 have method='mixup': name more settings$"):
            results.select(method="mixup")
        with pytest.raises(LookupError, match=r"^of the runs with method='erm' there is none with seed 0$"):
            Results([(training("erm", seed), {}) for seed in (1, 2)]).select(method="erm")
        with pytest.raises(LookupError, match=r"^2 runs have dropout=0\.5, where one was expected$"):
            results.one(dropout=0.5)
        with pytest.raises(LookupError, match=r"^no run has whatever settings$"):
            Results([]).select()
