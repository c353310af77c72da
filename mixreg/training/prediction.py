"""The prediction rule that belongs to each method: what its training did to data on average, undone.

| trained with | rule |
|---|---|
| Mixup, approximate and Gaussian Mixup, ERM on modified data, independent mixing, MixupE | shrink, stretch |
| Mixup of inputs | shrink |
| Mixup of labels | stretch |
| CutMix | shrink pixel by pixel, stretch |
| Manifold Mixup | shrink the hidden representation, stretch |
| the scaled variant, RegMixup, adaptive Mixup | none: on average, or half of the time, they show data as it is |

ERM and label smoothing have no shrunk inputs either; they get Mixup's rule all the same, which is the paper's control.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from mixreg.cutmix import RescaledCutMix
from mixreg.manifold import RescaledManifold
from mixreg.rescaling import Rescaled
from mixreg.training.config import Config

HIDDEN = "hidden."
AS_IT_IS = ("scaled", "regmixup", "adaptive")


def rescaled_network(config: Config, net: nn.Module, means: Mapping[str, Tensor]) -> nn.Module:
    """The network with the rule of its run.

    Args:
        config: of the run.
        net: the network.
        means: "x_mean", "y_mean", and for manifold "hidden.LAYER" of each of its layers.
    """
    x_mean, y_mean = means["x_mean"], means["y_mean"]
    if config.method == "cutmix":
        return RescaledCutMix(net, config.alpha, x_mean, y_mean)
    if config.method == "manifold":
        hidden = {key.removeprefix(HIDDEN): mean for key, mean in means.items() if key.startswith(HIDDEN)}
        return RescaledManifold(net, config.alpha, hidden, y_mean)
    alpha = 0.0 if config.method in AS_IT_IS else config.alpha
    parts = config.method if config.method in ("inputs", "outputs") else "both"
    return Rescaled(net, alpha, x_mean, y_mean, parts)
