"""Blur and distortion: x: n × 3 × side × side in [0, 1], before clipping.

Lengths are given for 32 pixels and grow with the side. Filters that act on rows and columns alike are matrices applied
from both sides, M x Mᵀ, which is quicker for small images than any convolution.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad

from mixreg._support.random import integers, uniform

Generator = torch.Generator | None


def relative(x: Tensor) -> float:
    """How much longer lengths are than in an image of 32 pixels."""
    return x.shape[-1] / 32


def separable(x: Tensor, matrix: Tensor) -> Tensor:
    """M x Mᵀ for every channel."""
    return matrix @ x @ matrix.T


def gaussian_matrix(side: int, deviation: float, truncate: float = 4.0) -> Tensor:
    """The Gaussian filter of `scipy.ndimage` along one axis, edges repeated: side × side."""
    radius = int(truncate * deviation + 0.5)
    if radius == 0 or deviation == 0:
        return torch.eye(side)
    taps = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / deviation) ** 2)
    taps = taps / taps.sum()
    matrix = torch.zeros(side, side)
    for offset, weight in zip(range(-radius, radius + 1), taps, strict=True):
        source = (torch.arange(side) + offset).clamp(0, side - 1)
        matrix[torch.arange(side), source] += weight
    return matrix


def smooth(x: Tensor, deviation: float, truncate: float = 4.0) -> Tensor:
    """A Gaussian filter of this many pixels."""
    return separable(x, gaussian_matrix(x.shape[-1], deviation, truncate))


def gaussian_blur(x: Tensor, _: Generator, deviation: float) -> Tensor:
    """A Gaussian filter."""
    return smooth(x, deviation * relative(x))


def defocus_blur(x: Tensor, _: Generator, radius: float, alias: float) -> Tensor:
    """A disk, its edge softened by a 3 × 3 Gaussian."""
    radius = radius * relative(x)
    reach = max(1, math.ceil(radius))
    across = torch.arange(-reach - 1, reach + 2).float()
    disk = (across[:, None] ** 2 + across**2 <= radius**2).float()
    taps = torch.exp(-0.5 * (torch.tensor([-1.0, 0.0, 1.0]) / alias) ** 2)
    taps = taps / taps.sum()
    kernel = conv2d((disk / disk.sum())[None, None], (taps[:, None] * taps)[None, None], padding=1)
    padded = pad(x.flatten(0, 1).unsqueeze(1), [reach + 1] * 4, mode="reflect")
    return conv2d(padded, kernel).reshape(x.shape)


def glass_blur(x: Tensor, generator: Generator, deviation: float, rounds: float) -> Tensor:
    """Blurred, every pixel replaced by itself or a neighbour above or left of it, and blurred again."""
    deviation = deviation * relative(x)
    x = smooth(x, deviation).clone()
    n, side = x.shape[0], x.shape[-1]
    here = torch.arange(n)
    # In order, as published: a pixel may hand on what it has not yet received.
    for _ in range(int(rounds)):
        shifts = integers(2, (side, side, 2, n), generator) - 1
        for row in range(side - 1, 1, -1):
            for column in range(side - 1, 1, -1):
                up, left = shifts[row, column]
                x[:, :, row, column] = x[here, :, row + up, column + left]
    return smooth(x, deviation)


def moved_along(x: Tensor, radius: float, deviation: float, angle: Tensor) -> Tensor:
    """ImageMagick's motion blur: half a Gaussian along a direction, edges repeated; angle: n, in degrees."""
    taps = 2 * math.ceil(radius) + 1
    weights = torch.exp(-0.5 * (torch.arange(taps) / deviation) ** 2)
    weights = weights / weights.sum()
    # Directions are rounded to a degree, so that images with the same one are moved together.
    angle = angle.round()
    side, reach = x.shape[-1], taps
    padded = pad(x, [reach] * 4, mode="replicate")
    result = torch.empty_like(x)
    for degrees in angle.unique().tolist():
        chosen = (angle == degrees).nonzero()[:, 0]
        part, total = padded[chosen], 0.0
        for i, weight in enumerate(weights.tolist()):
            row = reach + math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
            column = reach + math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
            total = total + weight * part[:, :, row : row + side, column : column + side]
        result[chosen] = total
    return result


def motion_blur(x: Tensor, generator: Generator, radius: float, deviation: float) -> Tensor:
    """Moved along a direction within 45° of the horizontal."""
    angle = uniform(x.shape[:1], generator) * 90 - 45
    return moved_along(x, radius * relative(x), deviation * relative(x), angle)


def zoom_matrix(side: int, factor: float) -> Tensor:
    """The middle of an axis, magnified by `factor` with linear interpolation: side × side."""
    inner = math.ceil(side / factor)
    first = (side - inner) // 2
    zoomed = round(inner * factor)
    position = torch.arange(zoomed) * ((inner - 1) / max(1, zoomed - 1))
    low = position.floor().long().clamp(max=inner - 1)
    share = position - low
    matrix = torch.zeros(zoomed, side)
    rows = torch.arange(zoomed)
    matrix[rows, first + low] += 1 - share
    matrix[rows, first + (low + 1).clamp(max=inner - 1)] += share
    trim = (zoomed - side) // 2
    return matrix[trim : trim + side]


def zoom_blur(x: Tensor, _: Generator, largest: float) -> Tensor:
    """The mean over magnifications from 1 to `largest` in steps of 0.01, and the image itself."""
    factors = np.arange(1, largest + 0.005, 0.01)
    total = x.clone()
    for factor in factors.tolist():
        total += separable(x, zoom_matrix(x.shape[-1], factor))
    return total / (len(factors) + 1)


def elastic_transform(x: Tensor, generator: Generator, amplitude: float, deviation: float, affine: float) -> Tensor:
    """A random affine map of three points, and a smooth random displacement; lengths as fractions of the side."""
    n, side = x.shape[0], x.shape[-1]
    third = side // 3
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * third
    moved = corners + affine * side * (2 * uniform((n, 3, 2), generator) - 1)
    # The affine map that takes moved corners back: [moved, 1] @ back = corners.
    back = torch.linalg.solve(torch.cat([moved, torch.ones(n, 3, 1)], 2), corners.expand(n, -1, -1))
    across = torch.arange(side) - (side - 1) / 2
    points = torch.stack(torch.meshgrid(across, across, indexing="xy"), -1).reshape(1, -1, 2).expand(n, -1, -1)
    noise = 2 * uniform((n, 2, side, side), generator) - 1
    shift = amplitude * side * smooth(noise, deviation * side, 3.0)
    points = points + shift.permute(0, 2, 3, 1).reshape(n, -1, 2)
    source = torch.cat([points, torch.ones(n, side * side, 1)], 2) @ back
    grid = (2 * source / (side - 1)).reshape(n, side, side, 2)
    return grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=True)
