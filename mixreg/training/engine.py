"""What carries a run out: this process alone, or Lightning Fabric on the devices and processes that it is told.

One process on the CPU in float32 needs nothing of Fabric, which takes longer to import than a short run to train.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class OneProcess:
    """What a run asks of Lightning Fabric, where one process trains on the CPU as it is."""

    global_rank, world_size, is_global_zero = 0, 1, True
    device = torch.device("cpu")

    def setup(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Both as they are."""
        return net, optimizer

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss."""
        loss.backward()

    def broadcast(self, value: Any) -> Any:
        """The first process's value."""
        return value

    def barrier(self) -> None:
        """There is nobody to wait for."""


@dataclass(frozen=True)
class Engine:
    """How a run is carried out.

    Attributes:
        accelerator, devices, nodes, strategy: what Lightning Fabric is told.
        workers: processes that read images from folders.
        compiles: whether the network is compiled for its training steps, which changes last digits.
    """

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    workers: int = 2
    compiles: bool = False

    def launch(self, precision: str = "32-true") -> Any:
        """A launched Fabric, or what stands for it; a run's precision is part of what it is."""
        if precision == "32-true" and self._is_one_process():
            return OneProcess()
        try:
            with version_only("torchmetrics"):
                from lightning_fabric import Fabric
        except ImportError as error:
            raise ImportError("training needs Lightning Fabric: pip install 'mixreg[train]'") from error
        fabric = Fabric(
            accelerator=self.accelerator,
            devices=self.devices,
            num_nodes=self.nodes,
            strategy=self.strategy,
            precision=precision,  # type: ignore[arg-type]
        )
        fabric.launch()
        return fabric

    def _is_one_process(self) -> bool:
        """Whether all is to happen here, on the CPU; Fabric's own command line says otherwise by LT_… variables."""
        if (self.devices, self.nodes, self.strategy) != (1, 1, "auto"):
            return False
        if any(name.startswith("LT_") for name in os.environ):
            return False
        return self.accelerator == "cpu" or (self.accelerator == "auto" and not _has_accelerator())

    def prepared(self, net: nn.Module, device: torch.device) -> nn.Module:
        """The network as it is to be called in training steps on `device`: compiled, if that was asked for."""
        if not self.compiles:
            return net
        known = (os.environ["CXX"],) if os.environ.get("CXX") else ("g++", "clang++", "cl")
        if device.type == "cpu" and not any(map(shutil.which, known)):
            raise ValueError(
                f"to compile the network for the CPU a C++ compiler is needed, and {known[0]} is not there"
            )
        if device.type != "cpu" and importlib.util.find_spec("triton") is None:
            raise ValueError(f"to compile the network for {device.type} Triton is needed: pip install triton")
        # The last batch of an epoch is the only one of another size.
        compiled: Any = torch.compile(net, dynamic=False)
        return compiled


def _has_accelerator() -> bool:
    """Whether Fabric would find something better than the CPU."""
    is_there = torch.cuda.is_available() or torch.backends.mps.is_available()
    return is_there or importlib.util.find_spec("torch_xla") is not None


class _Versioned(ModuleType):
    """Knows its version and where its parts are, and fetches the package itself when its contents are asked for."""

    def __init__(self, spec: ModuleSpec, version: str) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__version__, self.__file__ = spec, version, spec.origin
        self.__path__ = list(spec.submodule_search_locations or ())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def version_only(package: str) -> Iterator[None]:
    """Inside, importing `package` to look at its version does no more than that.

    Fabric does so with torchmetrics, which in turn imports transformers where it is installed: four seconds of the six
    that `import lightning_fabric` takes.
    """
    stand_in = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        if package not in sys.modules and (spec := importlib.util.find_spec(package)) is not None:
            stand_in = sys.modules[package] = _Versioned(spec, importlib.metadata.version(package))
    try:
        yield
    finally:
        if stand_in is not None and sys.modules.get(package) is stand_in:
            del sys.modules[package]
