"""The results in the repository: complete, drawn from what is stored, and told as they are."""

import json
import re
import shutil
from pathlib import Path

from mixreg.experiments import kinds
from mixreg.experiments.reproduce import EXPERIMENTS, draw

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SIGNS = {"reproduced": "✓ reproduced", "not reproduced": "✗ not reproduced"}


def stored() -> list[dict]:
    return json.loads((RESULTS / "claims.json").read_text())["claims"]


def test_figures_and_verdicts_follow_from_the_stored_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", {})
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
