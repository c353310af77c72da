"""`mixreg reproduce`: figures and verdicts from stored results, at the smallest scale."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from mixreg.experiments.experiment import SCALES
from mixreg.experiments.reproduce import EXPERIMENTS, chosen, reproduce
from mixreg.experiments.store import Store


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("reproduced")
    command = [sys.executable, "-m", "mixreg", "reproduce", "--scale", "smoke", "--out", str(out)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "two-moons: rescaling improves Mixup" in finished.stdout
    return out


def test_what_it_leaves(done: Path) -> None:
    for name in EXPERIMENTS:
        with Image.open(done / "figures" / f"{name}.png") as figure:
            assert min(figure.size) > 500
        assert (done / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    content = json.loads((done / "claims.json").read_text())
    assert content["scale"] == "smoke"
    assert {claim["verdict"] for claim in content["claims"]} <= {
        "reproduced",
        "not reproduced",
        "not testable at this scale",
    }
    provenance = Store(done / "results.sqlite").provenance()
    assert len(provenance) == 3
    assert all(row["torch"] and row["seconds"] > 0 for row in provenance)


def test_drawing_again_needs_no_training(done: Path, monkeypatch) -> None:
    from mixreg.experiments import kinds

    monkeypatch.setattr(kinds, "KINDS", {})
    before = (done / "claims.json").read_bytes()
    told = []
    reproduce([], "smoke", done, 1, lambda *state: told.append(state))
    assert told == [(3, 3, None)]
    assert (done / "claims.json").read_bytes() == before


def test_scales_change_sizes_only() -> None:
    for experiment in EXPERIMENTS.values():
        shapes = [[(run.kind, sorted(run.settings)) for run in experiment.runs(scale)] for scale in SCALES]
        assert shapes[0] == shapes[1] == shapes[2]


def test_wrong_names() -> None:
    with pytest.raises(ValueError, match="unknown experiment 'three-moons'; known are two-moons"):
        chosen(["three-moons"], "smoke")
    with pytest.raises(ValueError, match="unknown scale 'huge'; known are smoke, laptop, paper"):
        chosen([], "huge")
