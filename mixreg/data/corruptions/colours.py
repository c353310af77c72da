"""Colour and resolution: brightness, contrast, saturation, JPEG, pixels; x: n × 3 × h × w in [0, 1], before clipping.

In HSV, V is the largest channel and a colour is V (1 − S k) with k in [0, 1] set by its hue. Changing V or S alone
needs no hue: colours scale with V, and their distance to V scales with S.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from mixreg.data.corruptions.blurs import separable

Generator = torch.Generator | None


def brightness(x: Tensor, _: Generator, amount: float) -> Tensor:
    """V ↦ V + amount."""
    value = x.amax(1, keepdim=True)
    brighter = (value + amount).clamp(max=1)
    return torch.where(value > 0, x * brighter / value.clamp(min=1e-9), brighter)


def contrast(x: Tensor, _: Generator, factor: float) -> Tensor:
    """Towards each channel's mean over the image."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def saturate(x: Tensor, _: Generator, factor: float, amount: float) -> Tensor:
    """S ↦ S factor + amount; grey counts as red."""
    value = x.amax(1, keepdim=True)
    saturation = 1 - x.amin(1, keepdim=True) / value.clamp(min=1e-9)
    wanted = (saturation * factor + amount).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0]).reshape(1, 3, 1, 1)
    coloured = value - (value - x) * wanted / saturation.clamp(min=1e-9)
    return torch.where(saturation > 0, coloured, value * (1 - wanted * red))


def jpeg_compression(x: Tensor, _: Generator, quality: float) -> Tensor:
    """Encoded as JPEG and decoded again."""
    result = []
    for image in (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy():
        encoded = io.BytesIO()
        Image.fromarray(image).save(encoded, "JPEG", quality=int(quality))
        result.append(np.asarray(Image.open(encoded)))
    return torch.from_numpy(np.stack(result)).permute(0, 3, 1, 2).float() / 255


def pixelate(x: Tensor, _: Generator, factor: float) -> Tensor:
    """Averaged down to a fraction of the side, and enlarged again without interpolation."""
    side = x.shape[2]
    small = int(side * factor)
    # Pillow's box filter: the pixels whose middle lies in the box, weighted alike.
    middle, centre = torch.arange(side) + 0.5, (torch.arange(small) + 0.5) * (side / small)
    inside = ((middle - centre[:, None]).abs() <= side / small / 2).float()
    down = inside / inside.sum(1, keepdim=True)
    return interpolate(separable(x, down), size=side, mode="nearest-exact")
