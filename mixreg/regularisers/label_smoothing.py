"""Label smoothing towards the uniform label (Szegedy et al., 2016), which goes with any method, before any mixing.

    (1 − ε) y + ε / c

Mixup itself smooths towards the mean label instead: `mixreg.theory.smoothing`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses.targets import to_values
from mixreg.theory.modified import shrink


def smooth_uniformly(y: Tensor, num_classes: int, epsilon: float) -> Tensor:
    """(1 − ε) y + ε / c: the usual label smoothing (Szegedy et al., 2016), towards the uniform label.

    Args:
        y: n integer labels, or n × c soft labels.
        num_classes: c.
        epsilon: in [0, 1].
    """
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must lie in [0, 1], got {epsilon!r}")
    dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
    uniform = torch.full((num_classes,), 1 / num_classes, dtype=dtype, device=y.device)
    return shrink(to_values(y, num_classes), uniform, 1 - float(epsilon))
