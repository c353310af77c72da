"""Several labels at once: each is mixed as a number, and compared by binary cross-entropy with weights of its own.

python examples/multilabel.py            # a few seconds
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mixreg import DataMoments, Mixup, Rescaled, mixed_loss

LABELS, INPUTS = 4, 10


def tagged(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs n × 10 and whether each of four labels holds, n × 4 booleans; the last is rare."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(INPUTS, LABELS, generator=torch.Generator().manual_seed(9))
    x = torch.randn(n, INPUTS, generator=generator)
    noise = torch.randn(n, LABELS, generator=generator)
    return x, x @ weights + noise > torch.tensor([0.0, 0.0, 1.0, 4.0])


def main(epochs: int) -> float:
    """Train, and say how many labels of new samples are right."""
    torch.manual_seed(0)
    x, y = tagged(600, seed=0)
    net = nn.Sequential(nn.Linear(INPUTS, 32), nn.ReLU(), nn.Linear(32, LABELS))
    # As often as a label is missing for each time that it holds, at most 3.
    rarity = (1 / y.float().mean(0) - 1).clamp(max=3)
    mix, criterion = Mixup(alpha=0.5), mixed_loss(nn.BCEWithLogitsLoss(pos_weight=rarity))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(60):
            mixed_x, mixed = mix(x[chosen], y[chosen], parts=True)
            optimizer.zero_grad()
            criterion(net(mixed_x), mixed).backward()
            optimizer.step()
    moments = DataMoments()
    moments.update(x, y)
    model = Rescaled(net, rule=mix.rule(moments))
    x, y = tagged(1000, seed=1)
    with torch.no_grad():
        accuracy = float(((model(x) > 0) == y).float().mean())
    print(f"{100 * accuracy:.1f} % of labels are right")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    main(parser.parse_args().epochs)
