"""What carries a run out: Lightning Fabric, on the devices and processes that it is told."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Engine:
    """How a run is carried out: what Lightning Fabric is told, and how many processes read images from folders."""

    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    workers: int = 2

    def launch(self, precision: str = "32-true") -> Any:
        """A launched Fabric; a run's precision is part of what it is."""
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
