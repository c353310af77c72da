"""What is wrong with a trainer of Lightning for a method and its rule, said before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mixreg.losses.targets import is_class_index
from mixreg.prediction.held_out import SCALED_LOSSES

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def require_loaders(trainer: Trainer, fits: bool) -> None:
    """One training loader and, where the rule is to be fitted, one validation loader with something in it."""
    loader: Any = trainer.train_dataloader
    if isinstance(loader, (list, tuple)):
        # Its batches would be lists, whose parts are no inputs and targets.
        raise TypeError(f"MixupCallback takes one training loader, got a {type(loader).__name__} of {len(loader)}")
    if not fits:
        return
    loader, wanted = trainer.val_dataloaders, "fit=True takes one validation loader, which places the rule"
    if loader is None:
        raise ValueError(f"{wanted}, and there is none")
    if isinstance(loader, (list, tuple, dict)):
        raise ValueError(f"{wanted}, got {len(loader)}")
    if not sum(trainer.num_val_batches):
        raise ValueError(f"{wanted}, and there is not one batch in it")


def require_before_averaging(callback: Any, trainer: Any) -> None:
    """Refuse callbacks listed before that take averaged weights out of their place while this one still needs them."""
    callbacks: list[Any] = trainer.callbacks
    for each in callbacks[: callbacks.index(callback)]:
        if any(kind.__name__ == "WeightAveraging" for kind in type(each).__mro__):
            raise ValueError(
                f"fit=True measures the weights that were validated: list MixupCallback before {type(each).__name__}, "
                "which averages them"
            )


def require_fitted_loss(loss: Any, is_several: bool, targets: Tensor | None = None) -> None:
    """A loss that a rule can be fitted with, by name, of one target.

    Args:
        loss: what was said, or None.
        is_several: whether there are several targets.
        targets: n class indices or n × … numbers, where they are known.
    """
    if is_several:
        raise TypeError("fit=True places the rule of one target, and these are several")
    if loss is not None and loss not in SCALED_LOSSES:
        raise ValueError(
            f"fit=True measures by {', '.join(SCALED_LOSSES)}, got loss={loss!r}: name the one that is nearest, or "
            "leave fit out"
        )
    if targets is None or loss != "cross_entropy" or is_class_index(targets):
        return
    sums = targets.sum(1) if targets.ndim > 1 else targets
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        raise ValueError(
            "fit=True measures by cross_entropy unless it is told otherwise, and these targets are no probabilities: "
            'say loss="squared_error" or loss="logistic"'
        )
