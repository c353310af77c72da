"""Least squares of ε_i on δ_i for many coordinates and few samples, without a d × r factor of Σxx.

With A the n × d matrix of centred samples (times the root of n w_i / Σ w, where they have weights) and A Aᵀ / n =
U Λ Uᵀ on its range, the whitened samples of `mixreg.theory.perturbation` are rows of √n U, and V = Bᵀ U / √n: all that
R3 asks for is in the n-dimensional space of samples.
"""

from __future__ import annotations

import torch

from mixreg.theory.perturbation import Explained, Perturbation

# Coordinates that are multiplied at once.
_COLUMNS = 1 << 14


def explained_by_samples(perturbation: Perturbation) -> Explained:
    """What least squares of y on x leaves of each sample's target."""
    n = len(perturbation)
    a, b = perturbation.rooted()
    gram = torch.zeros(n, n, dtype=torch.float64, device=a.device)
    for columns in a.split(_COLUMNS, 1):
        # What counts as singular must not depend on a coordinate's unit.
        variances = columns.square().mean(0)
        scaled = columns / torch.where(variances > 0, variances, 1.0).sqrt()
        gram += scaled @ scaled.T / n
    values, vectors = torch.linalg.eigh(gram)
    keep = values > values[-1].clamp(min=0) * n * torch.finfo(values.dtype).eps
    u = vectors[:, keep]
    slopes = b.T @ u / n**0.5
    # Samples themselves, without the root of their weight; one without weight lies outside of what the others span.
    root = perturbation.root
    z = n**0.5 * u / torch.where(root > 0, root, 1.0).unsqueeze(1)
    own = perturbation.centred(slice(None))[1]
    return perturbation.explained_from(own, z, slopes, root == 0)
