"""What carries a run out: Lightning Fabric, on the devices and processes that it is told."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Engine:
    """How a run is carried out: what Lightning Fabric is told, and how many processes read images from folders."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    workers: int = 2

    def launch(self) -> Any:
        """A launched Fabric."""
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
            precision=self.precision,  # type: ignore[arg-type]
        )
        fabric.launch()
        return fabric


class _Versioned(ModuleType):
    """Knows its version, and becomes the package itself as soon as any of its contents is asked for."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for its __file__; who wants a part of the package asks for __path__.
        if name.startswith("__") and name != "__path__":
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
    if package in sys.modules or importlib.util.find_spec(package) is None:
        yield
        return
    stand_in = _Versioned(package)
    stand_in.__version__ = importlib.metadata.version(package)  # type: ignore[attr-defined]
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(package) is stand_in:
            del sys.modules[package]
