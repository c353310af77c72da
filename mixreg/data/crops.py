"""Crops of pictures, as ImageNet's are: which part is taken, and what it is scaled to.

A crop is chosen from the width and height alone, before a picture is decoded. So a JPEG can be decoded at the smallest
of the scales 1, 1/2, 1/4, 1/8 at which the part that is taken is still as large as what it is scaled to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from PIL import Image

from mixreg._support.random import uniform

# A picture that is longer than so many times its width is cut before it is scaled.
LONGEST = 32
# What libjpeg can divide a picture's sides by while it decodes it.
_DIVISORS = (8, 4, 2, 1)


class Crop(NamedTuple):
    """The part `box` of a picture is scaled to `scaled`, and of that the middle is kept.

    Attributes:
        box: left, top, right, bottom.
        scaled: width, height.
        kept: width, height.
        is_mirrored: whether left and right are exchanged in the end.
    """

    box: tuple[float, float, float, float]
    scaled: tuple[int, int]
    kept: tuple[int, int]
    is_mirrored: bool = False

    @property
    def divisor(self) -> int:
        """The largest number the picture's sides can be divided by before what is needed would have to be enlarged."""
        left, top, right, bottom = self.box
        needed = min(self.scaled)
        return next((d for d in _DIVISORS if min(right - left, bottom - top) >= d * needed), 1)

    def of_reduced(self, divisor: int, x: float, y: float) -> Crop:
        """The same crop of a picture with sides divided by `divisor`, which begins at (x, y) there."""
        left, top, right, bottom = (side / divisor for side in self.box)
        return self._replace(box=(left + x, top + y, right + x, bottom + y))

    def of(self, image: Image.Image) -> Image.Image:
        """The crop of this picture."""
        image = image.resize(self.scaled, Image.Resampling.BILINEAR, self.box)
        if self.kept != self.scaled:
            left, top = ((have - keep) // 2 for have, keep in zip(self.scaled, self.kept, strict=True))
            image = image.crop((left, top, left + self.kept[0], top + self.kept[1]))
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if self.is_mirrored else image


# A crop of a picture of some width and height.
Chooser = Callable[[int, int], Crop]


def centre(width: int, height: int, size: int) -> Crop:
    """The middle of a picture after its shorter side was scaled to 256 for a crop of 224."""
    # Scaled as a whole, 1 × 30,000 pixels would become 256 × 7,680,000.
    w, h = min(width, LONGEST * height), min(height, LONGEST * width)
    left, top = (width - w) // 2, (height - h) // 2
    scale = round(size * 256 / 224) / min(w, h)
    scaled = (max(size, round(w * scale)), max(size, round(h * scale)))
    return Crop((left, top, left + w, top + h), scaled, (size, size))


def random_window(width: int, height: int, size: int, generator: torch.Generator) -> Crop:
    """8 to 100 % of the area with an aspect of 3/4 to 4/3, scaled to size × size and mirrored half the time."""
    is_mirrored = float(uniform((), generator)) < 0.5
    for _ in range(10):
        area, aspect, across, down = uniform((4,), generator, torch.float64).tolist()
        area = width * height * (0.08 + 0.92 * area)
        aspect = math.exp(math.log(3 / 4) + aspect * math.log(16 / 9))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
            return Crop((left, top, left + w, top + h), (size, size), (size, size), is_mirrored)
    return centre(width, height, size)._replace(is_mirrored=is_mirrored)


def fitting(width: int, height: int, shape: tuple[int, int]) -> Crop:
    """The largest part in the middle that has the proportions of `shape` (width, height), scaled to it."""
    scale = max(shape[0] / width, shape[1] / height)
    # Rounded, 224 / (224 / 55) is more than 55.
    w, h = min(width, shape[0] / scale), min(height, shape[1] / scale)
    left, top = (width - w) / 2, (height - h) / 2
    return Crop((left, top, left + w, top + h), shape, shape)


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """The middle of a picture, see `centre`."""
    return centre(*image.size, size).of(image)


def random_crop(image: Image.Image, size: int, generator: torch.Generator) -> Image.Image:
    """A random window of a picture, see `random_window`."""
    return random_window(*image.size, size, generator).of(image)
