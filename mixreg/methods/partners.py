"""Who is mixed with whom: any sample of the batch, one of any class alike, or one whose target is similar.

| partners                    | j given i                                          | m_x, m_y of the rule   |
|-----------------------------|----------------------------------------------------|------------------------|
| "uniform"                   | a random permutation of the batch                  | x̄, ȳ                   |
| "balanced"                  | a class of the batch, then one of its samples      | means of class means   |
| `SimilarTargets(bandwidth)` | ∝ exp(−‖y_i − y_j‖² / 2h²): C-Mixup                | none                   |
| a callable (y, generator)   | what it says                                       | `means`, if it has one |

The rule holds for partners that do not depend on i (`mixreg.prediction.rule`). Balanced ones do not: their means are
those of a class drawn uniformly, m_x = mean_c x̄_c. (A class that is missing from a batch cannot be drawn in it; the
means are exact where batches hold all classes.) With similar targets E[x_j | i] depends on y_i, so that no one
map is to be undone: there is no rule, and predictions are used as they are.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from mixreg._support.random import permutation, weighted_choices
from mixreg.losses.targets import are_probabilities, is_class_index
from mixreg.theory.moments import DataMoments

Means = tuple[Any, Tensor]
# "uniform", "balanced", or from targets and a generator: n integers, the partner of each.
Partners = str | Callable[[Tensor, Generator | None], Tensor]


class UniformPartners:
    """A random permutation."""

    def __call__(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        return permutation(len(y), generator)

    def means(self, moments: DataMoments) -> Means | None:
        """x̄ and ȳ."""
        return moments.x_mean, moments.y_mean

    def __repr__(self) -> str:
        return "'uniform'"


class BalancedPartners:
    """A class of those in the batch, each as likely as any other, and one of its samples.

    >>> y = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1])
    >>> partner = BalancedPartners()(y.repeat(1000), torch.Generator().manual_seed(0))
    >>> round(float((y.repeat(1000)[partner] == 1).float().mean()), 1)
    0.5
    """

    def __call__(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        """y: n class indices, or n × c soft labels, whose largest is the class.

        Negative indices are no class and nobody's partner; where no sample has a class, each is its own.
        """
        if not (is_class_index(y) and y.ndim == 1) and not (y.is_floating_point() and y.ndim == 2):
            raise ValueError(
                f"balanced partners are for one label per sample, got targets of {y.dtype} and shape {tuple(y.shape)}"
            )
        if y.is_floating_point() and not (y.shape[1] > 1 and are_probabilities(y)):
            raise ValueError(f"balanced partners are for labels, got {tuple(y.shape)} numbers that do not sum to 1")
        labels = y.long() if is_class_index(y) else y.argmax(1)
        is_class = labels >= 0
        if not bool(is_class.any()):
            return torch.arange(len(y))
        _, place, counts = labels.unique(return_inverse=True, return_counts=True)
        return weighted_choices((is_class / counts.double()[place]).unsqueeze(0), generator, len(y)).squeeze(0)

    def means(self, moments: DataMoments) -> Means | None:
        """Those of classes, each counting alike."""
        return moments.balanced_means()

    def __repr__(self) -> str:
        return "'balanced'"


class SimilarTargets:
    """Partners with similar targets, for regression (C-Mixup; Yao et al., 2022).

    Args:
        bandwidth: h above 0, in the units of the targets; the smaller, the more alike.

    >>> y = torch.tensor([0.0, 0.1, 5.0, 5.1])
    >>> SimilarTargets(0.5)(y, torch.Generator().manual_seed(0)) // 2
    tensor([0, 0, 1, 1])
    """

    def __init__(self, bandwidth: float) -> None:
        if isinstance(bandwidth, bool) or not isinstance(bandwidth, numbers.Real) or not bandwidth > 0:
            raise ValueError(f"bandwidth must be a number above 0, got {bandwidth!r}")
        self.bandwidth: float = float(bandwidth)

    def __call__(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        """y: n × … numbers."""
        if not y.is_floating_point():
            raise ValueError(
                f"SimilarTargets is for numbers to regress on, got labels of {y.dtype}; for classes: 'balanced'"
            )
        values = y.detach().double().reshape(len(y), -1)
        if not bool(values.isfinite().all()):
            raise ValueError("SimilarTargets compares targets, and some of them are not finite")
        if not len(values):
            return torch.arange(0)
        # By differences: products would lose those of targets far from 0.
        distance = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist") / self.bandwidth
        return weighted_choices((-0.5 * distance.square()).exp(), generator)

    def means(self, moments: DataMoments) -> Means | None:
        """None: what a sample is mixed with depends on its target."""
        return None

    def __repr__(self) -> str:
        return f"SimilarTargets({self.bandwidth:g})"


NAMED: dict[str, Callable[[], Any]] = {"uniform": UniformPartners, "balanced": BalancedPartners}


def resolve_partners(partners: Any) -> Any:
    """What draws partners, of a name or a callable, or an error that says what it may be."""
    if isinstance(partners, str) and partners in NAMED:
        return NAMED[partners]()
    if callable(partners) and not isinstance(partners, type) and _takes_two(partners):
        return partners
    raise ValueError(f"partners are {', '.join(map(repr, NAMED))} or a callable(y, generator), got {partners!r}")


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with targets and a generator, as far as it tells."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # one that is compiled may not tell
        return True
    return True


def draw_partners(partners: Any, y: Any, generator: Generator | None) -> Tensor:
    """n partners; of several targets the first says who is whose."""
    target = _first(y)
    found = partners(target, generator)
    n = len(target)
    if not isinstance(found, Tensor) or found.shape != (n,) or found.is_floating_point() or found.dtype == torch.bool:
        given = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"partners must be {n} integers, one for each sample, got {given}")
    if n and not bool(((found >= 0) & (found < n)).all()):
        raise ValueError(f"partners must lie in 0..{n - 1}, got values from {int(found.min())} to {int(found.max())}")
    return found.long()


def _first(y: Any) -> Tensor:
    """The first target of a tree, in the order in which it was given."""
    while not isinstance(y, Tensor):
        y = next(iter(y.values() if isinstance(y, Mapping) else y))
    return y


def partner_means(partners: Any, moments: DataMoments) -> Means | None:
    """m_x and m_y of partners; None where they depend on whose partner they are, or nobody says."""
    means = getattr(partners, "means", None)
    return None if means is None else means(moments)
