"""How long `mixreg train --data digits --epochs 1` takes, as a multiple of `import torch`; alternating, medians.

    python benchmarks/startup.py [--rounds 15] [--json FILE]

Both are whole processes, from the command to the prompt. The run trains, evaluates, fits its rule and writes its
folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from timing import medians, show

IMPORT, TRAIN = "import torch", "mixreg train, digits, 1 epoch"


def process(*arguments: str) -> Callable[[], None]:
    """A Python process with these arguments, waited for."""

    def run() -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    return run


def new_run(folder: Path) -> None:
    """A run in a folder of its own."""
    out = tempfile.mkdtemp(dir=folder)
    process("-m", "mixreg", "train", "--data", "digits", "--epochs", "1", "--out", out)()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contestants: dict[str, Callable[[], object]] = {
            "python -c pass": process("-c", "pass"),
            IMPORT: process("-c", "import torch"),
            "mixreg --help": process("-m", "mixreg", "--help"),
            TRAIN: lambda: new_run(Path(folder)),
        }
        found = medians(contestants, given.rounds)
    show("Processes from start to end", found, [IMPORT])
    if given.json is not None:
        record = {"rounds": given.rounds, "seconds": found, "ratio": found[TRAIN] / found[IMPORT]}
        given.json.write_text(json.dumps(record, indent=1))
