"""Imbalanced classes: partners drawn balanced over classes, and the rule with balanced means.

python examples/imbalanced.py            # a few seconds
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mixreg import DataMoments, Mixup, Rescaled, mixed_loss

FREQUENCIES = torch.tensor([0.8, 0.15, 0.05])
CENTRES = torch.tensor([[0.0, 0.0], [1.5, 0.5], [0.5, 1.8]])


def points(n: int, seed: int, frequencies: Tensor = FREQUENCIES) -> tuple[Tensor, Tensor]:
    """Points n × 2 of three classes with these frequencies."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(frequencies, n, replacement=True, generator=generator)
    return CENTRES[y] + 0.6 * torch.randn(n, 2, generator=generator), y


def recall(model: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """The share of each class that is found."""
    with torch.no_grad():
        is_right = (model(x).argmax(1) == y).float()
    return [float(is_right[y == label].mean()) for label in range(len(FREQUENCIES))]


def train(mix: Mixup, epochs: int) -> nn.Module:
    """A small network, trained on mixed points."""
    torch.manual_seed(0)
    x, y = points(1000, seed=0)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
    criterion, optimizer = mixed_loss(nn.CrossEntropyLoss()), torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(100):
            mixed_x, mixed = mix(x[chosen], y[chosen], parts=True)
            optimizer.zero_grad()
            criterion(net(mixed_x), mixed).backward()
            optimizer.step()
    moments = DataMoments(num_classes=3)
    moments.update(x, y)
    return Rescaled(net, rule=mix.rule(moments))


def main(epochs: int) -> dict[str, list[float]]:
    """Train both ways, and say how much of each class is found."""
    x, y = points(3000, seed=1, frequencies=torch.ones(3))
    models = {
        "uniform partners": train(Mixup(1.0), epochs),
        "balanced partners": train(Mixup(1.0, partners="balanced"), epochs),
    }
    found = {name: recall(model, x, y) for name, model in models.items()}
    for name, values in found.items():
        print(f"{name:17} found of each class: {', '.join(f'{100 * value:.0f} %' for value in values)}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)
