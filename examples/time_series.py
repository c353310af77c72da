"""Time series with a convolution over time: mixed by the loader's `collate_fn`, as any floating input is.

python examples/time_series.py            # a few seconds
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mixreg import Mixup, Rescaled

STEPS, CLASSES = 48, 3


def series(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy waves n × 1 × 48 of one of three shapes at any phase: a sine, a square, a saw-tooth."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    turns = torch.arange(STEPS) / 12 + torch.rand(n, 1, generator=generator)
    sine = (2 * torch.pi * turns).sin()
    waves = torch.stack([sine, sine.sign(), 2 * (turns % 1) - 1])[y, torch.arange(n)]
    return (waves + 0.4 * torch.randn(waves.shape, generator=generator)).unsqueeze(1), y


def network() -> nn.Module:
    """Logits n × c of n × 1 × 48."""
    torch.manual_seed(0)
    layers = [nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.Conv1d(16, 16, 7, padding=3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, CLASSES))


def train(epochs: int, seed: int) -> nn.Module:
    """A network trained on what the loader mixes."""
    net, data = network(), TensorDataset(*series(384, seed=0))
    mix = Mixup(0.3, CLASSES, generator=torch.Generator().manual_seed(seed))
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size=48, shuffle=True, generator=order, collate_fn=mix.collate_fn)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net


def main(epochs: int) -> float:
    """Train, and say how many new series are right."""
    net = train(epochs, seed=0)
    plain = DataLoader(TensorDataset(*series(384, seed=0)), batch_size=96)
    model = Rescaled.from_loader(net, plain, alpha=0.3, num_classes=CLASSES)
    x, y = series(500, seed=1)
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).float().mean())
    print(f"{100 * accuracy:.1f} % of series are right")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    main(parser.parse_args().epochs)
