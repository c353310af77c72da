"""Any loss for mixed targets: `mixed_loss(torch.nn.CrossEntropyLoss(weight=w))(logits, mixed)`.

With `x, mixed = mix(x, y, parts=True)`:

* class indices: (1 − s) ℓ(u, y) + s ℓ(u, y'), for every loss of them: weights of classes, focal, label smoothing,
  ignored labels. Where ℓ is linear in the label, as cross-entropy is, this is the loss on soft labels.
* numbers (soft labels, several labels at once, regression): ℓ(u, (1 − s) y + s y'), the loss on mixed targets. Integers
  are numbers to PyTorch's losses of regression, and zeros and ones where each output has one.

**Averaging.** A mean is over labels that are not ignored, each as much as its share: Σ (1 − s) ℓ + s ℓ' over the sum of
the shares that are left. With weights of classes, PyTorch divides by the sum of weights for class indices, and by the
number of samples for soft labels; mixed labels are soft labels, so this divides by the number of samples.

**Several targets.** A dict, list or tuple of losses, for outputs and targets of the same structure, gives their sum.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixreg.losses.mixed_targets import MixedTargets, over_samples
from mixreg.losses.pair_cross_entropy import IGNORED, pair_losses, returned_dtype
from mixreg.losses.targets import is_label

REDUCTIONS = ("none", "mean", "sum")
# Whose integers are class indices, and whose are numbers, whatever their shape.
_OF_LABELS = nn.CrossEntropyLoss, nn.NLLLoss
_OF_NUMBERS = nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss
_FUNCTIONS_OF_NUMBERS = functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss


def mixed_loss(criterion: Any) -> nn.Module:
    """A loss of outputs and `MixedTargets` from one of outputs and targets, reduced as that one is.

    Args:
        criterion: a module or function `criterion(outputs, targets)` with a `reduction`, or one that gives the loss of
            each sample; or a dict, list or tuple of such.

    >>> criterion = mixed_loss(torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0])))
    >>> logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> mixed = MixedTargets(torch.tensor([0, 1]), torch.tensor([2, 0]), torch.tensor([0.25, 0.5]))
    >>> soft = mixed.soft(num_classes=3)
    >>> torch.isclose(criterion(logits, mixed), torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2, 1]))(logits, soft))
    tensor(True)
    """
    if isinstance(criterion, (Mapping, list, tuple)):
        return _Several(criterion)
    if not callable(criterion) or isinstance(criterion, type):
        given = f"the class {criterion.__name__}" if isinstance(criterion, type) else type(criterion).__name__
        raise TypeError(f"a loss is a callable of outputs and targets, got {given}")
    return _MixedLoss(criterion)


class _MixedLoss(nn.Module):
    """See `mixed_loss`; a module, so that weights move to a device with it."""

    def __init__(self, criterion: Callable[..., Tensor]) -> None:
        super().__init__()
        self.criterion = criterion
        self.reduction = _reduction_of(criterion)

    def forward(self, outputs: Tensor, mixed: MixedTargets) -> Tensor:
        """The loss; outputs: n × …, as the criterion takes them."""
        if not isinstance(mixed, MixedTargets):
            raise TypeError(
                f"mixed_loss compares with what mix(x, y, parts=True) gives, got {type(mixed).__name__}; other targets "
                "are for the criterion itself"
            )
        if not isinstance(outputs, Tensor) or outputs.ndim == 0:
            raise TypeError(f"outputs must be a tensor, one for each sample, got {_kind_of(outputs)}")
        if len(outputs) != len(mixed.y):
            raise ValueError(f"there are {len(outputs)} outputs and {len(mixed.y)} mixed targets")
        if mixed.y.is_floating_point():
            return self.criterion(outputs, mixed.values())
        if _are_numbers(self.criterion, mixed, outputs):
            return self.criterion(outputs, _as_numbers(mixed, outputs).values())
        told = _cross_entropy_options(self.criterion)
        if told is not None:
            losses, count = pair_losses(outputs, mixed, **told)
            return self._reduced(losses, count).to(returned_dtype(outputs))
        if self.reduction is None:
            return self._of_unreduced(outputs, mixed)
        losses = self._pair_of(_unreduced(self.criterion), outputs, mixed)
        return self._reduced(losses, _count(losses, mixed, _option_of(self.criterion, "ignore_index")))

    def _reduced(self, losses: Tensor, count: Tensor | int) -> Tensor:
        if self.reduction == "none":
            return losses
        # A batch without any label has no mean, and gets NaN from PyTorch too.
        return losses.sum() if self.reduction == "sum" else losses.sum() / count

    def _pair_of(self, criterion: Callable[..., Tensor], outputs: Tensor, mixed: MixedTargets) -> Tensor:
        own, other = (criterion(outputs, _taken_by(criterion, y, outputs)) for y in (mixed.y, mixed.y_partner))
        if own.ndim == 0 or len(own) != len(mixed.y):
            raise ValueError(
                f"the loss gave shape {tuple(own.shape)} for {len(mixed.y)} samples with reduction='none'; there must "
                "be one for each"
            )
        return _blended(own, other, over_samples(mixed.share, own.ndim).to(own))

    def _of_unreduced(self, outputs: Tensor, mixed: MixedTargets) -> Tensor:
        """Of a function that does not say how it reduces: the loss of each sample, or a mean with one share."""
        own, other = (
            self.criterion(outputs, _taken_by(self.criterion, y, outputs)) for y in (mixed.y, mixed.y_partner)
        )
        if own.ndim and len(own) == len(mixed.y):
            return _blended(own, other, over_samples(mixed.share, own.ndim).to(own))
        share = mixed.share.flatten()
        if bool((share != share[0]).any()):
            raise ValueError(
                "this loss gives one number for a batch, whose samples have shares of their own: give it a reduction "
                "of 'none', or mix with per_sample=False"
            )
        return torch.lerp(own, other, share[0].to(own))


class _Several(nn.Module):
    """The sum of losses, one for each target."""

    def __init__(self, criteria: Mapping[Any, Any] | Sequence[Any]) -> None:
        super().__init__()
        keys = list(criteria) if isinstance(criteria, Mapping) else list(range(len(criteria)))
        if not keys:
            raise ValueError("give a loss for each target, got none")
        self.keys, self.losses = keys, nn.ModuleList(mixed_loss(criteria[key]) for key in keys)

    def forward(self, outputs: Any, mixed: Any) -> Tensor:
        """Σ of the losses; outputs and mixed: of the structure of the losses."""
        for what, given in (("outputs", outputs), ("mixed targets", mixed)):
            if not isinstance(given, (Mapping, list, tuple)):
                raise TypeError(f"there are losses for {self.keys}, and {what} are {_kind_of(given)}")
            found = list(given) if isinstance(given, Mapping) else list(range(len(given)))
            if set(found) != set(self.keys) or isinstance(given, MixedTargets):
                raise TypeError(f"there are losses for {self.keys}, and {what} for {found}")
        each: list[Tensor] = [loss(outputs[key], mixed[key]) for key, loss in zip(self.keys, self.losses, strict=True)]
        shapes = {key: tuple(part.shape) for key, part in zip(self.keys, each, strict=True)}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"losses of shapes {shapes} have no sum: reduce them all, or none, in one shape")
        return torch.stack(each).sum(0)


def _reduction_of(criterion: Callable[..., Any]) -> str | None:
    """How a loss reduces; None if it does not say."""
    found = _option_of(criterion, "reduction")
    if found is not None and found not in REDUCTIONS:
        raise ValueError(f"the loss has reduction={found!r}; known are {', '.join(REDUCTIONS)}")
    return found


def _option_of(criterion: Any, name: str) -> Any:
    """What a loss was told: an attribute, a keyword, or the default of an argument; None if it does not say."""
    if isinstance(criterion, partial):
        return criterion.keywords.get(name, _option_of(criterion.func, name))
    return getattr(criterion, name) if hasattr(criterion, name) else _default(criterion, name)


def _blended(own: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """(1 − share) own + share other; what has no share may be infinite."""
    return own.masked_fill(share == 1, 0) * (1 - share) + other.masked_fill(share == 0, 0) * share


def _default(function: Callable[..., Any], name: str) -> Any:
    """The default of an argument of a function; None without such an argument."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        found = inspect.signature(called).parameters.get(name)
    except (TypeError, ValueError):
        return None
    return None if found is None or found.default is inspect.Parameter.empty else found.default


