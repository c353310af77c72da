"""Cross-entropy with a pair of labels and a share, without soft labels.

For labels y and y' with shares 1 − s and s, weights w of classes and smoothing ε, the loss on soft labels is

    −a log p_y − b log p_y' − e Σ_k (ε/c) w_k log p_k,        a = (1 − ε)(1 − s) w_y,    b = (1 − ε) s w_y',    e = 1,

where p = softmax(u). A label that is ignored has its share taken out of a or b and of e. The derivative in u is

    (a + b + e Σ_k (ε/c) w_k) p − a 1_y − b 1_y' − e (ε/c) w,

so that one pass over p makes it, and two numbers of each row are changed. As one function for autograd this costs a
fraction of what soft labels do, which have to be made, multiplied and kept; picked by two gathers that autograd sees,
it costs more (`benchmarks/mixed_loss.py`). Shares and weights stand outside of it and may need gradients, too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixreg._support.devices import is_asynchronous
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.losses.targets import require_labels_in_range

# PyTorch's own: labels that count for nothing.
IGNORED = -100


def pair_cross_entropy(
    logits: Tensor,
    mixed: MixedTargets,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORED,
) -> Tensor:
    """The loss of each label, n × …; `torch.nn.functional.cross_entropy` of soft labels, before it is averaged.

    Args:
        logits: n × c × ….
        mixed: with class indices n × … for y and y_partner, and a share that broadcasts to them.
        weight: of classes, c.
        label_smoothing: ε in [0, 1], towards the uniform label.
        ignore_index: the label that has no loss.

    >>> logits = torch.tensor([[2.0, 0.0, 1.0]])
    >>> mixed = MixedTargets(torch.tensor([0]), torch.tensor([2]), torch.tensor([0.25]))
    >>> pair_cross_entropy(logits, mixed)
    tensor([0.6576])
    """
    losses, _ = pair_losses(logits, mixed, weight, label_smoothing, ignore_index)
    return losses.to(returned_dtype(logits))


def label_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """The loss of one label each, n × …: that of a pair whose partner has no share.

    Args:
        logits: n × c × ….
        y: class indices, n × ….
        weight: of classes, c.
    """
    fits = logits.ndim > 1 and logits.shape[:1] + logits.shape[2:] == y.shape
    if weight is None and fits and _are_all_known(y, logits.shape[1], IGNORED):
        # One function of PyTorch's, where there is nothing to ignore and nothing to say.
        losses = F.cross_entropy(logits.to(_exact(logits)), y.long(), reduction="none")
        return losses.to(returned_dtype(logits))
    return pair_cross_entropy(logits, MixedTargets(y, y, logits.new_zeros(len(y))), weight)


def returned_dtype(logits: Tensor) -> torch.dtype:
    """Of a loss, as PyTorch's is: that of the logits, but float32 where autocast made them short."""
    is_cast = torch.is_autocast_enabled(logits.device.type)
    return _exact(logits) if is_cast else logits.dtype


def _exact(logits: Tensor) -> torch.dtype:
    """In which sums are taken."""
    return logits.dtype if logits.dtype.itemsize > 2 else torch.float32


def pair_losses(
    logits: Tensor,
    mixed: MixedTargets,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORED,
) -> tuple[Tensor, Tensor | int]:
    """The same at least in float32, and how many labels: of those that are ignored, what partners' shares leave."""
    if logits.ndim < 2:
        raise ValueError(f"cross-entropy needs outputs n × classes × …, got shape {tuple(logits.shape)}")
    classes = logits.shape[1]
    exact = _exact(logits)
    labels, share = torch.stack([mixed.y, mixed.y_partner], 1).long(), mixed.spread_share().to(exact)
    if labels.shape[2:] != logits.shape[2:]:
        raise ValueError(
            f"outputs of shape {tuple(logits.shape)} need labels n × {tuple(logits.shape[2:])}, got "
            f"{tuple(mixed.y.shape)}"
        )
    each = torch.stack([1 - share, share], 1)
    count: Tensor | int = share.numel()
    if not _are_all_known(labels, classes, ignore_index):
        is_ignored = labels == ignore_index
        labels, each = labels.masked_fill(is_ignored, 0), each.masked_fill(is_ignored, 0)
        if _can_be_looked_at(labels):
            require_labels_in_range(labels.flatten(), classes)
        count = each.sum()
    even = None
    if label_smoothing:
        even = torch.full((classes,), label_smoothing / classes, dtype=exact, device=logits.device)
        each = torch.cat([each * (1 - label_smoothing), each.sum(1, keepdim=True)], 1)
    if weight is not None:
        if weight.shape != (classes,):
            raise ValueError(f"there are {len(weight)} class weights for {classes} classes")
        of_labels = weight.to(each)[labels]
        each = each * (of_labels if even is None else torch.cat([of_labels, torch.ones_like(of_labels[:, :1])], 1))
        even = None if even is None else even * weight.to(even)
    log_p, _ = _LogProbabilities.apply(logits, labels, even)  # type: ignore[no-untyped-call]
    # What has no weight may be impossible (a class that is masked out) and still counts for nothing.
    return (each * log_p.masked_fill(each == 0, 0)).sum(1).neg(), count


