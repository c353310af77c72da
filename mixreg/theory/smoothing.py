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

    The fit without smoothing must exist: classes that a linear model separates have no minimiser. Units of the inputs
    do not matter, whatever they are.

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
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("x and y must be finite to fit a linear model to them")
    y_mean = y.mean(0)
    plain, smoothed = (_entropy(_fit_linear(x, t, steps)) for t in (y, shrink(y, y_mean, keep)))
    mean_label = _entropy(y_mean.unsqueeze(0))
    return EntropyBound(keep * plain + (1 - keep) * mean_label, smoothed, plain, mean_label)


def _entropy(p: Tensor) -> Tensor:
    """mean H(p_i); p: n × c."""
    return torch.special.entr(p).sum(1).mean()


def _fit_linear(x: Tensor, y: Tensor, steps: int) -> Tensor:
    """softmax(W* x_i) of the cross-entropy minimiser: n × c, by Newton's method with step halving.

    Predictions depend on x only through the space its columns span: an orthonormal basis of it takes their place, so
    that units do not matter. The last class is the reference (its row of W is 0), which removes the invariance of the
    softmax.
    """
    x = _basis(x)
    n, c = y.shape
    weight = torch.zeros(c - 1, x.shape[1], dtype=x.dtype)

    def predict(w: Tensor) -> tuple[Tensor, Tensor]:
        u = torch.cat([x @ w.T, torch.zeros(n, 1, dtype=x.dtype)], dim=1)
        return torch.softmax(u, 1), (torch.logsumexp(u, 1) - (y * u).sum(1)).mean()

    p, value = predict(weight)
    for _ in range(steps):
        gradient = ((p - y)[:, :-1].T @ x).reshape(-1) / n
        if gradient.abs().max() <= 1e-11:
            if p.min() < 1e-8 and _separates(x, y):
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
    if _separates(x, y):
        raise ValueError("the linear fit has no minimum: a linear model separates the classes")
    raise ValueError(f"the linear fit has not converged in {steps} steps of Newton's method, though it has a minimum")


def _basis(x: Tensor) -> Tensor:
    """An orthonormal basis of the columns of x, times √n: n × r; a column's unit is none of its rank's concern."""
    size = x.abs().amax(0)
    vectors, values, _ = torch.linalg.svd(x / torch.where(size > 0, size, 1.0), full_matrices=False)
    keep = values > max(x.shape) * torch.finfo(x.dtype).eps * values[:1]
    return vectors[:, keep] * x.shape[0] ** 0.5


def _separates(x: Tensor, y: Tensor) -> bool:
    """Whether the loss falls for ever along some W, so that it has no minimiser; x: n × r, y: n × c.

    It does if no label loses, (w_l − w_k)ᵀx_i ≥ 0 for every class l with y_il > 0 and every other k, and some of them
    gains: a linear program over |W| ≤ 1, which finds the largest sum of these margins.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    r, c = x.shape[1], y.shape[1]
    unit = x / x.norm(dim=1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    sample, label = (y > 0).nonzero(as_tuple=True)
    sample, label = sample.repeat_interleave(c), label.repeat_interleave(c)
    other = torch.arange(c).repeat(len(sample) // c)
    differ = label != other
    sample, label, other = sample[differ], label[differ], other[differ]
    # A row per margin and a column per weight, of which all classes but two have none.
    row = torch.arange(len(sample)).repeat_interleave(r).repeat(2)
    column = torch.cat([(k.unsqueeze(1) * r + torch.arange(r)).flatten() for k in (label, other)])
    values = torch.cat([unit[sample].flatten(), -unit[sample].flatten()])
    margins = csr_array((values.numpy(), (row.numpy(), column.numpy())), shape=(len(sample), c * r))
    found = linprog(-margins.sum(axis=0), A_ub=-margins, b_ub=[0.0] * len(sample), bounds=(-1, 1), method="highs")
    return bool(found.status == 0 and -found.fun > 1e-6)
