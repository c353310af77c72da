"""Mixup of a batch (eq. mixup of the paper; Zhang et al., 2018).

    x ↦ θ_i x_i + (1 − θ_i) x_{p(i)}        y ↦ θ_i y_i + (1 − θ_i) y_{p(i)}

with a random permutation p of the batch and θ = max(λ, 1 − λ), λ ~ Beta(α, α). Over random pairs this is eq. (mixup):
the pair (i, j) at λ is the pair (j, i) at 1 − λ. Naming each mixed sample by its larger part is the form of Theorem 1,
keeps every sample of the batch represented by at least half, and makes α = 0 the identity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mixreg._support.memory import Recycler, share_memory, shares_memory_with_itself
from mixreg._support.structure import common_dtype, leaves, rebuild
from mixreg.losses.targets import LARGEST_TABLE, is_class_index, validate_num_classes
from mixreg.methods.method import Augmentation, WithMixupRule
from mixreg.methods.pairing import draw_pairing, mix, mix_one_hot_
from mixreg.methods.recipe import Recipe
from mixreg.theory.theta import Theta


class Mixup(Recipe, WithMixupRule, Augmentation):
    """Mixes a batch: `x, y = Mixup(alpha=1.0, num_classes=10)(x, y)`.

    Args:
        alpha: in [0, ∞]; 0 mixes nothing. It can be set later, `mix.alpha = 0.5`, and then takes effect.
        num_classes: needed when targets are integer labels, which become soft labels. Floating targets (soft labels,
            multi-label, regression) are mixed as they are.
        per_sample: draw θ for every sample (more varied batches) or once per batch (as the original code did).
        generator: random number generator; by default PyTorch's global one, which every `DataLoader` worker has seeded
            apart. A given one is split among workers: each continues with a stream of its own.
        inplace: overwrite the tensors of x. Targets are small and always fresh.
        probability: that a sample is mixed (or the whole batch, if not `per_sample`), in [0, 1].
        label_smoothing: ε in [0, 1) of a smoothing towards the uniform label, before mixing.
    """

    name = "mixup"
    about = "Mixup (Zhang et al., 2018)"
    options = ("probability", "per_sample")
    takes_trees = True

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        per_sample: bool = True,
        generator: torch.Generator | None = None,
        inplace: bool = False,
        probability: float = 1.0,
        label_smoothing: float = 0.0,
    ) -> None:
        self.alpha = alpha
        self.num_classes = validate_num_classes(num_classes)
        self.per_sample = per_sample
        self.generator = generator
        self.inplace = inplace
        self.probability, self.label_smoothing = probability, label_smoothing
        self._recycler = Recycler()

    @property
    def theta(self) -> Theta:
        """The distribution of θ for this α."""
        return Theta(self.alpha)

    def __call__(self, x: Any, y: Tensor | None = None) -> tuple[Any, Tensor]:
        """Mix one batch, given as `x, y` or as one pair.

        Args:
            x: n × … floating point, or a tuple, list or dict of such: all are mixed alike.
            y: n integer labels, or n × … floating targets.

        Returns:
            x with its shapes and dtypes, and y with integer labels turned into n × c soft labels.
        """
        x, y = self._pair(x, y)
        return self._mix(x, y, self._current_generator(), self.inplace)

    def collate_fn(self, samples: list[Any]) -> tuple[Any, Tensor]:
        """Collate (x, y) samples and mix them: `DataLoader(..., collate_fn=mixup.collate_fn)`."""
        # The batch was stacked here and belongs to nobody else.
        x, y = self._collated(samples)
        return self._mix(x, y, self._current_generator(), inplace=True)

    def draw(self, x: Any, y: Tensor, generator: torch.Generator | None = None) -> tuple[Any, Tensor]:
        return self._mix(x, y, generator, inplace=False)

    def _mix(self, x: Any, y: Tensor, generator: torch.Generator | None, inplace: bool) -> tuple[Any, Tensor]:
        values = self._targets(x, y)
        if inplace:
            _require_writable(x)
        if self.alpha == 0:
            return (x, values.clone()) if inplace else (rebuild(x, torch.clone), values.clone())
        kind, p = common_dtype(x), self.probability
        pairing = draw_pairing(len(values), self.alpha, self.per_sample, generator, kind, p)
        # Targets first: in place, they may be the very tensor that is about to be overwritten.
        is_one_hot = is_class_index(y) and y.ndim == 1 and not self.label_smoothing
        is_wide = is_one_hot and values.shape[1] > LARGEST_TABLE
        mixed_y = mix_one_hot_(values, y, pairing) if is_wide else mix(values, pairing)
        allocate = self._recycler.empty_like
        if isinstance(x, Tensor):
            return mix(x, pairing, inplace, allocate), mixed_y
        mixed: dict[int, Tensor] = {}

        def mix_once(tensor: Tensor) -> Tensor:
            # A tensor that occurs twice in x is mixed once.
            if id(tensor) not in mixed:
                mixed[id(tensor)] = mix(tensor, pairing, inplace, allocate)
            return mixed[id(tensor)]

        return rebuild(x, mix_once), mixed_y

    def __repr__(self) -> str:
        shown = [f"alpha={self.alpha}", f"num_classes={self.num_classes}", f"per_sample={self.per_sample}"]
        shown.append(f"inplace={self.inplace}")
        return f"Mixup({', '.join([*shown, *self._shown_recipe()])})"


def _require_writable(x: Any) -> None:
    """All of them, before the first is mixed: a batch is changed whole or not at all."""
    named = list(leaves(x))
    for name, tensor in named:
        reason = ""
        if tensor.requires_grad and torch.is_grad_enabled() and (tensor.is_leaf or tensor._is_view()):
            reason = "requires gradients"
        elif shares_memory_with_itself(tensor):
            reason = "is expanded, so that several samples share their memory,"
        elif any(share_memory(tensor, other) for _, other in named if other is not tensor):
            reason = "shares its memory with another tensor of the batch"
        elif tensor.is_inference() and not torch.is_inference_mode_enabled():
            reason = "was made in inference mode"
        if reason:
            raise ValueError(f"{name} {reason} and cannot be mixed in place; use inplace=False")
