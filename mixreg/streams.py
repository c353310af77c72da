"""Randomness that has no state: every stream is named by the run's seed and where it is used.

A run that starts again at step 1,234 of epoch 7 draws what it would have drawn there. Nothing has to be saved, and the
number of processes does not matter.
"""

from __future__ import annotations

import hashlib

import torch


def stream_seed(*name: int | str) -> int:
    """A seed for the stream of this name; different names give unrelated streams."""
    content = "/".join(map(str, name)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def stream(*name: int | str) -> torch.Generator:
    """A generator for the stream of this name."""
    return torch.Generator().manual_seed(stream_seed(*name))


def seeded(seed: int | None) -> torch.Generator | None:
    """A generator of one's own, or PyTorch's global one."""
    return None if seed is None else torch.Generator().manual_seed(seed)
