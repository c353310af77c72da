"""Losses of PyTorch, which take outputs first where the paper's ℓ(y, u) takes the target first.

Given as they are they would be computed with target and output exchanged, without a word.
"""

from __future__ import annotations

from typing import Any

import torch

# Those that are not the same with target and output exchanged, and what they are called here.
_OUTPUTS_FIRST = {
    "cross_entropy": "'cross_entropy'",
    "CrossEntropyLoss": "'cross_entropy'",
    "binary_cross_entropy_with_logits": "'logistic'",
    "BCEWithLogitsLoss": "'logistic'",
    "binary_cross_entropy": "",
    "BCELoss": "",
    "nll_loss": "",
    "NLLLoss": "",
    "kl_div": "",
    "KLDivLoss": "",
    "poisson_nll_loss": "",
    "PoissonNLLLoss": "",
    "gaussian_nll_loss": "",
    "GaussianNLLLoss": "",
}


def refuse_outputs_first(loss: Any) -> None:
    """An error that says what to give instead."""
    name = type(loss).__name__ if isinstance(loss, torch.nn.Module) else getattr(loss, "__name__", "")
    is_torchs = isinstance(loss, torch.nn.Module) or getattr(loss, "__module__", "") == "torch.nn.functional"
    if is_torchs and name in _OUTPUTS_FIRST:
        raise ValueError(
            f"a loss takes the target first, loss(y, u), and {name} the output: give "
            f"{_OUTPUTS_FIRST[name] or f'lambda y, u: {name}(u, y)'}"
        )
