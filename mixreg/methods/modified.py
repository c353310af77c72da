"""ERM on modified data: shrunk inputs and labels without noise (eq. ermtild)."""

from __future__ import annotations

import torch
from torch import Tensor

from mixreg.losses.targets import checked_values
from mixreg.methods.method import Rows, WithMixupRule, WithMoments
from mixreg.theory.modified import shrink


class ModifiedData(WithMixupRule, WithMoments):
    """x̃ = x̄ + θ̄ (x − x̄) and ỹ = ȳ + θ̄ (y − ȳ): `x, y = ModifiedData(1.0, moments)(x, y)`."""

    name = "modified"
    about = "ERM on data shrunk towards its mean, as Mixup shrinks it"

    def draw(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Rows:
        values, share = checked_values(x, y, self.moments.num_classes), self.forms.mean
        x_mean, y_mean = self.moments.x_mean.to(x.device), self.moments.y_mean.to(values.device)
        return shrink(x, x_mean, share), shrink(values, y_mean, share)
