"""The targets of a table: classes, several labels at once, several classes at once, numbers; as values and back.

| targets                               | values                     | loss                                      |
|---------------------------------------|----------------------------|-------------------------------------------|
| n classes                             | one-hot, n × c             | cross-entropy                             |
| n × L zeros and ones (labels)         | themselves                 | logistic, summed over labels              |
| n × T classes (several targets)       | one-hot blocks, n × Σ c_t  | cross-entropy, summed over targets        |
| numbers, n or n × T                   | standardised               | squared error                             |

All are mixed as values: θ y_i + (1 − θ) y_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import log_expit, log_softmax
from torch import Tensor

from mixreg.adapters.tables.spreads import weighted_spread
from mixreg.losses import BUILT_IN, Loss
from mixreg.methods.partners import partner_means


class Classes:
    """One class for each sample; classes: c, sorted."""

    loss_name: str | None = "cross_entropy"

    def __init__(self, classes: np.ndarray) -> None:
        self.classes = classes

    @property
    def outputs(self) -> int:
        """c."""
        return len(self.classes)

    @property
    def loss(self) -> Loss:
        """Of values and outputs."""
        return BUILT_IN["cross_entropy"]

    def values(self, y: np.ndarray) -> np.ndarray:
        """One-hot, n × c; y: n."""
        return np.eye(len(self.classes))[_index(y, self.classes)]

    def decision(self, u: np.ndarray) -> Any:
        """Logits; of two classes their difference, n."""
        return u[:, 1] - u[:, 0] if u.shape[1] == 2 else u

    def log_probabilities(self, u: np.ndarray) -> Any:
        """n × c."""
        return log_softmax(u, axis=1)

    def predicted(self, u: np.ndarray) -> np.ndarray:
        """The most probable class of each sample, n."""
        return self.classes[u.argmax(1)]


class Labels:
    """Several labels at once; count: L."""

    loss_name: str | None = "logistic"

    def __init__(self, count: int) -> None:
        self.classes, self.outputs = np.arange(count), count

    @property
    def loss(self) -> Loss:
        """Of values and outputs."""
        return BUILT_IN["logistic"]

    def values(self, y: np.ndarray) -> np.ndarray:
        """Zeros and ones, n × L."""
        found = _of_width(y, self.outputs).astype(np.float64)
        if not np.isin(found, (0, 1)).all():
            raise ValueError("the estimator was trained on several labels, each 0 or 1, and y holds other values")
        return found

    def decision(self, u: np.ndarray) -> Any:
        """Logits, n × L."""
        return u

    def log_probabilities(self, u: np.ndarray) -> Any:
        """Of each label, n × L."""
        return log_expit(u)

    def predicted(self, u: np.ndarray) -> np.ndarray:
        """Labels that are more probable than not, n × L."""
        return (u > 0).astype(int)


class SeveralClasses:
    """A class for each of several targets; classes: of each target, sorted."""

    loss_name: str | None = None

    def __init__(self, classes: Sequence[np.ndarray]) -> None:
        self.classes = list(classes)
        self.sizes = [len(each) for each in classes]
        self.outputs = sum(self.sizes)

    @property
    def loss(self) -> Loss:
        """Of values and outputs."""
        return SummedCrossEntropy(self.sizes)

    def values(self, y: np.ndarray) -> np.ndarray:
        """One-hot blocks, n × Σ c_t; y: n × T."""
        columns = _of_width(y, len(self.sizes)).T
        return np.hstack(
            [np.eye(len(known))[_index(column, known)] for column, known in zip(columns, self.classes, strict=True)]
        )

    def _blocks(self, u: np.ndarray) -> list[np.ndarray]:
        return np.split(u, np.cumsum(self.sizes)[:-1], axis=1)

    def decision(self, u: np.ndarray) -> Any:
        """Logits of each target, a list of n × c_t."""
        return self._blocks(u)

    def log_probabilities(self, u: np.ndarray) -> Any:
        """Of each target, a list of n × c_t."""
        return [log_softmax(block, axis=1) for block in self._blocks(u)]

    def predicted(self, u: np.ndarray) -> np.ndarray:
        """The most probable class of each target, n × T."""
        return np.stack(
            [known[block.argmax(1)] for block, known in zip(self._blocks(u), self.classes, strict=True)], axis=1
        )


class Numbers:
    """Numbers to regress on, standardised.

    Args:
        y: n, or n × T, of training.
        weights: n.
    """

    loss_name: str | None = "squared_error"

    def __init__(self, y: np.ndarray, weights: np.ndarray) -> None:
        self.is_flat = y.ndim == 1
        y, share = y.reshape(len(y), -1), weights / weights.sum()
        self.outputs = y.shape[1]
        self.center = share @ y
        spread = weighted_spread(y, self.center, share)
        rounding = 10 * np.finfo(np.float64).eps * np.abs(self.center) * np.sqrt(len(y))
        self.spread = np.where(spread > rounding, spread, 1.0)

    @property
    def loss(self) -> Loss:
        """Of values and outputs."""
        return BUILT_IN["squared_error"]

    def in_units(self, partners: Any) -> Any:
        """What draws partners by targets as they were given."""
        return InUnits(partners, self.center, self.spread)

    def values(self, y: np.ndarray) -> np.ndarray:
        """Standardised, n × T."""
        return (_of_width(y.reshape(len(y), -1), self.outputs) - self.center) / self.spread

    def predicted(self, u: np.ndarray) -> np.ndarray:
        """Numbers of the shape that was trained with."""
        found = u * self.spread + self.center
        return found.ravel() if self.is_flat else found


class InUnits:
    """What draws partners, shown targets in their own units where training has them standardised.

    Args:
        partners: (y, generator) to the partner of each.
        center: of each target, T.
        spread: of each target, T.
    """

    def __init__(self, partners: Any, center: np.ndarray, spread: np.ndarray) -> None:
        self.partners, self.center, self.spread = partners, torch.from_numpy(center), torch.from_numpy(spread)

    def __call__(self, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """n partners; y: n × T, standardised."""
        found: Tensor = self.partners(y.double() * self.spread.to(y.device) + self.center.to(y.device), generator)
        return found

    def means(self, moments: Any) -> Any:
        """Of what draws them, if it knows."""
        return partner_means(self.partners, moments)

    def __repr__(self) -> str:
        return repr(self.partners)


def _index(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Where labels stand among the known classes."""
    index = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    is_known = classes[index] == y
    if not is_known.all():
        raise ValueError(f"label {y[~is_known][0]} is none of the classes {classes.tolist()}")
    return index


