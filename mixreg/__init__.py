"""mixreg: Mixup done right. Train with it, predict with it the way the theory says, see what it regularises.

    mix = Mixup(alpha=1.0, num_classes=10)            # 1. before the loop
    x, y = mix(x, y)                                  # 2. in the loop
    model = Rescaled.from_loader(net, loader, alpha=1.0, num_classes=10)     # 3. after it

An implementation of *On Mixup Regularization* (Carratino, Cissé, Jenatton, Vert; JMLR 2022).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mixreg import calibration, losses, risk
    from mixreg.ablations import PartialMixup, ScaledMixup
    from mixreg.adaptive import AdaptiveMixup
    from mixreg.approximate import ApproximateMixup
    from mixreg.cutmix import CutMix, RescaledCutMix
    from mixreg.gaussian import GaussianMixup
    from mixreg.manifold import ManifoldMixup, RescaledManifold
    from mixreg.mixing import Mixup
    from mixreg.mixupe import MixupE
    from mixreg.moments import DataMoments
    from mixreg.parseval import Parseval
    from mixreg.perturbation import Perturbation
    from mixreg.regmixup import RegMixup
    from mixreg.rescaling import Rescaled
    from mixreg.smoothing import smooth_labels
    from mixreg.theta import Theta

__all__ = [
    # training
    "ApproximateMixup",
    "Mixup",
    "smooth_labels",
    # its relatives
    "AdaptiveMixup",
    "CutMix",
    "GaussianMixup",
    "ManifoldMixup",
    "MixupE",
    "Parseval",
    "PartialMixup",
    "RegMixup",
    "ScaledMixup",
    # prediction
    "Rescaled",
    "RescaledCutMix",
    "RescaledManifold",
    "calibration",
    # the quantities behind them
    "DataMoments",
    "Theta",
    "Perturbation",
    "losses",
    "risk",
]

_HOME = {
    "AdaptiveMixup": "mixreg.adaptive",
    "ApproximateMixup": "mixreg.approximate",
    "CutMix": "mixreg.cutmix",
    "DataMoments": "mixreg.moments",
    "GaussianMixup": "mixreg.gaussian",
    "ManifoldMixup": "mixreg.manifold",
    "Mixup": "mixreg.mixing",
    "MixupE": "mixreg.mixupe",
    "Parseval": "mixreg.parseval",
    "PartialMixup": "mixreg.ablations",
    "Perturbation": "mixreg.perturbation",
    "RegMixup": "mixreg.regmixup",
    "Rescaled": "mixreg.rescaling",
    "RescaledCutMix": "mixreg.cutmix",
    "RescaledManifold": "mixreg.manifold",
    "ScaledMixup": "mixreg.ablations",
    "Theta": "mixreg.theta",
    "smooth_labels": "mixreg.smoothing",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line must answer without waiting for PyTorch.
    if name not in __all__:
        raise AttributeError(f"module 'mixreg' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name) if name in _HOME else import_module(f"mixreg.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
