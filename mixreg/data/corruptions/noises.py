"""Noise: Gaussian, shot, impulse and speckle; x: n × c × h × w in [0, 1], before clipping."""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg._support.random import normal, uniform

Generator = torch.Generator | None


def gaussian_noise(x: Tensor, generator: Generator, deviation: float) -> Tensor:
    """x + N(0, deviation²)."""
    return x + deviation * normal(x.shape, generator)


def shot_noise(x: Tensor, generator: Generator, photons: float) -> Tensor:
    """Poisson(photons x) / photons: the fewer photons, the noisier."""
    return torch.poisson(x * photons, generator=generator) / photons


def impulse_noise(x: Tensor, generator: Generator, amount: float) -> Tensor:
    """A fraction `amount` of all values becomes 0 or 1."""
    chance = uniform(x.shape, generator)
    return torch.where(chance < amount, (chance < amount / 2).float(), x)


def speckle_noise(x: Tensor, generator: Generator, deviation: float) -> Tensor:
    """x + x N(0, deviation²)."""
    return x + x * deviation * normal(x.shape, generator)
