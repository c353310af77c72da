"""Label smoothing towards the mean label, as much as Mixup does it: the half of Mixup that acts on labels."""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses.targets import checked_values
from mixreg.methods.method import Rows, WithMixupControl, WithMoments
from mixreg.prediction.rule import Rule
from mixreg.theory.moments import DataMoments
from mixreg.theory.smoothing import smooth_labels


class MeanLabelSmoothing(WithMixupControl, WithMoments):
    """ỹ = ȳ + θ̄ (y − ȳ), inputs as they are: `x, y = MeanLabelSmoothing(1.0, moments)(x, y)`."""

    name = "smoothing"
    about = "labels smoothed towards the mean label, as much as Mixup does"

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        values = checked_values(x, y, self.moments.num_classes)
        return x, smooth_labels(values, self.moments.y_mean.to(values.device), alpha=self.alpha)

    def rule(self, moments: DataMoments) -> Rule:
        """Outputs only."""
        return Rule(1.0, self.forms.mean, moments.x_mean, moments.y_mean)
