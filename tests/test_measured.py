"""Numbers in the guides are those that the benchmarks have written."""

import json
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "guides" / "practitioner.md").read_text()


def measured(name: str) -> dict:
    return json.loads((ROOT / "docs" / "measured" / f"{name}.json").read_text())


def mean(runs: list[dict], row: str, measure: str) -> float:
    return float(np.mean([run[row][measure] for run in runs]))


def test_refreshed_statistics() -> None:
    found = measured("refreshed_statistics")
    for ema, weights in (("0", "last weights"), ("0.99", "averaged weights")):
        runs = found[ema]
        for row in runs[0]:
            accuracy, loss, ece = (mean(runs, row, m) for m in ("accuracy", "cross_entropy", "ece"))
            assert f"| {weights} | {row} | {100 * accuracy:.2f} | {loss:.4f} | {100 * ece:.2f} |" in GUIDE
        # "better in every seed", "worse"
        for run in runs:
            losses = {row: run[row]["cross_entropy"] for row in run}
            assert losses["on shrunk inputs"] < losses["as they are"] < losses["on inputs as they are"]
            assert run["on shrunk inputs"]["accuracy"] > run["as they are"]["accuracy"]
