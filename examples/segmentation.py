"""Segmentation with CutMix and Mixup: masks are cut and mixed with their images, and what is not labelled is ignored.

python examples/segmentation.py            # a few seconds
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from mixreg import Choice, CutMix, Mixup, mixed_loss

SIDE, CLASSES, UNLABELLED = 16, 3, 255


def shapes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy images with a square or a disc, n × 1 × 16 × 16, and masks n × 16 × 16; edges are not labelled."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(2, (n, 1, 1), generator=generator)
    middle = torch.randint(5, SIDE - 5, (2, n, 1, 1), generator=generator)
    down, across = torch.arange(SIDE).reshape(1, -1, 1) - middle[0], torch.arange(SIDE).reshape(1, 1, -1) - middle[1]
    distance = torch.where(kind == 0, torch.maximum(down.abs(), across.abs()), (down**2 + across**2).sqrt()).float()
    masks = torch.where(distance <= 4, kind + 1, 0)
    masks[(distance - 4).abs() < 0.5] = UNLABELLED
    images = (distance <= 4).float() * torch.where(kind == 0, 1.0, -1.0)
    return (images + 0.7 * torch.randn(images.shape, generator=generator)).unsqueeze(1), masks


def network() -> nn.Module:
    """Three convolutions: logits n × 3 × 16 × 16."""
    layers = [nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, CLASSES, 1))


def pixel_accuracy(net: nn.Module, x: Tensor, masks: Tensor) -> float:
    """Of pixels that are labelled."""
    with torch.no_grad():
        is_right = net(x).argmax(1) == masks
    return float(is_right[masks != UNLABELLED].float().mean())


def main(epochs: int) -> float:
    """Train, and say how many pixels of new images are right."""
    torch.manual_seed(0)
    x, masks = shapes(256, seed=0)
    net = network()
    mix = Choice([Mixup(0.4), CutMix(1.0)])
    criterion = mixed_loss(nn.CrossEntropyLoss(ignore_index=UNLABELLED))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(32):
            mixed_x, mixed = mix(x[chosen], masks[chosen], parts=True)
            optimizer.zero_grad()
            criterion(net(mixed_x), mixed).backward()
            optimizer.step()
    accuracy = pixel_accuracy(net, *shapes(128, seed=1))
    print(f"{100 * accuracy:.1f} % of labelled pixels are right")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
