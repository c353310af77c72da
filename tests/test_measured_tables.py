"""The guide on tables shows what its benchmarks have written, and the defaults are those that were measured."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from mixreg.adapters.sklearn import MixupClassifier, MixupRegressor
from mixreg.report.intervals import interval

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "guides" / "tables.md").read_text()
FOUND = json.loads((ROOT / "docs" / "measured" / "tables.json").read_text())


def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark_of_tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def over_datasets(model: str, measure: str) -> np.ndarray:
    return np.array([np.mean([s[model][measure] for s in d.values() if model in s]) for d in FOUND["runs"].values()])


def test_the_guide_shows_the_tables_of_the_benchmark(monkeypatch) -> None:
    assert all(table in GUIDE for table in benchmark(monkeypatch).shown(FOUND).split("\n\n"))
    # One cell, by hand.
    model = f"alpha {FOUND['default']:g}"
    accuracy, loss, ece = (over_datasets(model, measure).mean() for measure in ("accuracy", "log_loss", "ece"))
    assert f"**{100 * accuracy:.1f} / {loss:.3f} / {100 * ece:.1f}**" in GUIDE


def test_the_defaults_are_those_that_were_measured() -> None:
    assert MixupClassifier().alpha == MixupRegressor().alpha == FOUND["default"]
    assert len(FOUND["datasets"]) >= 8
    assert all(len(splits) == 10 for splits in FOUND["runs"].values())
    known = set.intersection(*(set(split) for dataset in FOUND["runs"].values() for split in dataset.values()))
    means = {
        name: over_datasets(name, "log_loss").mean() for name in known if name.startswith("alpha") and "," not in name
    }
    assert min(means, key=means.get) == f"alpha {FOUND['default']:g}"


def test_what_choosing_alpha_gains() -> None:
    def against(other: str, measure: str, scale: float, digits: int) -> str:
        mean, half_width = interval(list(scale * (over_datasets("auto", measure) - over_datasets(other, measure))))
        return f"{mean:.{digits}f} ± {half_width:.{digits}f}"

    default = f"alpha {FOUND['default']:g}"
    assert f"log-loss is {against(default, 'log_loss', -1, 3)} below that of α = {FOUND['default']:g}" in GUIDE
    assert f"its ECE {against(default, 'ece', -100, 1)} points" in GUIDE
    assert f"({against(default, 'accuracy', 100, 1)} points)".replace("-", "−") in GUIDE
    assert f"lies {against('MLPClassifier', 'log_loss', -1, 3)}" in GUIDE
    lower = sum(over_datasets("auto", "log_loss") < over_datasets(default, "log_loss"))
    assert f"lower on {lower} of {len(FOUND['datasets'])} datasets" in GUIDE
    chosen = {name: [s["auto"]["alpha"] for s in splits.values()] for name, splits in FOUND["runs"].items()}
    counts = Counter(alpha for alphas in chosen.values() for alpha in alphas)
    said = f"α = 0 in {counts[0.0]} of {counts.total()} trainings"
    assert said in GUIDE.replace("\n", " ")
    assert f"0.2 in {counts[0.2]} and 1 in {counts[1.0]}" in GUIDE
    always = {alpha: [name for name, alphas in chosen.items() if set(alphas) == {alpha}] for alpha in (0.0, 1.0)}
    for names in always.values():
        assert f"(always on {', '.join(names[:-1])} and {names[-1]})" in GUIDE
    known = set.intersection(*(set(s) for d in FOUND["runs"].values() for s in d.values()))
    for measure in ("log_loss", "ece"):
        assert min(known, key=lambda name: over_datasets(name, measure).mean()) == "auto"


def test_float32_is_as_good_as_float64() -> None:
    pairs = [
        (split[f"alpha {FOUND['default']:g}"], split["float64"])
        for dataset in FOUND["runs"].values()
        for split in dataset.values()
        if "float64" in split
    ]
    for measure, digits in (("log_loss", 4), ("accuracy", 4)):
        gains = [first[measure] - second[measure] for first, second in pairs]
        error = np.std(gains, ddof=1) / np.sqrt(len(gains))
        assert abs(np.mean(gains)) < 1e-3
        assert f"{np.mean(gains):+.{digits}f} ± {error:.{digits}f}".replace("-", "−") in GUIDE
    assert f"{len(pairs)} pairs" in GUIDE


def test_fit_times() -> None:
    found = json.loads((ROOT / "docs" / "measured" / "fit_time.json").read_text())["found"]
    for size in (64, 200):
        ratio = found[f"batches of {size}: default ÷ MLPClassifier"]
        assert f"{ratio:.2f} × in batches of {size}" in GUIDE
        assert ratio <= 1.3
