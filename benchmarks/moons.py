"""Two moons: all repetitions in one computation beside one after another; the same code, the same results.

python benchmarks/moons.py
"""

from __future__ import annotations

import torch
from timing import medians, show

from mixreg.experiments import moons

REPETITIONS = 30
SETTING = moons.Setting(steps=200, measurements=10)


def compare(dtype: torch.dtype) -> None:
    """All three trainings of the paper's two-moons experiment, with fewer steps."""
    seeds = list(range(REPETITIONS))
    together = moons.draw_problems(seeds, SETTING, dtype)
    alone = [moons.draw_problems([seed], SETTING, dtype) for seed in seeds]
    worst = 0.0
    for method in moons.METHODS:
        weights = moons.train(method, together, SETTING).weights
        single = torch.cat([moons.train(method, problem, SETTING).weights for problem in alone])
        worst = max(worst, float((weights - single).abs().max()))

    def at_once() -> None:
        for method in moons.METHODS:
            moons.train(method, together, SETTING)

    def one_by_one() -> None:
        for method in moons.METHODS:
            for problem in alone:
                moons.train(method, problem, SETTING)

    measured = medians({"one after another": one_by_one, "together": at_once}, 3)
    title = f"{REPETITIONS} repetitions, {SETTING.steps} steps, {dtype}; weights differ by at most {worst:.1e}"
    show(title, measured, ["together"])


if __name__ == "__main__":
    for kind in (torch.float32, torch.float64):
        compare(kind)
