"""What predicting costs beyond the bare network: 10⁵ rows of features, in one run, alternating; medians.

    python benchmarks/prediction.py [--json docs/measured/prediction.json] [--models mlp]

The bare network is `net(x)` without gradients, over the same batches, which fit a cache. Rows: `run.predict_proba(x)`
in memory, and `mixreg predict` as a whole (reading an .npz, preparing, predicting, writing a CSV), each as a multiple
of it: of the time on the clock, and of the time that all threads together spent computing, which other programs disturb
less. Beside them, the whole as a multiple of one call of `net(x)` with all rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import keep, medians

from mixreg._support.freed_memory import keep_freed_memory
from mixreg.data.unlabelled import parts_of, sources
from mixreg.evaluation.predictions import Writer, predicted
from mixreg.training import Config
from mixreg.training.engine import Engine
from mixreg.training.finished import FinishedRun, batch_size, load
from mixreg.training.run import train

ROWS, COLUMNS = 100_000, 64


def make_run(folder: Path, model: str) -> FinishedRun:
    """A network trained for a moment on features, fitted."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, COLUMNS)).astype(np.float32)
    np.savez(folder / "d.npz", x_train=x, y_train=np.argmax(x[:, :10], 1))
    config = Config(data=str(folder / "d.npz"), model=model, epochs=1)
    train(config, folder / model.replace(":", "-"), Engine(accelerator="cpu"))
    return load(folder / model.replace(":", "-"), model=model if ":" in model else None)


def wide(num_classes: int) -> torch.nn.Module:
    """Three hidden layers of 1,024: 2.2 million multiplications a row."""
    layers: list[torch.nn.Module] = []
    for size in (COLUMNS, 1024, 1024):
        layers += [torch.nn.Linear(size, 1024), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, num_classes))


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", nargs="*", default=["mlp", "prediction:wide"])
    asked = parser.parse_args()
    keep_freed_memory()  # as the command does
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
        np.savez(folder / "x.npz", x=x.numpy())
        for model in asked.models:
            run = make_run(folder, model)
            net = run.trained.net

            def bare(net: torch.nn.Module = net) -> None:
                with torch.no_grad():
                    for part in x.split(batch_size((COLUMNS,))):
                        net(part)

            def whole(run: FinishedRun = run) -> None:
                parts = parts_of(sources([folder / "x.npz"]), run.trained.shape, False, ())
                with (folder / "p.csv").open("wb") as file:
                    file.writelines(predicted(run, parts, Writer(run, "csv")))

            def in_memory(run: FinishedRun = run) -> None:
                run.predict_proba(x)

            def at_once(net: torch.nn.Module = net) -> None:
                with torch.no_grad():
                    net(x)

            contestants: dict[str, Callable[[], object]] = {
                "bare": bare,
                "one call": at_once,
                "predict_proba": in_memory,
                "from .npz to .csv": whole,
            }
            for clock, said in ((time.perf_counter, "time"), (time.process_time, "computing")):
                found = medians(contestants, rounds=21 if model == "mlp" else 5, clock=clock)
                for what in ("predict_proba", "from .npz to .csv"):
                    ratios[f"{model.split(':')[-1]}: {what}, {said}"] = round(found[what] / found["bare"], 2)
                what = "from .npz to .csv"
                ratios[f"{model.split(':')[-1]}: {what}, {said}, beside one call"] = round(
                    found[what] / found["one call"], 2
                )
    keep("prediction", ratios, asked.json)


if __name__ == "__main__":
    main()
