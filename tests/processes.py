"""Run a function in several real processes joined by `torch.distributed` (gloo)."""

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import preloaded
import torch
import torch.distributed as dist


def run_processes(function: Callable[[int], Any], world: int, folder: Path) -> list[Any]:
    """What `function(rank)`, defined at the top of a module, returned in each of `world` processes."""
    named = [function.__module__, function.__name__, str(world), str(folder)]
    crew = [preloaded.start([__file__, str(rank), *named], merged=True) for rank in range(world)]
    try:
        # Whoever is left waits for one that failed.
        while any(process.poll() is None for process in crew) and not any(process.returncode for process in crew):
            time.sleep(0.01)
    finally:
        for process in crew:
            process.kill()
    outputs = [process.communicate()[0] for process in crew]
    assert not any(process.returncode for process in crew), "\n".join(outputs)
    return [torch.load(folder / f"result-{rank}.pt", weights_only=True) for rank in range(world)]


if __name__ == "__main__":
    rank, module, name, world, folder = sys.argv[1:]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=int(rank), world_size=int(world))
    torch.save(getattr(importlib.import_module(module), name)(int(rank)), f"{folder}/result-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
