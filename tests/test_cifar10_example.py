"""`examples/cifar10.py`: its table and picture from stored runs, against numbers by hand; README.md shows them."""

import argparse
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from documentation import script
from PIL import Image

from mixreg.experiments.store import Store

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "cifar10.py"
STORED = ROOT / "results" / "cifar10"
SIZES = {"data": "digits-32", "images": 300, "epochs": 2, "seeds": 3}
OPTIONS = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


def module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def command(*options: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)


def made_up(run) -> dict:
    """Measures that say which predictor they are of; two bins."""
    config = run.settings["config"]
    names = ["plain", "1", "plain, tempered", "1, tempered", "fitted"]
    test, reliability = {}, {}
    for place, name in enumerate(names):
        accuracy = 0.5 + 0.1 * (config["method"] == "mixup") + 0.01 * place + 0.001 * config["seed"]
        test[name] = {"accuracy": accuracy, "cross_entropy": 2 * accuracy, "ece": accuracy / 10}
        reliability[name] = {"counts": [10.0 * config["seed"], 30.0], "confidence": [0.3, 0.9], "accuracy": [0.2, 0.8]}
    return {"test": test, "reliability": reliability, "fits": {"fitted": {"strength": 0.5 + config["seed"]}}}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """A folder with stored runs, after the script has been there: nothing was left to train."""
    out = tmp_path_factory.mktemp("cifar10")
    example, options = module(SCRIPT), argparse.Namespace(**SIZES)
    store = Store(out / "made-up.sqlite")
    for seed in range(SIZES["seeds"]):
        for method in example.METHODS:
            run = example.run_of(method, seed, options)
            store.put(run, made_up(run), {"seconds": 120.0 * (1 + seed)})
    store.write_json(out / "results.json")
    finished = command(*OPTIONS, "--out", str(out))
    assert finished.returncode == 0, finished.stderr
    assert not (out / "runs").exists()
    return out


def test_the_table_is_that_of_the_runs(drawn: Path) -> None:
    lines = (drawn / "table.md").read_text().splitlines()
    assert lines[0] == "| digits, 300 images, α = 1, 3 seeds | accuracy % | cross-entropy | ECE % |"
    assert len(lines) == 9
    # 62.0, 62.1 and 62.2 % around their mean: t(0.975, 2) · 0.1 / √3.
    half = 4.302653 * 0.1 / np.sqrt(3)
    assert f"| Mixup, rescaled | 61.10 ± {half:.2f} |" in lines[6]
    assert lines[2].startswith("| ERM | 50.10 ± ")
    assert lines[8].startswith("| Mixup, fitted | 64.10 ± ")
    assert f"| 1.2820 ± {0.02 * half:.4f} |" in lines[8]
    summary = json.loads((drawn / "summary.json").read_text())
    assert summary == {**SIZES, "strengths": [0.5, 1.5, 2.5], "minutes": 4.0}


def test_bins_of_all_seeds_are_pooled(drawn: Path) -> None:
    example, options = module(SCRIPT), argparse.Namespace(**SIZES)
    runs = [example.run_of("ERM", seed, options) for seed in range(3)]
    found = example.pooled(example.Results((run, made_up(run)) for run in runs), "ERM")
    assert found.count.tolist() == [30, 90]
    assert found.confidence.tolist() == pytest.approx([0.3, 0.9])
    assert float(found.expected_error) == pytest.approx(0.1)
    with Image.open(drawn / "reliability.png") as picture:
        assert picture.size == (1950, 675)


def test_the_readme_takes_it_over(drawn: Path) -> None:
    readme = script("readme")
    text = readme.example(drawn)
    assert (drawn / "table.md").read_text() in text
    assert "`python examples/cifar10.py --seeds 3`" in text
    assert readme.example(drawn / "nowhere") == ""
    assert readme.example() in (ROOT / "README.md").read_text()


@pytest.mark.skipif(not STORED.exists(), reason="the example's runs are not stored yet")
def test_the_stored_table_follows_from_the_stored_runs(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes((STORED / "results.json").read_bytes())
    seeds = json.loads((STORED / "summary.json").read_text())["seeds"]
    assert seeds >= 5
    finished = command("--seeds", str(seeds), "--out", str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "table.md").read_text() == (STORED / "table.md").read_text()


def test_wrong_input(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "no data"))
    for options, sentence in (
        ([], "cifar10 is not here yet: run `mixreg data get cifar10`"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
    ):
        finished = command(*options, "--out", str(tmp_path / "out"))
        assert finished.returncode == 2
        assert sentence in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_it_trains_what_is_missing(tmp_path: Path) -> None:
    options = ["--data", "digits-32", "--images", "200", "--epochs", "1", "--out", str(tmp_path)]
    finished = command(*options)
    assert finished.returncode == 0, finished.stderr
    assert "Mixup, fitted" in finished.stdout
    before = (tmp_path / "results.json").read_bytes()
    assert len(json.loads(before)) == 2
    assert command(*options).returncode == 0
    assert (tmp_path / "results.json").read_bytes() == before
