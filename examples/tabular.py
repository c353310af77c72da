"""A table with categories: embedded, mixed there, and predicted with the rule of what was mixed.

python examples/tabular.py            # a few seconds
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mixreg import DataMoments, Mixup, Rescaled, mixed_loss

COLOURS, NUMBERS, WIDTH, CLASSES = 6, 4, 3, 2


def table(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers n × 4, a category n, and a label that depends on both."""
    generator = torch.Generator().manual_seed(seed)
    numbers, colour = torch.randn(n, NUMBERS, generator=generator), torch.randint(COLOURS, (n,), generator=generator)
    score = numbers[:, 0] + torch.where(colour % 2 == 0, 1.0, -1.0) * numbers[:, 1]
    return numbers, colour, (score + 0.3 * torch.randn(n, generator=generator) > 0).long()


class Table(nn.Module):
    """A vector for each category beside the numbers, and a network of both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(COLOURS, WIDTH)
        self.head = nn.Sequential(nn.Linear(NUMBERS + WIDTH, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def embed(self, numbers: Tensor, colour: Tensor) -> Tensor:
        """What is mixed: n × 7."""
        return torch.cat([numbers, self.embedding(colour)], 1)


def rescaled_head(net: Table, mix: Mixup, numbers: Tensor, colour: Tensor, y: Tensor) -> nn.Module:
    """The head with the rule on what goes into it, whose mean is taken when the embedding is trained."""
    moments = DataMoments(CLASSES)
    with torch.no_grad():
        moments.update(net.embed(numbers, colour), y)
    return Rescaled(net.head, rule=mix.rule(moments))


def main(epochs: int) -> dict[str, float]:
    """Train, and say what is right of new rows, plain and rescaled."""
    torch.manual_seed(0)
    numbers, colour, y = table(600, seed=0)
    net, mix, criterion = Table(), Mixup(alpha=0.5), mixed_loss(nn.CrossEntropyLoss())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(epochs):
        for chosen in torch.randperm(len(y)).split(50):
            embedded, mixed = mix(net.embed(numbers[chosen], colour[chosen]), y[chosen], parts=True)
            optimizer.zero_grad()
            criterion(net.head(embedded), mixed).backward()
            optimizer.step()
    found, heads = {}, {"plain": net.head, "rescaled": rescaled_head(net, mix, numbers, colour, y)}
    numbers, colour, y = table(1000, seed=1)
    for name, head in heads.items():
        with torch.no_grad():
            logits = head(net.embed(numbers, colour))
        found[name] = float((logits.argmax(1) == y).float().mean())
        loss = float(nn.functional.cross_entropy(logits, y))
        print(f"{name:9} {100 * found[name]:.1f} % right, cross-entropy {loss:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    main(parser.parse_args().epochs)
