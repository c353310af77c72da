"""Timings as ratios within one run: contestants take turns in random order, medians are compared."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from mixreg._support.files import write_json


def medians(
    contestants: dict[str, Callable[[], object]],
    rounds: int,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds per call of each contestant; every round calls each of them `calls` times in random order."""
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for name in order:  # warm up
        contestants[name]()
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            for _ in range(calls):
                start = clock()
                contestants[name]()
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def show(title: str, measured: dict[str, float], baselines: list[str]) -> None:
    """A table of milliseconds and of the ratio to each baseline."""
    table = Table(title=title)
    table.add_column("what")
    table.add_column("ms", justify="right")
    for baseline in baselines:
        table.add_column(f"÷ {baseline}", justify="right")
    for name, seconds in measured.items():
        table.add_row(name, f"{1e3 * seconds:.3f}", *[f"{seconds / measured[b]:.2f}" for b in baselines])
    Console(width=120).print(table)


def keep(name: str, found: dict[str, float], path: Path | None) -> None:
    """Print figures by name and, if a file is given, write them there, so that a change shows."""
    width = max(map(len, found))
    for what, value in found.items():
        print(f"{what:<{width}}  {value:8.2f}")
    if path is not None:
        write_json(path, {"benchmark": name, "threads": torch.get_num_threads(), "found": found})
