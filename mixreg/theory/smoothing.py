"""Label smoothing towards the mean label (Proposition on label smoothing).

The modified labels of Theorem 1 are smoothed labels,

    ỹ = ȳ + θ̄ (y − ȳ) = (1 − ε) y + ε ȳ,        ε = 1 − θ̄,

pulled towards the mean label ȳ and not, as in the usual label smoothing, towards the uniform one: for unbalanced
classes the mean of the smoothed labels stays ȳ. Mixup with α smooths labels by ε = 1 − θ̄(α).

**Entropy bound.** For linear models W x and cross-entropy, let p_i be the predictions of the W fitted to the labels and
p̃_i those of the W fitted to the smoothed labels. With the entropy H,

    θ̄ · mean H(p_i) + (1 − θ̄) · H(ȳ) ≤ mean H(p̃_i):

smoothing makes predictions less certain. (At an optimum mean H(p_i) is the dual problem's value, concave in the
labels.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mixreg.losses.targets import to_values
from mixreg.theory.modified import shrink
from mixreg.theory.theta import scalar_forms


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


class EntropyBound(NamedTuple):
    """Both sides of the proposition, and the entropies they are made of; float64 tensors of no dimension."""

    lower: Tensor
    smoothed: Tensor
    plain: Tensor
    mean_label: Tensor


def entropy_bound(x: Tensor, y: Tensor, alpha: float, *, steps: int = 200) -> EntropyBound:
    """θ̄ mean H(p_i) + (1 − θ̄) H(ȳ) ≤ mean H(p̃_i), with both linear models fitted to convergence.

    The fit without smoothing must exist: classes that a linear model separates have no minimiser.

    Args:
        x: n × …, inputs.
        y: n integer labels, or n × c soft labels.
        alpha: Mixup's α, which fixes θ̄.
        steps: iterations of Newton's method at most.
    """
    keep = scalar_forms(alpha, "entropy_bound").mean
    if isinstance(y, Tensor) and not y.is_floating_point() and y.ndim == 1 and y.numel():
        y = to_values(y, int(y.max()) + 1, torch.float64)
    x, y = x.detach().double().reshape(x.shape[0], -1), y.detach().double()
    if y.ndim != 2 or y.shape[0] != x.shape[0]:
        raise ValueError(f"expected {x.shape[0]} integer labels or rows of soft labels, got shape {tuple(y.shape)}")
    y_mean = y.mean(0)
    plain, smoothed = (_entropy(_fit_linear(x, t, steps)) for t in (y, shrink(y, y_mean, keep)))
    mean_label = _entropy(y_mean.unsqueeze(0))
    return EntropyBound(keep * plain + (1 - keep) * mean_label, smoothed, plain, mean_label)


def _entropy(p: Tensor) -> Tensor:
    """mean H(p_i); p: n × c."""
    return torch.special.entr(p).sum(1).mean()


def _fit_linear(x: Tensor, y: Tensor, steps: int) -> Tensor:
    """softmax(W* x_i) of the cross-entropy minimiser: n × c, by Newton's method with step halving.

    The last class is the reference (its row of W is 0), which removes the invariance of the softmax.
    """
    n, c = y.shape
    weight = torch.zeros(c - 1, x.shape[1], dtype=x.dtype)

    def predict(w: Tensor) -> tuple[Tensor, Tensor]:
        u = torch.cat([x @ w.T, torch.zeros(n, 1, dtype=x.dtype)], dim=1)
        return torch.softmax(u, 1), (torch.logsumexp(u, 1) - (y * u).sum(1)).mean()

    p, value = predict(weight)
    for _ in range(steps):
        gradient = ((p - y)[:, :-1].T @ x).reshape(-1) / n
        if gradient.abs().max() <= 1e-11:
            if p.min() < 1e-12:
                break  # the weights grow without end
            return p
        q = p[:, :-1]
        curvature = torch.diag_embed(q) - q.unsqueeze(2) * q.unsqueeze(1)
        hessian = torch.einsum("iab,ij,ik->ajbk", curvature, x, x).reshape(gradient.numel(), -1) / n
        step = (torch.linalg.pinv(hessian, hermitian=True) @ gradient).reshape(weight.shape)
        scale = 1.0
        while scale > 1e-10:
            candidate, new_value = predict(weight - scale * step)
            if new_value <= value + 1e-14:  # up to rounding: the last steps change the loss by less
                break
            scale /= 2
        weight, p, value = weight - scale * step, candidate, new_value
    raise ValueError(
        f"the linear fit has no minimum within {steps} steps of Newton's method: a linear model separates the classes"
    )
