"""Running statistics of batch normalisation, estimated anew on inputs as a model with a rule shrinks them.

Weights that are averaged have statistics that belong to other weights; and those of any network are of mixed inputs,
which vary more than the shrunk ones it is used on. Means and variances are averaged over the batches of a loader, in
evaluation mode but for the normalisations themselves. Whatever goes wrong, they are left as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from mixreg._autodiff.network import evaluating
from mixreg._support.structure import rebuild

if TYPE_CHECKING:
    from mixreg.prediction.family import RuleFamily


@torch.no_grad()
def refresh_statistics(model: RuleFamily, loader: Iterable[Any]) -> None:
    """Estimate them on a loader of x, or of (x, y)."""
    found = [module for module in model.net.modules() if isinstance(module, _BatchNorm)]
    norms = [module for module in found if module.track_running_stats and module.running_mean is not None]
    if not norms:
        raise ValueError("the network has no batch normalisation whose statistics could be refreshed")
    before = [({name: buffer.clone() for name, buffer in norm.named_buffers()}, norm.momentum) for norm in norms]
    batches = 0
    try:
        with evaluating(model):
            for norm in norms:
                norm.reset_running_stats()
                # The mean over all batches.
                norm.training, norm.momentum = True, None
            for batch in loader:
                x = batch[0] if isinstance(batch, (tuple, list)) else batch
                model.outputs_on_shrunk(rebuild(x, lambda tensor: tensor.to(model.y_mean.device)))
                batches += 1
        if not batches:
            raise ValueError("there is no batch to estimate statistics on")
    except BaseException:
        for norm, (buffers, _) in zip(norms, before, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(buffers[name])
        raise
    finally:
        for norm, (_, momentum) in zip(norms, before, strict=True):
            norm.momentum = momentum
