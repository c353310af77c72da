"""Run a function in several real processes joined by `torch.distributed` (gloo)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _worker(rank: int, world: int, folder: str, function: Callable[[int], Any]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    torch.save(function(rank), f"{folder}/result-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run_processes(function: Callable[[int], Any], world: int, folder: Path) -> list[Any]:
    """What `function(rank)`, defined at the top of a module, returned in each of `world` processes."""
    mp.spawn(_worker, args=(world, str(folder), function), nprocs=world)
    return [torch.load(folder / f"result-{rank}.pt", weights_only=True) for rank in range(world)]
