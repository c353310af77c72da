"""Two runs of a sweep: side by side with one thread each, or one after the other with all threads.

    python benchmarks/sweeps.py [--models lenet small-resnet resnet9] [--images 3200] [--rounds 7] [--json FILE]

An epoch of `mixreg train` by Mixup (`benchmarks/training.py`), in processes that take turns; medians. Below 1, a core
for each run is quicker, which is how `mixreg reproduce` shares a machine out unless it is told otherwise.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from timing import keep, medians
from training import process

from mixreg.experiments.provenance import cores


def compared(model: str, images: int, rounds: int, folder: Path) -> float:
    """Seconds of as many epochs as there are cores, side by side ÷ one after the other."""
    count = cores()
    with ExitStack() as stack:

        def run(name: str, threads: int) -> Callable[[], object]:
            place = folder / f"{model}-{name}"
            place.mkdir()
            return stack.enter_context(process("mixreg", model, "mixup", images, threads, place))

        single = [run(str(k), 1) for k in range(count)]
        whole = run("whole", count)
        pool = stack.enter_context(ThreadPoolExecutor(count))
        found = medians(
            {
                "side by side": lambda: list(pool.map(lambda epoch: epoch(), single)),
                "one after the other": lambda: [whole() for _ in range(count)],
            },
            rounds,
        )
    return found["side by side"] / found["one after the other"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["lenet", "small-resnet", "resnet9"])
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        ratios = {model: compared(model, given.images, given.rounds, Path(name)) for model in given.models}
    keep("sweeps", ratios, given.json)
