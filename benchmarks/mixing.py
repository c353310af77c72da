"""Mixing a batch: mixreg beside torchvision, timm and kornia, with a plain memory copy as the floor.

    python benchmarks/mixing.py

Where a package is not installed its stated algorithm is written out in its place, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from timing import medians, show
from torch import Tensor

from mixreg import Mixup

CLASSES = 1000
Contestant = Callable[[Tensor, Tensor], object]


def importable(package: str) -> bool:
    """Whether `package` is installed and works with this PyTorch."""
    if find_spec(package) is None:
        return False
    try:
        __import__(package)
    except (ImportError, RuntimeError):
        return False
    return True


def torchvision_mixup(alpha: float) -> tuple[str, Contestant]:
    """One λ per batch, rolled by one."""
    if importable("torchvision"):
        from torchvision.transforms import v2

        return "torchvision v2.MixUp", v2.MixUp(alpha=alpha, num_classes=CLASSES)
    beta = torch.distributions.Beta(alpha, alpha)

    def stated(x: Tensor, y: Tensor) -> object:
        share = float(beta.sample(()))
        labels = F.one_hot(y, CLASSES).to(x.dtype)
        return (
            x.roll(1, 0).mul_(1 - share).add_(x.mul(share)),
            labels.roll(1, 0).mul_(1 - share).add_(labels.mul(share)),
        )

    return "torchvision's algorithm", stated


def timm_mixup(alpha: float) -> tuple[str, Contestant]:
    """One λ per batch, batch reversed, in place."""
    if importable("timm"):
        from timm.data import Mixup as TimmMixup

        return "timm batch, in place", TimmMixup(mixup_alpha=alpha, num_classes=CLASSES, label_smoothing=0.0)
    beta = torch.distributions.Beta(alpha, alpha)

    def stated(x: Tensor, y: Tensor) -> object:
        share = float(beta.sample(()))
        flipped = x.flip(0).mul_(1 - share)
        x.mul_(share).add_(flipped)
        labels = [torch.zeros(len(y), CLASSES).scatter_(1, z.unsqueeze(1), 1.0) for z in (y, y.flip(0))]
        return x, labels[0] * share + labels[1] * (1 - share)

    return "timm's algorithm, in place", stated


def kornia_mixup() -> tuple[str, Contestant]:
    """Uniform λ per sample, a permutation, (y, y', λ) as the label."""
    if importable("kornia"):
        from kornia.augmentation import RandomMixUpV2

        augmentation = RandomMixUpV2(p=1.0, data_keys=["input", "class"])
        return "kornia RandomMixUpV2", lambda x, y: augmentation(x, y)

    def stated(x: Tensor, y: Tensor) -> object:
        order = torch.randperm(len(x))
        share = torch.rand(len(x))
        weight = share.reshape(-1, 1, 1, 1)
        return x * (1 - weight) + x[order] * weight, torch.stack([y.float(), y[order].float(), share], 1)

    return "kornia's algorithm", stated


def run(shape: tuple[int, ...], alpha: float, rounds: int) -> None:
    """One table for one batch."""
    x, y = torch.rand(shape), torch.randint(0, CLASSES, shape[:1])
    buffer, mutable = torch.empty_like(x), {name: x.clone() for name in ("timm", "inplace")}
    fresh, inplace = Mixup(alpha, CLASSES), Mixup(alpha, CLASSES, inplace=True)
    vision, timm, kornia = torchvision_mixup(alpha), timm_mixup(alpha), kornia_mixup()
    contestants: dict[str, Callable[[], object]] = {
        "copy into a buffer": lambda: buffer.copy_(x),
        vision[0]: lambda: vision[1](x, y),
        timm[0]: lambda: timm[1](mutable["timm"], y),
        kornia[0]: lambda: kornia[1](x, y),
        "mixreg, per sample": lambda: fresh(x, y),
        "mixreg, per sample, in place": lambda: inplace(mutable["inplace"], y),
    }
    title = f"{' × '.join(map(str, shape))} float32, α = {alpha:g}, {torch.get_num_threads()} threads"
    show(title, medians(contestants, rounds), ["copy into a buffer", vision[0], timm[0]])


if __name__ == "__main__":
    run((256, 3, 224, 224), 1.0, rounds=15)
    run((128, 3, 32, 32), 1.0, rounds=400)
    run((128, 3, 32, 32), 0.2, rounds=400)
