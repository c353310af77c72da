"""Cross-entropy of mixed labels, forward and backward: (y, y_partner, share) beside soft labels made and compared.

    python benchmarks/mixed_loss.py

Soft labels are made as one does (one-hot rows, mixed) and as cheaply as they can be (two numbers written into zeros).
Two gathers are what one writes by hand: two losses of class indices, each with its share.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import keep, medians, show

from mixreg import MixedTargets, mixed_loss

SIZES = ((1024, 1000), (256, 50_000))


def contestants(n: int, classes: int) -> dict[str, Callable[[], object]]:
    """The ways to a gradient of n × classes logits."""
    torch.manual_seed(0)
    logits = torch.randn(n, classes, requires_grad=True)
    y, order, share = torch.randint(classes, (n,)), torch.randperm(n), torch.rand(n) / 2
    mixed, criterion = MixedTargets(y, y[order], share), mixed_loss(torch.nn.CrossEntropyLoss())
    column = share.unsqueeze(1)

    def one_hot() -> None:
        logits.grad = None
        labels = F.one_hot(y, classes).float()
        F.cross_entropy(logits, torch.lerp(labels, labels[order], column)).backward()

    def written() -> None:
        logits.grad = None
        labels = torch.zeros(n, classes).scatter_(1, y.unsqueeze(1), 1 - column)
        F.cross_entropy(logits, labels.scatter_add_(1, y[order].unsqueeze(1), column)).backward()

    def gathers() -> None:
        logits.grad = None
        own, other = (F.cross_entropy(logits, label, reduction="none") for label in (y, y[order]))
        torch.lerp(own, other, share).mean().backward()

    def pairs() -> None:
        logits.grad = None
        criterion(logits, mixed).backward()

    return {"soft labels": one_hot, "soft labels, written": written, "two gathers": gathers, "mixed_loss": pairs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = {}
    for n, classes in SIZES:
        measured = medians(contestants(n, classes), given.rounds, calls=1 if classes > 10_000 else 8)
        show(f"{n} × {classes}, {given.threads} threads", measured, ["soft labels", "soft labels, written"])
        for baseline in ("soft labels", "soft labels, written"):
            found[f"{n} × {classes}, ÷ {baseline}"] = measured["mixed_loss"] / measured[baseline]
    keep("mixed_loss", found, given.json)