def _are_all_known(labels: Tensor, classes: int, ignore_index: int) -> bool:
    """Whether every label is that of a class and none is ignored, as far as a look tells that costs no waiting."""
    if is_asynchronous(labels) or not _can_be_looked_at(labels) or 0 <= ignore_index < classes or not labels.numel():
        return False
    low, high = labels.aminmax()
    return bool((low >= 0) & (high < classes))


def _can_be_looked_at(labels: Tensor) -> bool:
    """Not in code that is compiled, and not under `torch.func`'s transforms."""
    return not torch.compiler.is_compiling() and not torch._C._functorch.is_functorch_wrapped_tensor(labels)


class _LogProbabilities(torch.autograd.Function):
    """log p at two labels of each row, and its sum with weights of classes: n × c × … → n × 2 × … or n × 3 × ….

    With k the largest, log p_y = (u_y − u_k) + log p_k, of which nothing cancels. p is kept, and is an output as well:
    a second derivative reaches it there, through the graph of the first. (p = softmax(u) is quicker than log p here,
    and need not be taken an exponential of in the backward pass.)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, even: Tensor | None) -> tuple[Tensor, Tensor]:
        p = torch.softmax(logits, 1, dtype=_exact(logits))
        # Two passes for largest values take a tenth of one that says where they are.
        largest, top = p.amax(1, keepdim=True), logits.amax(1, keepdim=True).to(p.dtype)
        log_p = logits.gather(1, labels).to(p.dtype) - top + largest.log()
        if even is not None:
            centred = logits.to(p.dtype) - top + largest.log()
            log_p = torch.cat([log_p, torch.tensordot(centred, even, ([1], [0])).unsqueeze(1)], 1)
        return log_p, p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, labels, even = inputs
        ctx.save_for_backward(output[1], labels, even)
        ctx.save_for_forward(output[1], labels, even)
        ctx.dtype = logits.dtype
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, of_log_p: Tensor | None, of_p: Tensor | None) -> tuple[Tensor | None, ...]:
        p, labels, even = ctx.saved_tensors
        result = None if of_p is None else p * (of_p - (p * of_p).sum(1, keepdim=True))
        if of_log_p is not None:
            of_labels, of_even = of_log_p[:, :2], of_log_p[:, 2:]
            total = of_labels.sum(1, keepdim=True)
            total = total if even is None else total + of_even * even.sum()
            slope = (p * -total).scatter_add_(1, labels, of_labels)
            if even is not None:
                slope = slope + of_even * even.reshape(-1, *[1] * (p.ndim - 2))
            result = slope if result is None else result + slope
        return None if result is None else result.to(ctx.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, of_logits: Tensor, of_labels: None, of_even: None) -> tuple[Tensor, Tensor]:
        """Along v: v_y − pᵀv at labels, vᵀe − (Σ e) pᵀv of the sum with weights e, and p ∘ (v − pᵀv)."""
        p, labels, even = ctx.saved_tensors
        direction = of_logits.to(p.dtype)
        mean = (p * direction).sum(1, keepdim=True)
        of_log_p = direction.gather(1, labels) - mean
        if even is not None:
            of_sum = torch.tensordot(direction, even, ([1], [0])).unsqueeze(1) - even.sum() * mean
            of_log_p = torch.cat([of_log_p, of_sum], 1)
        return of_log_p, p * (direction - mean)
