"""Sums over processes. With no process group every function is the identity, so callers need not ask."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """How many processes take part: 1 when `torch.distributed` is not running."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of every process's `tensor`, as a new tensor on the device of the given one."""
    if world_size() == 1:
        return tensor.clone()
    # NCCL speaks only to GPUs; gloo and MPI take the CPU.
    home = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    total = tensor.detach().to(home, copy=True).contiguous()
    dist.all_reduce(total)
    return total.to(tensor.device)


def share_buffers(module: torch.nn.Module) -> None:
    """Give every process the first one's buffers (running statistics), which differ where batches do.

    Distributed wrappers do so before a training step; whoever evaluates between two steps must, too.
    """
    if world_size() > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def gather_objects(value: Any) -> list[Any]:
    """Every process's `value`, in rank order."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered
