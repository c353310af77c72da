"""Random Fourier features with a linear head (Rahimi and Recht, 2008), the paper's model for two moons.

φ(x) = cos(S x + B) / √M        S_ij ~ N(0, scale²),  B_i ~ Unif(0, 2π)        f(x) = W φ(x)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RandomFourierFeatures(nn.Module):
    """f(x) = W φ(x); only W is trained, and starts at 0.

    Args:
        inputs: d, coordinates of one (flattened) sample.
        outputs: c.
        features: M.
        scale: σ, the standard deviation of the frequencies.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, inputs: int, outputs: int, features: int = 1000, scale: float = 10.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", scale * torch.randn(features, inputs))
        self.register_buffer("phases", 2 * math.pi * torch.rand(features))
        self.head = nn.Linear(features, outputs, bias=False)
        nn.init.zeros_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        """φ(x): n × M."""
        return torch.cos(nn.functional.linear(x.flatten(1), self.frequencies, self.phases)) / math.sqrt(
            self.phases.shape[0]
        )

    def forward(self, x: Tensor) -> Tensor:
        """f(x): n × c."""
        return self.head(self.features(x))
