"""Label smoothing towards the mean label (Proposition on label smoothing).

The modified labels of Theorem 1 are smoothed labels,

    ỹ = ȳ + θ̄ (y − ȳ) = (1 − ε) y + ε ȳ,        ε = 1 − θ̄,

pulled towards the mean label ȳ and not, as in the usual label smoothing, towards the uniform one: for unbalanced
classes the mean of the smoothed labels stays ȳ. Mixup with α smooths labels by ε = 1 − θ̄(α).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.rescaling import shrink
from mixreg.targets import to_values
from mixreg.theta import scalar_forms


def smooth_labels(y: Tensor, y_mean: Tensor, *, alpha: float | None = None, epsilon: float | None = None) -> Tensor:
    """(1 − ε) y + ε ȳ, with ε given or implied by Mixup's α.

    Args:
        y: n integer labels, or n × c soft labels.
        y_mean: c, the mean label of the training data (`DataMoments.y_mean`).
        alpha: smooth as Mixup with this α does.
        epsilon: or by this much, in [0, 1]; exactly one of the two must be given.
    """
    if (alpha is None) == (epsilon is None):
        raise ValueError(f"give either alpha or epsilon, got alpha={alpha!r} and epsilon={epsilon!r}")
    if epsilon is not None and not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], got {epsilon!r}")
    if not isinstance(y_mean, Tensor):
        raise TypeError(f"y_mean must be a tensor, got {type(y_mean).__name__}")
    if y_mean.ndim != 1 or not y_mean.is_floating_point() or not bool(torch.isfinite(y_mean).all()):
        raise ValueError(
            f"y_mean must be a finite floating-point vector with one entry per class, got {y_mean.dtype} of shape "
            f"{tuple(y_mean.shape)}"
        )
    keep = scalar_forms(alpha, "smooth_labels").mean if alpha is not None else 1 - float(epsilon or 0)
    return shrink(to_values(y, y_mean.shape[0]), y_mean.to(y.device), keep)
