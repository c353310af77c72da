"""What the terms of Theorem 3 cost, in forward passes over the same data, and in memory.

    python benchmarks/terms.py [--json FILE]

ResNet-50 with 1,000 classes on 224 × 224 images and LeNet on the images of CIFAR-10 from a loader: exact terms where
they can be had, and estimates from 4 tangents by forward mode and by differences. And how the cost grows with samples,
coordinates and classes. One thread; each figure is a ratio within one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import keep
from torch import nn

from mixreg import risk
from mixreg.data.loading import load
from mixreg.models import build
from mixreg.training.array_batches import channels_first

TANGENTS = 4
KINDS = {"tangents": "forward", "differences": "differences"}


def seconds(run: Callable[[], object], rounds: int = 3) -> float:
    """The median of some rounds."""
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return sorted(found)[rounds // 2]


STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> float:
    """The peak of this process's memory begins anew, where it is now: in megabytes."""
    FORGET.write_text("5")
    return peak_megabytes()


def peak_megabytes() -> float:
    """Of this process since then."""
    peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def passes(net: nn.Module, forward: Callable[[], object], derivatives: str, x: Any, y: torch.Tensor | None) -> float:
    """Forward passes that terms cost."""
    generator = torch.Generator().manual_seed(0)
    # Before and after: other work on the machine comes and goes.
    before = seconds(forward)
    asked = seconds(
        lambda: risk.quadratic(net, x, y, 1.0, tangents=TANGENTS, derivatives=derivatives, generator=generator),
        rounds=1,
    )
    return asked / ((before + seconds(forward)) / 2)


def resnet50() -> dict[str, float]:
    """Eight images of 224 × 224, 1,000 classes."""
    torch.manual_seed(0)
    net = build("resnet50", (3, 224, 224), 1000).eval()
    x, y = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))
    size = 6

    @torch.no_grad()
    def forward() -> None:
        for part in x.split(size):
            net(part)

    start = forget_peak()
    found = {f"ResNet-50, {name}": passes(net, forward, kind, x, y) for name, kind in KINDS.items()}
    return found | {"ResNet-50, MB": peak_megabytes() - start}


def lenet(images: int) -> dict[str, float]:
    """Images of CIFAR-10 from a loader, in batches of 500."""
    torch.manual_seed(0)
    net = build("lenet", (3, 32, 32), 10).eval()
    x, y = (part[:images] for part in channels_first(load("cifar10").train))
    starts = range(0, len(x), 500)

    class Loader:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return ((x[s : s + 500].float() / 255, y[s : s + 500]) for s in starts)

    @torch.no_grad()
    def forward() -> None:
        for part, _ in Loader():
            net(part)

    start = forget_peak()
    found = {
        f"LeNet, {images:,} images, {name}": passes(net, forward, kind, Loader(), None) for name, kind in KINDS.items()
    }
    return found | {f"LeNet, {images:,} images, MB": peak_megabytes() - start}


def growth() -> dict[str, float]:
    """Seconds of exact terms and of estimates for a dense network, as one of n, d and c grows."""
    found: dict[str, float] = {}
    for what, sizes in (("n", (64, 256, 1024)), ("d", (32, 128, 512)), ("c", (4, 16, 64))):
        for size in sizes:
            n, d, c = (size if what == name else usual for name, usual in (("n", 256), ("d", 64), ("c", 8)))
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(d, 128), nn.GELU(), nn.Linear(128, c))
            x, y = torch.randn(max(n, d + 1), d), torch.randint(c, (max(n, d + 1),))
            for name, tangents in (("exact", None), ("tangents", TANGENTS)):
                asked = partial(risk.quadratic, net, x, y, tangents=tangents)
                found[f"{what} = {size}, {name}, ms"] = 1e3 * seconds(asked)
    return found


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=50_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = resnet50() | lenet(asked.images // 10) | lenet(asked.images) | growth()
    keep("terms", found, asked.json)


if __name__ == "__main__":
    main()
