"""Losses ℓ(y, u), their derivatives, and the targets they take.

`loss` is everywhere a name ("cross_entropy", "logistic", "squared_error") or a callable loss(y, u) on one sample.
"""

from mixreg.losses.derivatives import (
    BUILT_IN,
    AnyLoss,
    Loss,
    SampleLoss,
    require_curvature,
    require_known,
    resolve,
    sample_losses,
)
from mixreg.losses.functions import cross_entropy, logistic, squared_error
from mixreg.losses.weighted import WeightedCrossEntropy

__all__ = [
    "AnyLoss",
    "BUILT_IN",
    "Loss",
    "SampleLoss",
    "WeightedCrossEntropy",
    "cross_entropy",
    "logistic",
    "require_curvature",
    "require_known",
    "resolve",
    "sample_losses",
    "squared_error",
]
