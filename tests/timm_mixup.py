# ruff: noqa: NPY002
"""timm's Mixup: the installed one, or its documented algorithm where timm is not installed.

timm's package imports torchvision, which does not go with every PyTorch; its module of mixing needs neither.
"""

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import torch


def installed_mixup():
    """The class of the installed timm; None where it is not, or has the boxes of versions before 1.0.31."""
    found = importlib.util.find_spec("timm")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(next(iter(found.submodule_search_locations))) / "data" / "mixup.py"
    spec = importlib.util.spec_from_file_location("timm_data_mixup", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Earlier versions lose a pixel of odd boxes, and never put a box of `minmax` at the last place.
    return module.Mixup if "multi_label" in inspect.signature(module.Mixup).parameters else None


def documented_mixup(
    mixup_alpha=1.0,
    cutmix_alpha=0.0,
    cutmix_minmax=None,
    prob=1.0,
    switch_prob=0.5,
    mode="batch",
    label_smoothing=0.1,
    num_classes=1000,
):
    """What timm documents: λ of the row's own image, partners from the reversed batch, boxes by λ or by `minmax`."""
    if cutmix_minmax is not None:
        cutmix_alpha = 1.0

    def draw():
        """λ and whether to cut."""
        if np.random.rand() >= prob:
            return 1.0, False
        cuts = cutmix_alpha > 0 and (mixup_alpha == 0 or np.random.rand() < switch_prob)
        alpha = cutmix_alpha if cuts else mixup_alpha
        return np.random.beta(alpha, alpha), cuts

    def box(height, width, lam):
        sides = []
        for side in (height, width):
            if cutmix_minmax is not None:
                length = np.random.randint(int(side * cutmix_minmax[0]), int(side * cutmix_minmax[1]))
                first = np.random.randint(0, side - length + 1)
                sides.append((first, first + length))
            else:
                length, centre = int(side * np.sqrt(1 - lam)), np.random.randint(side)
                sides.append((max(0, centre - length // 2), min(side, centre + (length + 1) // 2)))
        return sides

    def mix(x, before, rows, lam, cuts):
        """The rows of a batch, changed in place, with partners as they were before; their λ."""
        if lam == 1:
            return 1.0
        partners = before[[len(before) - 1 - row for row in rows]]
        if not cuts:
            x[rows] = x[rows] * lam + partners * (1 - lam)
            return lam
        height, width = x.shape[-2:]
        (top, bottom), (left, right) = box(height, width, lam)
        x[rows, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
        return 1 - (bottom - top) * (right - left) / (height * width)

    def mixup(x, y):
        n, before = len(x), x.clone()
        lam = torch.ones(n, 1, dtype=torch.float64)
        groups = {"batch": [list(range(n))], "elem": [[i] for i in range(n)]}.get(mode)
        for rows in groups or [[i, n - 1 - i] for i in range(n // 2)]:
            lam[rows] = mix(x, before, rows, *draw())
        off = label_smoothing / num_classes
        labels = torch.full((n, num_classes), off, dtype=torch.float64).scatter(
            1, y[:, None], 1 - label_smoothing + off
        )
        return x, labels * lam + labels.flip(0) * (1 - lam)

    return mixup
