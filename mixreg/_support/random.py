"""Random numbers: named streams without state, and draws that work on any device.

**Streams.** A stream is named by a run's seed and by where it is used. A run that starts again at step 1,234 of epoch 7
draws what it would have drawn there: nothing has to be saved, and the number of processes does not matter.

**Draws.** Every draw is made on the device of its generator (without one, on the CPU) and moved to where it is needed.
So any generator serves data on any device, and the numbers do not depend on where the data is. All random numbers of
the package are drawn here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

CPU = torch.device("cpu")


def stream_seed(*name: int | str) -> int:
    """A seed for the stream of this name; different names give unrelated streams."""
    content = "/".join(map(str, name)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def stream(*name: int | str) -> torch.Generator:
    """A generator for the stream of this name."""
    return torch.Generator().manual_seed(stream_seed(*name))


def seeded(seed: int | None) -> torch.Generator | None:
    """A generator with this seed, or None for PyTorch's global one."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def device_of(generator: torch.Generator | None) -> torch.device:
    """Where a generator draws."""
    return CPU if generator is None else generator.device


def _source(generator: torch.Generator | None) -> dict[str, Any]:
    # For sizes that a compiler does not know, it takes no generator, not even None.
    return {"device": CPU} if generator is None else {"generator": generator, "device": generator.device}


def permutation(n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
    """A random order of n samples, on `device` (by default where it was drawn)."""
    # With a generator named, if only None: PyTorch 2.13 compiles `x[torch.randperm(n)]` by a pattern that fails.
    return _moved(torch.randperm(n, generator=generator, device=device_of(generator)), device)


def integers(
    high: int, shape: Sequence[int], generator: torch.Generator | None = None, device: torch.device | None = None
) -> Tensor:
    """Independent uniform integers in 0..high − 1."""
    return _moved(torch.randint(high, tuple(shape), **_source(generator)), device)


def signs(n: int, generator: torch.Generator | None = None, device: torch.device | None = None) -> Tensor:
    """n independent ±1, as integers."""
    return integers(2, (n,), generator, device) * 2 - 1


def uniform(
    shape: Sequence[int],
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Independent uniform numbers in [0, 1)."""
    return _moved(torch.rand(tuple(shape), dtype=dtype, **_source(generator)), device)


def normal(
    shape: Sequence[int],
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Independent standard normal numbers."""
    return _moved(torch.randn(tuple(shape), dtype=dtype, **_source(generator)), device)


def weighted_choices(weights: Tensor, generator: torch.Generator | None = None, times: int | None = None) -> Tensor:
    """One of m with probabilities in proportion to weights, for each row, independently: n × m → n.

    Or so many of each row: n × times.
    """
    sums = weights.double().cumsum(-1).to(device_of(generator))
    drawn = uniform((*weights.shape[:-1], times or 1), generator, torch.float64)
    # The last one that has a weight, where rounding went beyond it.
    last = sums.shape[-1] - 1 - (sums >= sums[..., -1:]).sum(-1, keepdim=True) + 1
    found = torch.minimum(torch.searchsorted(sums, drawn * sums[..., -1:], right=True), last)
    return found.squeeze(-1) if times is None else found


def gamma(concentration: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Independent Gamma variables of scale 1; concentration: on the device of the generator."""
    return torch._standard_gamma(concentration, generator=generator)


def _moved(drawn: Tensor, device: torch.device | None) -> Tensor:
    return drawn if device is None or drawn.device == device else drawn.to(device)


class Random:
    """Something that draws from a `generator` of its own, or from PyTorch's global one, also in a loader's workers."""

    generator: torch.Generator | None
    _worker_seed: int | None = None

    def _current_generator(self) -> torch.Generator | None:
        """The generator to draw from here: in a worker process, one of the worker's own.

        Every worker starts as the same copy of the parent's generator. Its next number, which the caller's seed fixes,
        and the worker's seed, which the loader changes with every worker and epoch, make a new one.
        """
        if self.generator is None:
            return None
        worker = get_worker_info()
        if worker is not None and worker.seed != self._worker_seed:
            drawn = int(integers(2**62, (), self.generator))
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
        if state.get("generator") is not None:
            device, generator_state = state["generator"]
            self.generator = torch.Generator(device)
            self.generator.set_state(torch.frombuffer(bytearray(generator_state), dtype=torch.uint8))
