"""Results: found by settings; and those in the repository: complete, drawn from what is stored, told as they are."""

import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from documentation import script
from scipy import stats

from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.reproduce import draw
from mixreg.experiments.results import Results
from mixreg.experiments.store import Run

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "results", ROOT / "README.md"


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
    assert (tmp_path / "claims.json").read_text() == (RESULTS / "claims.json").read_text()
    kept = {path.name for path in (RESULTS / "figures").iterdir()}
    assert {path.name for path in found.figures} == kept
    planned = json.loads((RESULTS / "experiments.json").read_text())
    assert {f"{name}.png" for name in planned} <= kept


def in_words(parts: list[dict]) -> str:
    """A verdict from those on its parts, without the code that wrote it."""
    names = [part["verdict"] for part in parts]
    if len(parts) == 1:
        return names[0]
    if set(names) == {"supported"}:
        return f"supported {len(parts)} of {len(parts)}"
    if "contradicted" in names:
        counted = [(name, names.count(name)) for name in ("contradicted", "supported", "undecided")]
        return ", ".join(f"{name} {count}" for name, count in counted if count)
    return f"undecided: {names.count('supported')} of {len(parts)} supported, {names.count('undecided')} undecided"


@pytest.fixture(scope="module")
def numbers() -> ModuleType:
    """What fills numbers into pages."""
    return script("result_numbers")


def test_the_site_tells_every_verdict(numbers: ModuleType) -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \| ([✓✗?–] .*?) \|$", numbers.known()["verdict_table"], re.MULTILINE)
    assert [row[:2] for row in rows] == [(claim["name"], claim["source"]) for claim in stored()]
    signs = {"supported": "✓", "contradicted": "✗", "undecided": "?"}
    report = (RESULTS / "report.html").read_text()
    for (_, _, told), claim in zip(rows, stored(), strict=True):
        words, _, needed = told.partition(" (")
        assert words == f"{signs[claim['verdict']]} {in_words(claim['parts'])}"
        assert bool(needed) == (claim["verdict"] == "undecided")
        # The report says the same, word by word.
        assert f">{told}</span>" in report


def test_the_readmes_sections_follow_from_the_results() -> None:
    assert script("readme").written(README.read_text()) == README.read_text()


def test_the_readme_is_short_and_its_code_narrow() -> None:
    assert len(README.read_text().splitlines()) <= 150
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    assert max(map(len, code.splitlines())) <= 88


def test_what_the_readme_says_by_another_way() -> None:
    """Counts, and some differences from the runs themselves."""
    text = " ".join(README.read_text().split())
    verdicts = ["corrected" if "corrected_by" in claim else claim["verdict"] for claim in stored()]
    counts = [verdicts.count(name) for name in ("supported", "corrected", "contradicted", "undecided")]
    told = "Of {} claims **{} are supported, {} corrected, {} contradicted and {} undecided**".format(
        len(verdicts), *counts
    )
    assert told in text
    runs = [r for r in json.loads((RESULTS / "results.json").read_text()) if r["kind"] == "training"]

    def accuracy(method: str, epochs: int) -> np.ndarray:
        wanted = {"model": "lenet", "data": "cifar10", "method": method, "epochs": epochs}
        found = [r for r in runs if wanted.items() <= r["settings"]["config"].items()]
        found.sort(key=lambda r: r["settings"]["config"]["seed"])
        assert len(found) >= 3
        return np.array([r["result"]["test"]["plain"]["accuracy"] for r in found])

    change = 100 * (accuracy("mixup", 2) - accuracy("erm", 2))
    half = stats.sem(change) * stats.t.ppf(0.975, len(change) - 1)
    assert f"**hurts**: {change.mean():+.1f} ± {half:.1f} points of accuracy".replace("-", "−") in text


def test_no_number_of_the_words_on_results_is_typed_in() -> None:
    """Names aside: figures and tables of the paper, datasets and a network."""
    pages = (ROOT / "docs" / "results.md", ROOT / "docs" / "paper" / "table-1.md")
    first, second = (page.read_text() for page in pages)
    words = first.partition("## In words")[2].partition("\n## ")[0] + second.partition("## Verdicts")[2]
    words = re.sub(r"\{\{\w+\}\}|\]\(.*?\)", "", words)
    words = re.sub(r"Figures? \d( to \d)?|Table \d|CIFAR-100?\b|ResNet-9\b", "", words)
    assert re.findall(r"\d+|½|¼|\b(?:three|ten|twenty|hundred|all ticks)\b", words) == []


def test_numbers_of_the_words_by_another_way(numbers: ModuleType) -> None:
    """Some of them from the runs themselves."""
    text = " ".join(numbers.with_numbers((ROOT / "docs" / "paper" / "table-1.md").read_text()).split())
    runs = [r for r in json.loads((RESULTS / "results.json").read_text()) if r["kind"] == "regularised"]

    def values(measure: str, predictor: str = "plain", **config) -> np.ndarray:
        wanted = {"data": "cifar10", "method": "erm", "label_noise": 0.0} | config
        others = ("dropout", "parseval", "label_smoothing")
        found = [
            r
            for r in runs
            if all(r["settings"]["config"].get(key) == value for key, value in wanted.items())
            and not any(other in r["settings"]["config"] for other in others)
        ]
        found.sort(key=lambda r: r["settings"]["config"]["seed"])
        assert [r["settings"]["config"]["seed"] for r in found] == [0, 1, 2]
        return np.array([r["result"]["test"][predictor][measure] for r in found])

    ece = values("ece").mean(), values("ece", "rescaled", method="mixup").mean()
    assert f"the ECE from {100 * ece[0]:.0f} to {100 * ece[1]:.1f} %" in text
    gain = 100 * (values("accuracy", method="mixup", label_noise=0.4) - values("accuracy", label_noise=0.4))
    half = stats.sem(gain) * stats.t.ppf(0.975, 2)
    assert f"{gain.mean():.1f} ± {half:.1f} points more accurate with 40 % of the labels flipped" in text
    gap = 50 * abs(values("accuracy", "rescaled", method="mixup") - values("accuracy")).mean()
    assert f"half of the gap between Mixup and ERM is {gap:.1f})" in text


def test_words_are_held_to_the_verdicts_they_were_written_for(numbers: ModuleType) -> None:
    claims = {claim["name"]: claim for claim in stored()}
    changed = claims | {"Gaussian noise will do": {"verdict": "contradicted"}}
    with pytest.raises(ValueError, match="'Gaussian noise will do' being supported, and it is contradicted"):
        numbers.check_words(changed)


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


def test_how_well_erm_knows_its_training_images_is_what_the_runs_say() -> None:
    told = (ROOT / "docs" / "reproduction.md").read_text()
    records = json.loads((RESULTS / "evidence" / "results.json").read_text())
    learnt: dict[tuple[str, int], list[float]] = {}
    for record in records:
        config = record["settings"]["config"]
        if config["method"] == "erm" and config["model"] == "resnet9" and config["augment"] == "none":
            learnt.setdefault((config["data"], config["epochs"]), []).append(record["result"]["train"]["accuracy"])
    shown = {key: f"{100 * sum(values) / len(values):.1f} %" for key, values in learnt.items()}
    assert f"12 epochs on CIFAR-10, where ERM then has {shown['cifar10', 12]}" in told
    assert f"where 12 leave it at {shown['cifar100', 12]}" in told.replace("\n", " ")
    assert min(learnt["cifar10", 12]) > 0.98
    assert min(learnt["cifar100", 16]) > 0.98
