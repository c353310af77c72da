"""Gaussian Mixup: Gaussian noise with Mixup's covariances on Mixup's modified data.

By Theorem 3 its quadratic risk is Mixup's, and by the paper's conclusion it should do what Mixup does. No covariance
matrix is needed: with centred samples (a_j, b_j) of a batch of m,

    (δ_i, ε_i) = σ g_i (a_i, b_i) + γ m^{−½} Σ_j h_ij (a_j, b_j),        g_i, h_ij ~ N(0, 1) independent,

is Gaussian given the batch, with covariance σ² (a_i, b_i)(a_i, b_i)ᵀ + γ² mean_j (a_j, b_j)(a_j, b_j)ᵀ: that of Lemma 2
with the covariance of the batch, whose mean over batches is that of the data. (Noise with other covariances:
`mixreg.risk.gaussian_noise`.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg._support.random import normal
from mixreg.losses.targets import checked_values
from mixreg.methods.method import Rows, WithMixupRule, WithMoments
from mixreg.theory.modified import shrink


class GaussianMixup(WithMixupRule, WithMoments):
    """Gaussian noise with Mixup's covariances on Mixup's modified data: `x, y = GaussianMixup(1.0, moments)(x, y)`."""

    name = "gaussian"
    about = "Gaussian noise with Mixup's covariances"

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        values = checked_values(x, y, self.moments.num_classes)
        if self.alpha == 0:
            return x.clone(), values.clone()
        n, sigma, gamma = len(x), self.forms.var**0.5, self.forms.gamma2**0.5
        weights = normal((n, n), generator, x.dtype, x.device) * (gamma / n**0.5)
        weights.diagonal().add_(normal((n,), generator, x.dtype, x.device) * sigma)

        def perturbed(part: Tensor, mean: Tensor) -> Tensor:
            mean = mean.to(part).reshape(part.shape[1:])
            noise = weights.to(part.dtype) @ (part - mean).flatten(1)
            return shrink(part, mean, self.forms.mean) + noise.reshape(part.shape)

        return perturbed(x, self.moments.x_mean), perturbed(values, self.moments.y_mean)
