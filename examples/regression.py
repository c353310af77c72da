"""Regression with C-Mixup: partners whose targets are near, so that what lies between them is plausible.

python examples/regression.py            # a few seconds

What a sample is mixed with depends on its target, so that there is no rule to undo it: predictions are used as they
are.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mixreg import Mixup, SimilarTargets, mixed_loss


def curve(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points around a spiral, n × 2, and how far along it they are: n × 1."""
    generator = torch.Generator().manual_seed(seed)
    y = 3 * torch.rand(n, 1, generator=generator)
    x = torch.cat([(2 * y).cos(), (2 * y).sin()], 1) * (0.5 + 0.3 * y)
    return x + 0.05 * torch.randn(n, 2, generator=generator), y


def train(mix: Mixup, epochs: int) -> nn.Module:
    """A small network, trained on mixed points."""
    torch.manual_seed(0)
    x, y = curve(300, seed=0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    criterion, optimizer = mixed_loss(nn.MSELoss()), torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(50):
            mixed_x, mixed = mix(x[chosen], y[chosen], parts=True)
            optimizer.zero_grad()
            criterion(net(mixed_x), mixed).backward()
            optimizer.step()
    return net


def main(epochs: int) -> dict[str, float]:
    """Train with partners of both kinds, and say how far off predictions are."""
    methods = {"any partners": Mixup(1.0), "similar partners": Mixup(1.0, partners=SimilarTargets(0.2))}
    found, (x, y) = {}, curve(500, seed=1)
    for name, mix in methods.items():
        net = train(mix, epochs)
        with torch.no_grad():
            found[name] = float((net(x) - y).square().mean().sqrt())
        print(f"{name:17} root mean squared error {found[name]:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    main(parser.parse_args().epochs)
