"""Dropout (Srivastava et al., 2014) at the last layer, and the regulariser it amounts to (Wager et al., 2013).

Write the network as f(x) = W h(x) + b. Dropping each of the features h(x) with probability q, and scaling the others by
1/(1 − q), is noise on h(x) with mean 0 and covariance q/(1 − q) diag(h(x)²). As f is linear in h, to second order the
loss gains

    ½ q/(1 − q) Σ_k h_k(x)² (Wᵀ ℓuu W)_kk,

and nothing from the curvature of f: `mixreg.risk.dropout_regulariser` of the last layer on the features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.layers import last_dense, recording_features
from mixreg._autodiff.network import evaluating
from mixreg._support.numbers import require_probability
from mixreg.losses import SampleLoss
from mixreg.risk.noise_regularisers import NoiseRegulariser, dropout_regulariser


class _Drop:
    """A hook that drops features in training."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def __call__(self, layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (nn.functional.dropout(given[0], self.probability, layer.training), *given[1:])


def with_dropout(net: nn.Module, probability: float) -> nn.Module:
    """The network itself, which from now on drops features of its last layer in training; its weights keep their names.

    Args:
        net: has an `nn.Linear` that makes its outputs.
        probability: q, in [0, 1).
    """
    hook = _Drop(require_probability(probability, "the probability of dropout"))
    last_dense(net).register_forward_pre_hook(hook)
    return net


def last_layer_regulariser(
    net: nn.Module, x: Tensor, y: Tensor, probability: float, loss: str | SampleLoss = "cross_entropy"
) -> NoiseRegulariser:
    """What dropping features with `probability` adds to the empirical risk, to second order.

    Args:
        net: whose last dense layer makes the outputs.
        x: n × …, floating point.
        y: n integer labels, or n × … targets.
        probability: q, in [0, 1).
        loss: a name or a twice differentiable callable on one sample.
    """
    with recording_features(net) as seen, evaluating(net), torch.no_grad():
        net(x)
    return dropout_regulariser(last_dense(net), seen[-1].detach(), y, probability, loss)
