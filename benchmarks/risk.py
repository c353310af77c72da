"""What the risks cost: beside a forward pass, a Mixup step, and the bare network evaluations they need.

    python benchmarks/risk.py [--steps] [--json FILE]

All ratios are from one run. For steps of training the process keeps the memory it frees, as `mixreg train` does: else
larger batches pay more page faults than smaller ones. Networks: LeNet, a ResNet-9 with batch normalisation and a dense
network with layer normalisation for steps of training (`--steps`: nothing else), two tanh layers for tables.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import keep, medians, show
from torch import Tensor, nn

from mixreg import ApproximateMixup, DataMoments, Mixup, risk
from mixreg._support.freed_memory import keep_freed_memory
from mixreg.models import build


def lenet(classes: int, side: int = 32) -> nn.Module:
    """LeNet for 3 × side × side images."""
    features = 16 * ((side // 2 - 2) // 2 - 2) ** 2
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return nn.Sequential(*convolutions, *dense)


def normalised(classes: int) -> nn.Module:
    """Four dense layers with layer normalisation and GELU, as transformers have them."""
    blocks = [(nn.Linear(256 if k == 0 else 512, 512), nn.LayerNorm(512), nn.GELU()) for k in range(4)]
    return nn.Sequential(*(layer for block in blocks for layer in block), nn.Linear(512, classes))


def training(title: str, net: nn.Module, x: Tensor, classes: int, rounds: int = 60) -> dict[str, float]:
    """One optimiser step with Mixup and with the approximate risk, in Mixup steps."""
    if x.ndim == 4 and any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules()):
        x, net = x.to(memory_format=torch.channels_last), net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    y = torch.randint(0, classes, (len(x),))
    moments = DataMoments(num_classes=classes)
    moments.update(x, y)
    mix = Mixup(1.0, classes)

    def step(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return run

    def mixup() -> Tensor:
        mixed, soft = mix(x, y)
        return F.cross_entropy(net(mixed), soft)

    @torch.no_grad()
    def forward() -> Tensor:
        return net(x)

    losses = {
        "": ApproximateMixup(1.0, moments),
        ", second order": ApproximateMixup(1.0, moments, second_order=True),
        ", half of the batch": ApproximateMixup(1.0, moments, part=0.5),
        ", differences": ApproximateMixup(1.0, moments, derivatives="differences"),
        ", half, differences": ApproximateMixup(1.0, moments, part=0.5, derivatives="differences"),
    }
    contestants: dict[str, Callable[[], object]] = {"forward pass": forward, "Mixup step": step(mixup)}
    for name, loss in losses.items():
        contestants[f"ApproximateMixup step{name}"] = step(partial(loss, net, x, y))
    found = medians(contestants, rounds)
    show(title, found, ["forward pass", "Mixup step"])
    return {f"{title}: {name}": value / found["Mixup step"] for name, value in found.items()}


def exact_risk(n: int = 500, nodes: int = 32) -> None:
    """The exact Mixup risk beside the network evaluations that it consists of."""
    for d, hidden, classes, dtype in (
        (20, 64, 3, torch.float32),
        (20, 64, 3, torch.float64),
        (64, 128, 10, torch.float32),
    ):
        net = nn.Sequential(nn.Linear(d, hidden), nn.Tanh(), nn.Linear(hidden, classes)).to(dtype)
        x, y = torch.randn(n, d, dtype=dtype), torch.randint(0, classes, (n,))
        evaluations, chunk = n * (n - 1) // 2 * nodes, 1 << 14
        inputs = torch.randn(chunk, d, dtype=dtype)

        @torch.no_grad()
        def bare(net: nn.Module = net, inputs: Tensor = inputs, evaluations: int = evaluations) -> None:
            for _ in range(evaluations // len(inputs)):
                net(inputs)

        def whole(net: nn.Module = net, x: Tensor = x, y: Tensor = y) -> object:
            return risk.mixup(net, x, y, 1.0, nodes=nodes)

        contestants: dict[str, Callable[[], object]] = {"bare network evaluations": bare, "risk.mixup, exact": whole}
        title = f"exact Mixup risk, n = {n}, {nodes} nodes, {d}–{hidden}–{classes} network, {dtype}"
        show(title, medians(contestants, rounds=3), ["bare network evaluations"])


def terms(sizes: tuple[int, ...] = (1250, 2500, 5000)) -> None:
    """The terms of Theorem 3 on CIFAR-sized inputs."""
    net = lenet(10)
    for n in sizes:
        x, y = torch.randn(n, 3, 32, 32), torch.randint(0, 10, (n,))

        @torch.no_grad()
        def forward(x: Tensor = x) -> None:
            for part in x.split(500):
                net(part)

        forward_time = medians({"forward": forward}, rounds=5)["forward"]
        start = time.perf_counter()
        risk.quadratic(net, x, y, 1.0)
        took = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        cost = f"{took:.1f} s = {took / forward_time:.0f} forward passes; peak {memory:.2f} GB"
        print(f"terms of LeNet, n = {n}, d = 3072: {cost}")


def steps() -> dict[str, float]:
    """Of the networks that people have, batches of 128."""
    keep_freed_memory()
    images = torch.randn(128, 3, 32, 32)
    found = training("LeNet", lenet(10), images, 10)
    found |= training("ResNet-9, width 16", build("resnet9-16", (3, 32, 32), 10), images, 10, rounds=30)
    return found | training("dense, LayerNorm, GELU", normalised(10), torch.randn(128, 256), 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", action="store_true", help="steps of training only")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    measured = steps()
    if not asked.steps:
        for classes in (100, 1000):
            training(f"LeNet, {classes} classes", lenet(classes), torch.randn(128, 3, 32, 32), classes)
        training("LeNet, 3 × 64 × 64", lenet(10, 64), torch.randn(128, 3, 64, 64), 10, rounds=8)
        exact_risk()
        terms()
    keep("risk", measured, asked.json)
