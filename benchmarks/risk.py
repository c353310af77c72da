"""What the risks cost: beside a forward pass, a Mixup step, and the bare network evaluations they need.

    python benchmarks/risk.py

All ratios are from one run. Networks: LeNet for images, two tanh layers for tables.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import medians, show
from torch import Tensor, nn

from mixreg import ApproximateMixup, DataMoments, Mixup, risk


def lenet(classes: int, side: int = 32) -> nn.Module:
    """LeNet for 3 × side × side images."""
    features = 16 * ((side // 2 - 2) // 2 - 2) ** 2
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return nn.Sequential(*convolutions, *dense)


def training(batch: int, classes: int, side: int, rounds: int = 30) -> None:
    """One optimiser step with Mixup and with the approximate risk."""
    net = lenet(classes, side)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,))
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

    first, second = (ApproximateMixup(1.0, moments, second_order=order) for order in (False, True))
    contestants: dict[str, Callable[[], object]] = {
        "forward pass": forward,
        "Mixup step": step(mixup),
        "ApproximateMixup step": step(lambda: first(net, x, y)),
        "ApproximateMixup step, second order": step(lambda: second(net, x, y)),
    }
    title = f"LeNet, batch {batch}, {classes} classes, 3 × {side} × {side}"
    show(title, medians(contestants, rounds), ["forward pass", "Mixup step"])


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


if __name__ == "__main__":
    for classes in (10, 100, 1000):
        training(128, classes, 32)
    training(32, 10, 32)
    training(128, 10, 64, rounds=8)
    exact_risk()
    terms()
