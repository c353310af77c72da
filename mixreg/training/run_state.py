"""Where a training run is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mixreg.theory.moments import DataMoments


@dataclass
class RunState:
    """Where a run is and what it has gathered.

    Attributes:
        epoch, step: the next step to make.
        moments: of what the network saw, before mixing and smoothing.
        sums: of this epoch so far: losses, samples, hits, samples whose prediction was at hand.
        log: one record per finished epoch.
    """

    epoch: int
    step: int
    moments: DataMoments
    sums: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    log: list[dict[str, Any]] = field(default_factory=list)

    def epoch_means(self) -> tuple[float, float | None]:
        """Loss and accuracy of the epoch so far, of all processes if `sums` are."""
        losses, samples, hits, judged = self.sums.tolist()
        return losses / max(samples, 1), hits / judged if judged else None
