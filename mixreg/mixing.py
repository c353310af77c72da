"""Mixup of a batch (eq. mixup of the paper; Zhang et al., 2018).

    x ↦ θ_i x_i + (1 − θ_i) x_{p(i)}        y ↦ θ_i y_i + (1 − θ_i) y_{p(i)}

with a random permutation p of the batch and θ = max(λ, 1 − λ), λ ~ Beta(α, α). Over random pairs this is eq. (mixup):
the pair (i, j) at λ is the pair (j, i) at 1 − λ. Naming each mixed sample by its larger part is the form of Theorem 1,
keeps every sample of the batch represented by at least half, and makes α = 0 the identity.

Speed is memory traffic. Large images on a CPU are mixed one sample at a time, which reads the batch twice and writes it
once; in place, a permutation is followed along its cycles with a single sample set aside. Small samples, other devices
and inputs that need gradients take one gather and one `lerp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from mixreg.memory import WORTHWHILE_BYTES, Recycler
from mixreg.numerics import Draw, smaller_part_draw
from mixreg.structure import common_dtype, leaves, rebuild, validate_batch
from mixreg.targets import LARGEST_TABLE, is_class_index, to_values, validate_num_classes
from mixreg.theta import Theta, scalar_forms

# Per-sample elements from which a loop of single-sample `lerp`s beats gather + `lerp` on a CPU
# (benchmarks/mixing.py: the loop costs a few µs per sample, the gather one more pass over the batch).
LOOP_FROM_ELEMENTS = 65536


_CPU = torch.device("cpu")


class Pairing(NamedTuple):
    """Who is mixed with whom, and how much: partner (n, int64) and share = 1 − θ of the partner (n, in [0, ½])."""

    partner: Tensor
    share: Tensor


def draw_pairing(
    n: int,
    theta: Theta,
    per_sample: bool = True,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Pairing:
    """A random permutation of n samples and the partner's share for each (one for all if not `per_sample`).

    Drawn on the CPU unless the generator lives elsewhere: a stream that does not depend on where the data is.
    """
    device = generator.device if generator is not None else _CPU
    partner = torch.randperm(n, generator=generator, device=device)
    draw = Draw((n if per_sample else 1,), generator, device, dtype or torch.get_default_dtype())
    share = smaller_part_draw(theta.alpha, draw)
    return Pairing(partner, share if per_sample else share.expand(n))


class Mixed(NamedTuple):
    """Data and what Mixup makes of it, for losses that look at both: x, y, x̂, ŷ, each n × …."""

    x: Tensor
    y: Tensor
    mixed_x: Tensor
    mixed_y: Tensor


def mixed_copy(x: Tensor, y: Tensor, theta: Theta, generator: torch.Generator | None) -> Mixed:
    """Both beside each other; x: n × … floating point, y: n × … values."""
    pairing = draw_pairing(len(x), theta, generator=generator, dtype=x.dtype)
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
    if x.is_cpu and not (x.requires_grad and torch.is_grad_enabled()):
        if x.shape[1:].numel() >= LOOP_FROM_ELEMENTS:
            return _mix_along_cycles_(x, pairing) if inplace else _mix_samples(x, pairing, allocate(x))
        if pairing.share.dtype == x.dtype and x.is_contiguous() and x.numel() > 0:
            return _mix_gathered(x, pairing, inplace, allocate)
    index, share = (t.to(x.device) for t in pairing)
    share = share.reshape(-1, *[1] * (x.ndim - 1))
    partner = x.index_select(0, index)
    if share.dtype != x.dtype:
        # Half-precision data: keep the share's digits, so that inputs and labels are mixed alike.
        mixed = torch.lerp(x.to(share.dtype), partner.to(share.dtype), share).to(x.dtype)
        return x.copy_(mixed) if inplace else mixed
    return x.lerp_(partner, share) if inplace else torch.lerp(x, partner, share)


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


def _mix_one_hot_(one_hot: Tensor, labels: Tensor, pairing: Pairing) -> Tensor:
    """The mixture of wide one-hot rows (n × c), written at the two labels of each row and nowhere else, in place."""
    partner, share = pairing if labels.is_cpu else (t.to(labels.device) for t in pairing)
    label, share = labels.long().unsqueeze(1), share.unsqueeze(1)
    one_hot.scatter_add_(1, label, share.neg())
    return one_hot.scatter_add_(1, label.index_select(0, partner), share)


def _require_writable(x: Any) -> None:
    for name, tensor in leaves(x):
        if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
            raise ValueError(f"{name} requires gradients and cannot be mixed in place; use inplace=False")


class Drawing:
    """Something that draws from a `generator` of its own, or from PyTorch's global one, also in a loader's workers."""

    generator: torch.Generator | None
    _worker_seed: int | None = None

    def _stream(self) -> torch.Generator | None:
        """The generator to use here: in a worker process, one of the worker's own.

        Every worker starts as the same copy of the parent's generator. Its next number, which the caller's seed fixes,
        and the worker's seed, which the loader changes with every worker and epoch, make a new one.
        """
        worker = get_worker_info()
        if self.generator is not None and worker is not None and worker.seed != self._worker_seed:
            drawn = int(torch.randint(2**62, (), generator=self.generator, device=self.generator.device))
            self.generator = torch.Generator().manual_seed((drawn + worker.seed) % 2**63)
            self._worker_seed = worker.seed
        return self.generator

    def __getstate__(self) -> dict[str, Any]:
        # Generators travel to spawned workers as plain bytes: not every PyTorch can pickle them, and a tensor would go
        # through shared memory.
        state = self.__dict__.copy()
        if self.generator is not None:
            state["generator"] = (str(self.generator.device), self.generator.get_state().numpy().tobytes())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["generator"] is not None:
            device, generator_state = state["generator"]
            self.generator = torch.Generator(device)
            self.generator.set_state(torch.frombuffer(bytearray(generator_state), dtype=torch.uint8))


class Mixup(Drawing):
    """Mixes a batch: `x, y = Mixup(alpha=1.0, num_classes=10)(x, y)`.

    Args:
        alpha: in [0, ∞]; 0 mixes nothing.
        num_classes: needed when targets are integer labels, which become soft labels. Floating targets (soft labels,
            multi-label, regression) are mixed as they are.
        per_sample: draw θ for every sample (more varied batches) or once per batch (as the original code did).
        generator: the source of chance; by default PyTorch's global one, which every `DataLoader` worker has seeded
            apart. A given one is split among workers: each continues with a stream of its own.
        inplace: overwrite the tensors of x. Targets are small and always fresh.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        per_sample: bool = True,
        generator: torch.Generator | None = None,
        inplace: bool = False,
    ) -> None:
        self.alpha = scalar_forms(alpha, "Mixup").alpha
        self.theta = Theta(self.alpha)
        self.num_classes = validate_num_classes(num_classes)
        self.per_sample = per_sample
        self.generator = generator
        self.inplace = inplace
        self._recycler = Recycler()

    def __call__(self, x: Any, y: Tensor | None = None) -> tuple[Any, Tensor]:
        """Mix one batch, given as `x, y` or as one pair.

        Args:
            x: n × … floating point, or a tuple, list or dict of such: all are mixed alike.
            y: n integer labels, or n × … floating targets.

        Returns:
            x with its shapes and dtypes, and y with integer labels turned into n × c soft labels.
        """
        if y is None:
            if not isinstance(x, (tuple, list)) or len(x) != 2:
                raise TypeError(f"Mixup takes x and y, or one (x, y) pair, got a single {type(x).__name__}")
            x, y = x
        return self._mix(x, y, self.inplace)

    def collate_fn(self, samples: list[Any]) -> tuple[Any, Tensor]:
        """Collate (x, y) samples and mix them: `DataLoader(..., collate_fn=mixup.collate_fn)`."""
        if not all(isinstance(sample, (tuple, list)) and len(sample) == 2 for sample in samples):
            raise TypeError(
                "Mixup.collate_fn expects samples that are (x, y) pairs; for others call Mixup in a collate function "
                "of your own"
            )
        x, y = default_collate(samples)
        # The batch was stacked here and belongs to nobody else.
        return self._mix(x, y, inplace=True)

    def _mix(self, x: Any, y: Tensor, inplace: bool) -> tuple[Any, Tensor]:
        n = validate_batch(x)
        dtype = common_dtype(x)
        values = to_values(y, self.num_classes, dtype)
        if values.shape[0] != n:
            raise ValueError(f"x has {n} samples and y has {values.shape[0]}; they must be equally many")
        if inplace:
            _require_writable(x)
        if self.alpha == 0:
            return (x, values.clone()) if inplace else (rebuild(x, torch.clone), values.clone())
        pairing = draw_pairing(n, self.theta, self.per_sample, self._stream(), dtype)
        # Targets first: in place, they may be the very tensor that is about to be overwritten.
        is_wide = is_class_index(y) and y.ndim == 1 and values.shape[1] > LARGEST_TABLE
        mixed_y = _mix_one_hot_(values, y, pairing) if is_wide else mix(values, pairing)
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
        return (
            f"Mixup(alpha={self.alpha}, num_classes={self.num_classes}, per_sample={self.per_sample}, "
            f"inplace={self.inplace})"
        )
