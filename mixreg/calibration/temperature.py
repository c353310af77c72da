"""Temperature scaling (Guo et al., 2017): divide all logits by one number T, fitted on held-out data.

With β = 1/T the negative log-likelihood of softmax(β u) is convex in β,

    g(β) = mean( logsumexp(β u) − β u_y )        g′ = mean( E_p u − u_y )        g″ = mean( Var_p u ),

so Newton's method between two bounds finds the one minimum to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mixreg.calibration.predictions import on_simplex, predictions

# Beyond these a temperature says that the data cannot determine one (all right, or all at chance).
SMALLEST, LARGEST = 0.01, 100.0
# Newton's steps double the number of right digits; bisection alone would need 60.
_MAX_STEPS = 100


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that minimises the negative log-likelihood of softmax(logits / T).

    Args:
        logits: n × c, held-out: neither trained nor tested on. Probabilities are refused: dividing them by a number
            and taking a softmax is a different, wrong model.
        labels: n.
    """
    u = predictions(logits, labels).values.double()
    flat = logits.reshape(len(u), -1)
    if on_simplex(flat) or (flat.shape[1] == 1 and bool(((flat >= 0) & (flat <= 1)).all())):
        raise ValueError("these are probabilities (non-negative, and every row sums to 1); a temperature needs logits")
    if not bool(torch.isfinite(u).all()):
        raise ValueError("logits must be finite to fit a temperature")
    u = u - u.amax(dim=1, keepdim=True)
    chosen = u.gather(1, labels.long().unsqueeze(1)).squeeze(1)

    def derivatives(beta: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(beta * u, dim=1)
        mean = (p * u).sum(1)
        variance = (p * u.square()).sum(1) - mean.square()
        return (mean - chosen).mean().reshape(1), variance.mean().reshape(1)

    beta, is_inside = minimising_scales(derivatives, 1)
    if not bool(is_inside):
        warn_undetermined(len(u), 1 / float(beta))
    return 1 / float(beta)


def minimising_scales(derivatives: Callable[[Tensor], tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """The minima of convex functions g_k(β_k), each between 1 / `LARGEST` and 1 / `SMALLEST`, by Newton's method.

    Args:
        derivatives: of β (count, float64): g′ and g″, count each.
        count: how many functions.

    Returns:
        β (count), and whether each is a minimum inside the bounds rather than one of them.
    """
    ends = (1 / LARGEST, 1 / SMALLEST)
    low, high = (torch.full((count,), end, dtype=torch.float64) for end in ends)
    at_low, at_high = (derivatives(end)[0] for end in (low, high))
    is_below, is_above = (at_low >= 0).cpu(), (at_high <= 0).cpu()
    beta = torch.ones_like(low)
    for _ in range(_MAX_STEPS):
        slope, curvature = (part.double().cpu() for part in derivatives(beta))
        low, high = torch.where(slope < 0, beta, low), torch.where(slope < 0, high, beta)
        step = torch.where(curvature > 0, beta - slope / curvature.clamp(min=1e-300), low)
        following = torch.where((low < step) & (step < high), step, (low + high) / 2)
        is_done = bool(((following - beta).abs() <= 1e-12 * beta).all())
        beta = following
        if is_done:
            break
    beta = torch.where(is_below, ends[0], torch.where(is_above, ends[1], beta))
    return beta, ~(is_below | is_above)


def warn_undetermined(samples: int, used: float) -> None:
    """Say that held-out data determines no temperature, and which one is used."""
    warnings.warn(
        f"no temperature between {SMALLEST} and {LARGEST} minimises the loss on these {samples} samples; "
        f"using {used:g}",
        stacklevel=3,
    )


class TemperatureScaling(nn.Module):
    """`logits ↦ logits / T`, with T fitted by `fit` and kept in the `state_dict`."""

    temperature: Tensor

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"the temperature must be positive and finite, got {temperature!r}")
        self.register_buffer("temperature", torch.tensor(float(temperature), dtype=torch.float64))

    def fit(self, logits: Tensor, labels: Tensor) -> TemperatureScaling:
        """Fit T on held-out logits (n × c) and labels (n), and return self."""
        self.temperature.fill_(fit_temperature(logits, labels))
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """Logits divided by T, in their own dtype."""
        return logits / self.temperature.to(logits.dtype)
