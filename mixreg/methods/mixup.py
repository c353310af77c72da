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

from mixreg._support.fields import Keys
from mixreg._support.memory import Recycler, share_memory, shares_memory_with_itself
from mixreg._support.structure import common_dtype, leaves, rebuild
from mixreg.losses.target_trees import Classes, validate_classes
from mixreg.losses.targets import LARGEST_TABLE, is_class_index
from mixreg.methods.method import Augmentation, WithMixupRule
from mixreg.methods.pairing import Pairing, draw_pairing, mix, mix_one_hot_, mix_tree, paired, unmixed_parts
from mixreg.methods.partners import Partners
from mixreg.methods.recipe import Recipe
from mixreg.theory.theta import Theta


class Mixup(Recipe, WithMixupRule, Augmentation):
    """Mixes a batch: `x, y = Mixup(alpha=1.0, num_classes=10)(x, y)`.

    Args:
        alpha: in [0, ∞]; 0 mixes nothing. It can be set later, `mix.alpha = 0.5`, and then takes effect.
        num_classes: needed when targets are integer labels, which become soft labels. Floating targets (soft labels,
            multi-label, regression) are mixed as they are. Of several targets, a tuple, list or dict of numbers, None
            for what is not a label.
        per_sample: draw θ for every sample (more varied batches) or once per batch (as the original code did).
        generator: random number generator; by default PyTorch's global one, which every `DataLoader` worker has seeded
            apart. A given one is split among workers: each continues with a stream of its own.
        inplace: overwrite the tensors of x. Targets are small and always fresh.
        probability: that a sample is mixed (or the whole batch, if not `per_sample`), in [0, 1].
        label_smoothing: ε in [0, 1) of a smoothing towards the uniform label, before mixing.
        partners: "uniform" or "balanced" over classes.
            In Python also `SimilarTargets(bandwidth)`, or a callable (y, generator) that gives the partner of each.
        ignore_index: the class index (255, −100) that has no part in the loss: all its soft labels are 0.
        inputs: where a batch that is no pair holds x, a key or several; y is at `targets`.
        targets: the same of y.
    """

    name = "mixup"
    about = "Mixup (Zhang et al., 2018)"
    options = ("probability", "per_sample", "partners")
    takes_trees = True

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: Classes = None,
        per_sample: bool = True,
        generator: torch.Generator | None = None,
        inplace: bool = False,
        probability: float = 1.0,
        label_smoothing: float = 0.0,
        partners: Partners = "uniform",
        ignore_index: int | None = None,
        inputs: Keys | None = None,
        targets: Keys | None = None,
    ) -> None:
        self.alpha = alpha
        self.num_classes = validate_classes(num_classes)
        self.per_sample = per_sample
        self.generator = generator
        self.inplace = inplace
        self.probability, self.label_smoothing = probability, label_smoothing
        self.partners, self.ignore_index = partners, ignore_index
        self.inputs, self.targets = inputs, targets
        self._recycler = Recycler()

    @property
    def theta(self) -> Theta:
        """The distribution of θ for this α."""
        return Theta(self.alpha)

    def __call__(self, x: Any, y: Any = None, *, parts: bool = False) -> Any:
        """Mix one batch, given as `x, y`, as one pair, or as one batch that `inputs` and `targets` say how to read.

        Args:
            x: n × … floating point, or a tuple, list or dict of such: all are mixed alike. Among them booleans and
                integers under keys that end with "mask" are joined, other integers (ids, lengths) stay.
            y: n integer labels, or n × … floating targets; or a tuple, list or dict of such.
            parts: give `MixedTargets` (y, y_partner and the partner's share) in place of mixed targets.

        Returns:
            x with its shapes and dtypes, and y with integer labels turned into n × c soft labels, or its parts; of a
            batch that is no pair the whole batch.

        >>> mix = Mixup(alpha=1.0, generator=torch.Generator().manual_seed(0))
        >>> x, mixed = mix(torch.eye(3), torch.tensor([0, 1, 2]), parts=True)
        >>> torch.equal(x, mixed.soft(num_classes=3))
        True
        """
        return self._called(x, y, lambda x, y: self._mix(x, y, self._current_generator(), self.inplace, parts))

    def collate_fn(self, samples: list[Any]) -> Any:
        """Collate samples and mix them: `DataLoader(..., collate_fn=mixup.collate_fn)`."""
        # The batch was stacked here and belongs to nobody else.
        batch = self._collated(samples)
        return self._called(batch, None, lambda x, y: self._mix(x, y, self._current_generator(), inplace=True))

    def draw(self, x: Any, y: Any, generator: torch.Generator | None = None) -> tuple[Any, Any]:
        return self._mix(x, y, generator, inplace=False)

    def draw_parts(self, x: Any, y: Any, generator: torch.Generator | None = None) -> tuple[Any, Any]:
        return self._mix(x, y, generator, inplace=False, parts=True)

    def _mix(
        self, x: Any, y: Any, generator: torch.Generator | None, inplace: bool, parts: bool = False
    ) -> tuple[Any, Any]:
        values = self._parts(x, y) if parts else self._targets(x, y)
        if inplace:
            _require_writable(x)
        n, kind = len(values if isinstance(values, Tensor) else next(leaves(values))[1]), common_dtype(x)
        if self.alpha == 0:
            own = x if inplace else rebuild(x, torch.clone)
            return unmixed_parts(own, values) if parts else (own, rebuild(values, torch.clone))
        partner = self._drawn_partners(y, generator)
        pairing = draw_pairing(n, self.alpha, self.per_sample, generator, kind, self.probability, partner)
        # Targets first: in place, they may be the very tensor that is about to be overwritten.
        mixed_y = paired(values, pairing, inplace) if parts else self._mixed_targets(y, values, pairing)
        return mix_tree(x, pairing, inplace, self._recycler.empty_like), mixed_y

    def _mixed_targets(self, y: Any, values: Any, pairing: Pairing) -> Any:
        is_one_hot = isinstance(y, Tensor) and is_class_index(y) and y.ndim == 1
        if is_one_hot and not self.label_smoothing and self.ignore_index is None and values.shape[1] > LARGEST_TABLE:
            return mix_one_hot_(values, y, pairing)
        return rebuild(values, lambda target: mix(target, pairing))

    def __repr__(self) -> str:
        shown = [f"alpha={self.alpha}", f"num_classes={self.num_classes}", f"per_sample={self.per_sample}"]
        shown.append(f"inplace={self.inplace}")
        return f"Mixup({', '.join([*shown, *self._shown_recipe()])})"


def _require_writable(x: Any) -> None:
    """All of them, before the first is mixed: a batch is changed whole or not at all."""
    named = [(name, tensor) for name, tensor in leaves(x) if tensor.is_floating_point()]
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