def _of_width(y: np.ndarray, width: int) -> np.ndarray:
    if y.ndim != 2 or y.shape[1] != width:
        raise ValueError(f"targets must be n × {width} as in the first call, got shape {y.shape}")
    return y


class SummedCrossEntropy(Loss):
    """ℓ = Σ_t cross-entropy of block t; sizes: of the blocks."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.one = list(sizes), BUILT_IN["cross_entropy"]

    def _blocks(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        return list(zip(*(tensor.split(self.sizes, 1) for tensor in tensors), strict=True))

    def _diagonal(self, blocks: list[Tensor]) -> Tensor:
        n, size = len(blocks[0]), sum(self.sizes)
        whole, start = blocks[0].new_zeros(n, size, size), 0
        for block in blocks:
            end = start + block.shape[1]
            whole[:, start:end, start:end] = block
            start = end
        return whole

    def value(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.stack([self.one.value(*block) for block in self._blocks(y, u)]).sum(0)

    def u(self, y: Tensor, u: Tensor) -> Tensor:
        return torch.cat([self.one.u(*block) for block in self._blocks(y, u)], 1)

    def uu(self, y: Tensor, u: Tensor) -> Tensor:
        return self._diagonal([self.one.uu(*block) for block in self._blocks(y, u)])

    def uy(self, y: Tensor, u: Tensor) -> Tensor:
        return self._diagonal([self.one.uy(*block) for block in self._blocks(y, u)])

    def yy(self, y: Tensor, u: Tensor) -> Tensor:
        return self._diagonal([self.one.yy(*block) for block in self._blocks(y, u)])

    def along(self, y: Tensor, u: Tensor, dy: Tensor, du: Tensor) -> Tensor:
        return torch.stack([self.one.along(*block) for block in self._blocks(y, u, dy, du)]).sum(0)