def _unreduced(criterion: Callable[..., Any]) -> Callable[..., Tensor]:
    """The same loss of each sample."""
    if hasattr(criterion, "reduction"):
        # A copy of the object, not of what it holds, unless it hands its reduction on to that.
        before, each = criterion.reduction, copy.copy(criterion)
        each.reduction = "none"
        if criterion.reduction != before:
            criterion.reduction = before
            each = copy.deepcopy(criterion)
            each.reduction = "none"
        return each
    return partial(criterion, reduction="none")


def _taken_by(criterion: Any, y: Tensor, outputs: Tensor) -> Tensor:
    """Zeros and ones as numbers, for losses that compare every output with one."""
    return y.to(outputs.dtype) if y.shape == outputs.shape and not isinstance(criterion, _OF_LABELS) else y


def _are_numbers(criterion: Any, mixed: MixedTargets, outputs: Tensor) -> bool:
    """Whether integers or booleans are numbers, to be mixed and compared once, and not labels."""
    y, other = mixed.y, mixed.y_partner
    while isinstance(criterion, partial):
        criterion = criterion.func
    if y.dtype == torch.bool or isinstance(criterion, _OF_NUMBERS) or criterion in _FUNCTIONS_OF_NUMBERS:
        return True
    if y.shape != outputs.shape or isinstance(criterion, _OF_LABELS):
        return False
    # Of outputs with a target each, other integers than 0 and 1 mean something to the loss (−1: not known).
    return bool((((y == 0) | (y == 1)) & ((other == 0) | (other == 1))).all())


def _count(losses: Tensor, mixed: MixedTargets, ignore_index: int | None) -> Tensor | int:
    """How many losses there are, labels that are ignored left out with their shares."""
    if ignore_index is None or mixed.y.shape != losses.shape:
        return losses.numel()
    share = mixed.spread_share().to(losses.dtype)
    is_own, is_other = (is_label(y, ignore_index).logical_not() for y in (mixed.y, mixed.y_partner))
    return ((1 - share) * is_own + share * is_other).sum()


def _as_numbers(mixed: MixedTargets, outputs: Tensor) -> MixedTargets:
    kind = torch.promote_types(mixed.share.dtype, outputs.dtype)
    return MixedTargets(mixed.y.to(kind), mixed.y_partner.to(kind), mixed.share)


def _kind_of(given: Any) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def _cross_entropy_options(criterion: Any) -> dict[str, Any] | None:
    """What PyTorch's cross-entropy was told besides its reduction; None for other losses."""
    if type(criterion) is nn.CrossEntropyLoss:
        return {name: getattr(criterion, name) for name in ("weight", "ignore_index", "label_smoothing")}
    given: dict[str, Any] = {}
    while isinstance(criterion, partial) and not criterion.args:
        given, criterion = criterion.keywords | given, criterion.func
    given.pop("reduction", None)
    is_known = criterion is functional.cross_entropy and given.keys() <= {"weight", "ignore_index", "label_smoothing"}
    return {"ignore_index": IGNORED} | given if is_known else None
