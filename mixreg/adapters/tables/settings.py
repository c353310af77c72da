"""The settings of an estimator, checked when they are used, as scikit-learn asks; each error is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn

from mixreg.adapters.tables.optimizers import OPTIMIZERS
from mixreg.adapters.tables.training import SCHEDULES, Plan
from mixreg.methods import options_of, require_known
from mixreg.methods.description import require_options
from mixreg.methods.method import Method
from mixreg.theory.theta import scalar_forms

DTYPES = {"float32": torch.float32, "float64": torch.float64}
RULES = ("plain", "rescaled", "fitted")
AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """What both estimators are told, by the names of their arguments."""

    module: nn.Module | Callable[[int, int], nn.Module] | None
    method: Any
    method_options: Mapping[str, Any] | None
    alpha: float | str
    rule: str
    hidden: Any
    epochs: int
    batch_size: int
    optimizer: Any
    lr: float
    weight_decay: float
    optimizer_options: Mapping[str, Any] | None
    schedule: str
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    tol: float
    verbose: bool | int
    dtype: str
    device: str

    def __post_init__(self) -> None:
        if self.alpha != AUTO:
            scalar_forms(self.alpha, "an estimator")  # type: ignore[arg-type]
        for name in ("epochs", "batch_size", "n_iter_no_change"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        for name in ("lr", "weight_decay", "tol", "validation_fraction"):
            if not isinstance(getattr(self, name), Real):
                raise TypeError(f"{name} must be a number, got {getattr(self, name)!r}")
        if not self.lr > 0 or not self.weight_decay >= 0:
            raise ValueError(f"lr must be above 0 and weight_decay at least 0, got {self.lr!r}, {self.weight_decay!r}")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")
        self._require("dtype", tuple(DTYPES))
        self._require("rule", RULES)
        self._require("schedule", SCHEDULES)
        if not callable(self.optimizer):
            self._require("optimizer", tuple(OPTIMIZERS))
        if self.module is not None and not callable(self.module):
            raise TypeError(f"module must be a torch.nn.Module or make one, got {type(self.module).__name__}")
        if self.optimizer_options is not None and not isinstance(self.optimizer_options, Mapping):
            raise TypeError(f"optimizer_options must be a dict, got {type(self.optimizer_options).__name__}")
        self._check_method()

    def _require(self, name: str, known: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    def _check_method(self) -> None:
        if isinstance(self.method, Method):
            if self.method_options:
                raise ValueError("method_options beside a method that is made would not be used: give them to it")
            return
        if not isinstance(self.method, str):
            raise TypeError(f"method must be a name or a method, got {type(self.method).__name__}")
        require_known(self.method)
        known = options_of(self.method)
        given = self.method_options or {}
        require_options(self.method, given, known)
        for name, value in given.items():
            known[name].checked(value)

    @property
    def plan(self) -> Plan:
        """How long and how fast to train."""
        return Plan(
            epochs=int(self.epochs),
            batch_size=int(self.batch_size),
            lr=float(self.lr),
            schedule=self.schedule,
            tol=float(self.tol),
            n_iter_no_change=int(self.n_iter_no_change),
            early_stopping=bool(self.early_stopping),
            verbose=bool(self.verbose),
        )

    @property
    def widths(self) -> list[int]:
        """Of the default network's hidden layers."""
        given = list(self.hidden) if isinstance(self.hidden, Iterable) else [self.hidden]
        if any(not isinstance(width, Integral) or width < 1 for width in given):
            raise ValueError(f"hidden must be widths of at least 1, got {self.hidden!r}")
        return [int(width) for width in given]

    @property
    def needs_held_out(self) -> bool:
        """Whether samples are kept from training."""
        return bool(self.early_stopping) or self.rule == "fitted"
