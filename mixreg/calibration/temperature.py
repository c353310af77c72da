"""Temperature scaling (Guo et al., 2017): divide all logits by one number T, fitted on held-out data.

With β = 1/T the negative log-likelihood of softmax(β u) is convex in β,

    g(β) = mean( logsumexp(β u) − β u_y )        g′ = mean( E_p u − u_y )        g″ = mean( Var_p u ),

so Newton's method between two bounds finds the one minimum to rounding.
"""

from __future__ import annotations

import warnings

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

    def derivatives(beta: float) -> tuple[float, float]:
        p = torch.softmax(beta * u, dim=1)
        mean = (p * u).sum(1)
        variance = (p * u.square()).sum(1) - mean.square()
        return (mean - chosen).mean().item(), variance.mean().item()

    low, high = 1 / LARGEST, 1 / SMALLEST
    for bound, is_outside in ((low, derivatives(low)[0] >= 0), (high, derivatives(high)[0] <= 0)):
        if is_outside:
            warnings.warn(
                f"no temperature between {SMALLEST} and {LARGEST} minimises the loss on these {len(u)} samples; "
                f"using {1 / bound:g}",
                stacklevel=2,
            )
            return 1 / bound
    beta = 1.0
    for _ in range(_MAX_STEPS):
        slope, curvature = derivatives(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - beta) <= 1e-12 * beta:
            break
        beta = following
    return 1 / beta


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
