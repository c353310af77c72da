"""Weather: snow, frost, fog and spatter; x: n × 3 × side × side in [0, 1], before clipping."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, max_pool2d, pad

from mixreg._support.random import normal, uniform
from mixreg.data.corruptions.blurs import moved_along, relative, separable, smooth, zoom_matrix

Generator = torch.Generator | None

_FROST_COLOUR = torch.tensor([0.86, 0.93, 1.0]).reshape(1, 3, 1, 1)
_WATER_COLOUR = torch.tensor([175.0, 238.0, 238.0]).reshape(1, 3, 1, 1) / 255
_MUD_COLOUR = torch.tensor([63.0, 42.0, 20.0]).reshape(1, 3, 1, 1) / 255


def snow(
    x: Tensor,
    generator: Generator,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    blur: float,
    kept: float,
) -> Tensor:
    """Flakes that fall in streaks, in front of a whitened image."""
    n, side = x.shape[0], x.shape[-1]
    flakes = mean + deviation * normal((n, 1, side, side), generator)
    flakes = separable(flakes, zoom_matrix(side, zoom))
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    angle = -45 - 90 * uniform((n,), generator)
    flakes = moved_along(flakes, radius * relative(x), blur * relative(x), angle)
    grey = (x * torch.tensor([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1)).sum(1, keepdim=True)
    whitened = kept * x + (1 - kept) * torch.maximum(x, 1.5 * grey + 0.5)
    return whitened + flakes + flakes.rot90(2, (2, 3))


def plasma(n: int, side: int, decay: float, generator: Generator) -> Tensor:
    """Clouds by the diamond-square algorithm on a torus: n × 1 × side × side, each from 0 to 1."""
    size = 1 << (side - 1).bit_length()
    cloud = torch.zeros(n, size, size)
    step, amplitude = size, 100.0

    def wobbled(total: Tensor) -> Tensor:
        return total / 4 + amplitude**2 * (2 * uniform(total.shape, generator) - 1)

    while step >= 2:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        square = corner + corner.roll(-1, 1)
        cloud[:, half::step, half::step] = wobbled(square + square.roll(-1, 2))
        centre, corner = cloud[:, half::step, half::step], cloud[:, ::step, ::step]
        cloud[:, ::step, half::step] = wobbled(centre + centre.roll(1, 1) + corner + corner.roll(-1, 2))
        cloud[:, half::step, ::step] = wobbled(centre + centre.roll(1, 2) + corner + corner.roll(-1, 1))
        step, amplitude = half, amplitude / decay
    low, high = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return ((cloud - low) / (high - low)).unsqueeze(1)[..., :side, :side]


def fog(x: Tensor, generator: Generator, strength: float, decay: float) -> Tensor:
    """Clouds added, the image's largest value kept."""
    clouds = plasma(x.shape[0], x.shape[-1], decay, generator)
    largest = x.amax((1, 2, 3), keepdim=True)
    return (x + strength * clouds) * largest / (largest + strength)


def frost(x: Tensor, generator: Generator, kept: float, weight: float) -> Tensor:
    """Bright ridges of ice crystals: the creases of two clouds of different grain."""
    coarse, fine = (plasma(x.shape[0], x.shape[-1], decay, generator) for decay in (1.8, 1.3))
    ridges = (1 - (2 * coarse - 1).abs()) ** 2 + 0.5 * (1 - (2 * fine - 1).abs()) ** 3
    return kept * x + weight * ridges.clamp(0, 1) * _FROST_COLOUR


def spatter(
    x: Tensor,
    generator: Generator,
    mean: float,
    deviation: float,
    blur: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Tensor:
    """Drops of water, lit along their edges; or of mud."""
    n, side = x.shape[0], x.shape[-1]
    liquid = smooth(mean + deviation * normal((n, 1, side, side), generator), blur * relative(x))
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if mud:
        cover = smooth((liquid > threshold).float(), strength * relative(x))
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + cover * _MUD_COLOUR
    shade = liquid * _embossed(_depth(liquid > 0))
    shade = shade / shade.amax((1, 2, 3), keepdim=True).clamp(min=1e-9)
    return x + strength * shade * _WATER_COLOUR


def _depth(wet: Tensor, most: int = 20) -> Tensor:
    """Distance of every pixel to the edge of the water, in steps, up to `most`; n × 1 × side × side."""
    wet = wet.float()
    edge = max_pool2d(wet, 3, 1, 1) + max_pool2d(-wet, 3, 1, 1)  # 1 where a neighbour differs
    depth, near = torch.zeros_like(wet), edge
    for _ in range(most):
        depth = depth + (near == 0).float()
        near = max_pool2d(near, 3, 1, 1)
    return depth


def _embossed(depth: Tensor) -> Tensor:
    """Depths spread evenly over 0..1 in each image, lit from one corner."""
    n = depth.shape[0]
    smoothed = avg_pool2d(pad(depth, [1] * 4, mode="reflect"), 3, 1)
    order = smoothed.reshape(n, -1).argsort(1).argsort(1).float() / (depth[0].numel() - 1)
    lit = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]).reshape(1, 1, 3, 3)
    embossed = conv2d(pad(order.reshape(depth.shape), [1] * 4, mode="reflect"), lit).clamp(0, 1)
    return avg_pool2d(pad(embossed, [1] * 4, mode="reflect"), 3, 1)
