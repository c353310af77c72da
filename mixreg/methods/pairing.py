"""Pairs within a batch: who is mixed with whom and how much, and the mixing itself (eq. mixup).

    x ↦ θ_i x_i + (1 − θ_i) x_{p(i)}

with a random permutation p of the batch and θ = max(λ, 1 − λ), λ ~ Beta(α, α).

Speed is memory traffic. Large images on a CPU are mixed one sample at a time, which reads the batch twice and writes it
once; in place, a permutation is followed along its cycles with a single sample set aside. Small samples, other devices
and inputs that need gradients take one gather and one `lerp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mixreg._support.memory import WORTHWHILE_BYTES
from mixreg._support.random import permutation, uniform
from mixreg._support.structure import common_dtype, leaves, of_kind, rebuild
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.theory.numerics import draw_smaller_part

# Per-sample elements from which a loop of single-sample `lerp`s beats gather + `lerp` on a CPU
# (benchmarks/mixing.py: the loop costs a few µs per sample, the gather one more pass over the batch).
LOOP_FROM_ELEMENTS = 65536
# In the expression that reaches a tensor: below a key or field of such a name.
_MASK = re.compile(r"""mask(['"]\]|[.[]|$)""", re.IGNORECASE)


class Pairing(NamedTuple):
    """Who is mixed with whom, and how much: partner (n, int64) and share = 1 − θ of the partner (n, in [0, ½])."""

    partner: Tensor
    share: Tensor


def draw_pairing(
    n: int,
    alpha: float,
    per_sample: bool = True,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    probability: float = 1.0,
    partner: Tensor | None = None,
) -> Pairing:
    """Partners of n samples and the partner's share for each (one for all if not `per_sample`).

    By default a random permutation; `partner` (n) if it was drawn otherwise.

    With a `probability` below 1, samples (or the batch) are mixed so often and otherwise left alone: a share of 0.
    On the device of the generator: the numbers do not depend on where the data is.
    """
    partner = permutation(n, generator) if partner is None else partner
    dtype = dtype or torch.get_default_dtype()
    count = n if per_sample else 1
    share = draw_smaller_part(alpha, (count,), generator, dtype)
    if probability < 1:
        share = torch.where(is_chosen(count, probability, generator), share, torch.zeros_like(share))
    return Pairing(partner, share if per_sample else share.expand(n))


def is_chosen(count: int, probability: float, generator: torch.Generator | None = None) -> Tensor:
    """Independent choices with this probability: `count` booleans, on the device of the generator."""
    return uniform((count,), generator, torch.float64) < probability


class Mixed(NamedTuple):
    """Data and what Mixup makes of it, for losses that look at both: x, y, x̂, ŷ, each n × …."""

    x: Tensor
    y: Tensor
    mixed_x: Tensor
    mixed_y: Tensor


def mixed_copy(
    x: Tensor,
    y: Tensor,
    alpha: float,
    generator: torch.Generator | None,
    probability: float = 1.0,
    partner: Tensor | None = None,
) -> Mixed:
    """Both beside each other; x: n × … floating point, y: n × … values, partner: n if it is not a permutation."""
    kind = common_dtype(x)
    pairing = draw_pairing(len(x), alpha, True, generator, kind, probability, partner)
    return Mixed(x, y, mix(x, pairing), mix(y, pairing))


def mix(
    x: Tensor, pairing: Pairing, inplace: bool = False, allocate: Callable[[Tensor], Tensor] = torch.empty_like
) -> Tensor:
    """x_i ↦ x_i + share_i (x_{p(i)} − x_i).

    Args:
        x: n × …, floating point.
        pairing: of n samples.
        inplace: overwrite and return `x`.
        allocate: gives uninitialised memory like a CPU tensor's.
    """
    return of_kind(x, _mix(x, pairing, inplace, allocate))


def _mix(x: Tensor, pairing: Pairing, inplace: bool, allocate: Callable[[Tensor], Tensor]) -> Tensor:
    if x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        # Samples are whole in memory: mixed as what they are there.
        return _mix(x.permute(0, 2, 3, 1), pairing, inplace, allocate).permute(0, 3, 1, 2)
    if x.is_cpu and not torch.compiler.is_compiling() and not _is_differentiated(x):
        if x.shape[1:].numel() >= LOOP_FROM_ELEMENTS:
            if not inplace:
                return _mix_samples(x, pairing, allocate(x))
            if len(set(pairing.partner.tolist())) == len(x):
                return _mix_along_cycles_(x, pairing)
            # Somebody's partner is another's, too: all are taken before any is overwritten.
            return x.copy_(_mix_samples(x, pairing, torch.empty_like(x)))
        if pairing.share.dtype == x.dtype and x.is_contiguous() and x.numel() > 0:
            return _mix_gathered(x, pairing, inplace, allocate)
    index, share = (t.to(x.device) for t in pairing)
    share = share.reshape(-1, *[1] * (x.ndim - 1))
    partner = x.index_select(0, index)
    if share.dtype != x.dtype:
        # The digits of both: inputs and labels are mixed alike, and wide targets beside narrow inputs stay wide.
        kind = torch.promote_types(share.dtype, x.dtype)
        mixed = torch.lerp(x.to(kind), partner.to(kind), share.to(kind)).to(x.dtype)
        return x.copy_(mixed) if inplace else mixed
    return x.lerp_(partner, share) if inplace else torch.lerp(x, partner, share)


def _is_differentiated(x: Tensor) -> bool:
    """Whether somebody takes derivatives, in either mode, of what is made of x."""
    if x.requires_grad and torch.is_grad_enabled():
        return True
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return True
    # A dual number outside of `torch.func`.
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _mix_gathered(x: Tensor, pairing: Pairing, inplace: bool, allocate: Callable[[Tensor], Tensor]) -> Tensor:
    """Contiguous x, partners gathered at once; out of place the result overwrites them."""
    share = pairing.share.view(-1, *[1] * (x.ndim - 1))
    if x.nbytes < WORTHWHILE_BYTES:
        partner = x.index_select(0, pairing.partner)
    else:
        partner = torch.index_select(x, 0, pairing.partner, out=allocate(x))
    return x.lerp_(partner, share) if inplace else torch.lerp(x, partner, share, out=partner)


def _mix_samples(x: Tensor, pairing: Pairing, out: Tensor) -> Tensor:
    source, target = x.detach().unbind(), out.unbind()
    for i, (j, share) in enumerate(zip(pairing.partner.tolist(), pairing.share.tolist(), strict=True)):
        torch.lerp(source[i], source[j], share, out=target[i])
    return out


def _mix_along_cycles_(x: Tensor, pairing: Pairing) -> Tensor:
    partner, share = pairing.partner.tolist(), pairing.share.tolist()
    samples = x.detach().unbind()
    is_done = [False] * len(partner)
    for start in range(len(partner)):
        if is_done[start] or partner[start] == start:
            continue
        first = samples[start].clone()
        i = start
        while not is_done[i]:
            is_done[i] = True
            j = partner[i]
            samples[i].lerp_(first if j == start else samples[j], share[i])
            i = j
    return x


def mix_tree(
    x: Any, pairing: Pairing, inplace: bool = False, allocate: Callable[[Tensor], Tensor] = torch.empty_like
) -> Any:
    """All tensors of x mixed alike; a tensor that occurs twice is mixed once.

    Integers and booleans are no numbers to mix. Masks (booleans, and integers below a key or field whose name ends with
    "mask") are joined: what either of both has, where the partner has a share. All others, ids and lengths, stay the
    sample's own.
    """
    if isinstance(x, Tensor):
        return mix(x, pairing, inplace, allocate)
    mixed: dict[int, Tensor] = {}

    def mixed_once(name: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in mixed:
            if tensor.is_floating_point():
                mixed[id(tensor)] = mix(tensor, pairing, inplace, allocate)
            elif tensor.dtype == torch.bool or _MASK.search(name):
                mixed[id(tensor)] = _joined(tensor, pairing)
            else:
                mixed[id(tensor)] = tensor
        return mixed[id(tensor)]

    in_order = iter([mixed_once(name, tensor) for name, tensor in leaves(x)])
    return rebuild(x, lambda _: next(in_order))


def paired(y: Any, pairing: Pairing, is_copied: bool = False) -> Any:
    """Targets as their parts, `MixedTargets` for each of y; copied, where their memory may be written to."""

    def parts(target: Tensor) -> MixedTargets:
        index, share = (t.to(target.device) for t in pairing)
        own = target.clone() if is_copied else target
        return MixedTargets(own, of_kind(target, target.index_select(0, index)), share)

    return rebuild(y, parts)


def unmixed_parts(x: Any, y: Any) -> tuple[Any, Any]:
    """x as it is, and the parts of targets of which nothing is mixed."""
    n = len(y if isinstance(y, Tensor) else next(leaves(y))[1])
    return x, paired(y, Pairing(torch.arange(n), torch.zeros(n, dtype=common_dtype(x))))


def _joined(mask: Tensor, pairing: Pairing) -> Tensor:
    """The union of each mask and its partner's, n × …."""
    index, share = (t.to(mask.device) for t in pairing)
    has_share = (share > 0).reshape(-1, *[1] * (mask.ndim - 1))
    return of_kind(mask, torch.maximum(mask, mask.index_select(0, index) * has_share))


def mix_one_hot_(one_hot: Tensor, labels: Tensor, pairing: Pairing) -> Tensor:
    """The mixture of wide one-hot rows (n × c), written at the two labels of each row and nowhere else, in place."""
    partner, share = pairing if labels.is_cpu else (t.to(labels.device) for t in pairing)
    label, share = labels.long().unsqueeze(1), share.unsqueeze(1)
    one_hot.scatter_add_(1, label, share.neg())
    return one_hot.scatter_add_(1, label.index_select(0, partner), share)
