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
from mixreg.methods.method import Rows, WithMixupRule, WithMoments
from mixreg.methods.pairing import is_chosen
from mixreg.methods.recipe import Recipe
from mixreg.theory.modified import fitted_mean, shrink
from mixreg.theory.moments import DataMoments


class GaussianMixup(Recipe, WithMixupRule, WithMoments):
    """Gaussian noise with Mixup's covariances on Mixup's modified data: `x, y = GaussianMixup(1.0, moments)(x, y)`.

    Args:
        alpha: in [0, ∞]; 0 changes nothing.
        moments: x̄ and ȳ of the training data (and how many classes integer labels have).
        generator: random number generator; by default PyTorch's global one.
        probability: that a sample is changed, in [0, 1].
    """

    name = "gaussian"
    about = "Gaussian noise with Mixup's covariances"
    options = ("probability",)

    def __init__(
        self,
        alpha: float,
        moments: DataMoments,
        generator: torch.Generator | None = None,
        probability: float = 1.0,
    ) -> None:
        super().__init__(alpha, moments, generator)
        self.probability = probability

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        values = self._targets(x, y)
        if self.alpha == 0:
            return x.clone(), values.clone()
        n, sigma, gamma = len(x), self.forms.var**0.5, self.forms.gamma2**0.5
        weights = normal((n, n), generator, x.dtype, x.device) * (gamma / n**0.5)
        weights.diagonal().add_(normal((n,), generator, x.dtype, x.device) * sigma)

        is_changed = is_chosen(n, self.probability, generator) if self.probability < 1 else None

        def perturbed(part: Tensor, mean: Tensor) -> Tensor:
            mean = fitted_mean(mean.to(part.device), part, "the mean").expand(part.shape[1:])
            noise = weights.to(part.dtype) @ (part - mean).flatten(1)
            changed = shrink(part, mean, self.forms.mean) + noise.reshape(part.shape)
            if is_changed is None:
                return changed
            return torch.where(is_changed.to(part.device).reshape(-1, *[1] * (part.ndim - 1)), changed, part)

        return perturbed(x, self.moments.x_mean), perturbed(values, self.moments.y_mean)
