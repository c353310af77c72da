"""The training data's means and covariances, in one stable pass (§2 of the paper).

    x̄ = mean(x_i)      Σxx = mean((x_i − x̄)(x_i − x̄)ᵀ)      and likewise ȳ, Σxy, Σyy, all divided by n.

Batches, partial results and processes are joined by the same rule (Chan, Golub and LeVeque, 1983): for two groups of
sizes n and m with means a, b and centred sums of products S, T,

    mean = a + m/(n+m) (b − a)          sum = S + T + nm/(n+m) (b − a)(b − a)ᵀ.

Products are always taken of centred float64 values, so a large mean costs no accuracy.
x̄ must be the mean of what the network really sees: after normalisation and augmentation.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mixreg._support.processes import gather_objects, sum_over_processes, world_size
from mixreg._support.structure import leaves
from mixreg._support.tensor_files import read_from, save_tensors
from mixreg.losses.targets import to_values, validate_num_classes, validate_pairs, validate_targets
from mixreg.theory.class_means import ClassMeans
from mixreg.theory.covariances import Covariances
from mixreg.theory.sample_layout import SampleLayout, layout_of, numbers_of
from mixreg.theory.scatter import (
    Scatter,
    centred_sums,
    checked_tensor,
    mean_sample,
    mean_target,
    no_scatter,
    scatter_from,
)

Result = TypeVar("Result")


class DataMoments(Covariances):
    """Streaming x̄, ȳ and, on request, Σxx, Σxy, Σyy.

    All is float64 on the device of the first batch. Inputs of several tensors (tuples, dicts) give an `x_mean` of the
    same structure; covariances run over all their coordinates, flattened and in order.

    Args:
        num_classes: c; needed when targets are integer labels.
        covariance: also keep the (d + c) × (d + c) covariance.
        rank: for many coordinates, keep it with this rank plus a diagonal instead (`low_rank`).
        by_class: keep the means of every class (`balanced_means`), also in files; by default where they are few.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        covariance: bool = False,
        rank: int | None = None,
        by_class: bool | None = None,
    ) -> None:
        self.num_classes = validate_num_classes(num_classes)
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1 or not covariance):
            raise ValueError(f"rank must be an integer of at least 1, of a covariance that is kept, got {rank!r}")
        self.covariance, self.rank, self.by_class = covariance, rank, by_class
        # Samples, or the sum of their weights.
        self.count: float = 0
        # One vector z = (x, y) of d + c coordinates: its mean and its centred sum of outer products.
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._scatter: Scatter | None = None
        self._layout: SampleLayout | None = None
        self._classes = ClassMeans(num_classes, by_class)
        # What others have computed from the covariances, for as long as these stay what they are.
        self._derived: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Copies and files do without.
        return self.__dict__ | {"_derived": {}}

    def derived(self, name: str, compute: Callable[[DataMoments], Result]) -> Result:
        """`compute(self)`, computed once until more data is taken in; `name` tells it from others."""
        if name not in self._derived:
            self._derived[name] = compute(self)
        found: Result = self._derived[name]
        return found

    @classmethod
    def from_loader(
        cls, loader: Iterable[Any], num_classes: int | None = None, covariance: bool = False, rank: int | None = None
    ) -> DataMoments:
        """One pass over a loader of (x, y) batches. Wrap `loader` in a progress bar to see it advance."""
        moments = cls(num_classes, covariance, rank)
        for batch in loader:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise TypeError(f"the loader must give (x, y) pairs, got {type(batch).__name__}")
            moments.update(*batch)
        if moments.count == 0:
            raise ValueError("the loader is empty: there is no sample to average")
        return moments

    @classmethod
    def from_means(
        cls, x_mean: Tensor, y_mean: Tensor, num_classes: int | None = None, count: float = 1, balanced: Any = None
    ) -> DataMoments:
        """Moments without covariances from means of one sample's shape; balanced: what `balanced_means` gave."""
        moments, one = cls(num_classes, by_class=False), cls()
        one.update(x_mean.unsqueeze(0).double(), y_mean.unsqueeze(0).double())
        one.num_classes, one.count = num_classes, count
        moments.merge(one)
        if balanced is not None:
            moments._classes = ClassMeans(num_classes, False, known=balanced)
        return moments

    def update(self, x: Any, y: Tensor, weights: Tensor | None = None) -> None:
        """Take in one batch; x: n × … floating point (or a tree of such), y: n × … as `Mixup` takes it, weights: n."""
        validate_targets(y, self.num_classes)
        n = validate_pairs(x, y)
        if n == 0:
            return
        tensors = [numbers_of(t.detach()) for _, t in leaves(x)]
        device = tensors[0].device
        if self.covariance or weights is not None:
            values = to_values(y.detach(), self.num_classes)
            z = torch.cat([t.reshape(n, -1).to(device, torch.float64) for t in [*tensors, values]], dim=1)
            group = centred_sums(z, weights, self.covariance, self.rank)
            if group.total > 0:
                self._join(*group, layout_of(x, values.shape[1:], self._layout))
        else:
            y_mean = mean_target(y.detach(), self.num_classes)
            mean = torch.cat([m.to(device).flatten() for m in [*map(mean_sample, tensors), y_mean]])
            self._join(n, mean, None, layout_of(x, y_mean.shape, self._layout))
        self._classes = self._classes.with_batch(tensors, y.detach(), weights)

    def update_by_mean(self, x_mean: Tensor, y: Tensor) -> None:
        """Take in one batch of which the mean of x is known; neither covariances nor class means can be kept of it.

        Args:
            x_mean: of one sample's shape, in float64.
            y: n × …, as of `update`.
        """
        if self.covariance or self.by_class is not False:
            raise ValueError("covariances and class means need the samples themselves, not their mean")
        validate_targets(y, self.num_classes)
        y_mean = mean_target(y.detach(), self.num_classes)
        layout = layout_of(x_mean.unsqueeze(0), y_mean.shape, self._layout)
        self._join(len(y), torch.cat([x_mean.flatten(), y_mean.to(x_mean.device).flatten()]), None, layout)

    def merge(self, other: DataMoments) -> DataMoments:
        """Join `other` into this one (and return it): as if its samples had been seen here too."""
        if not isinstance(other, DataMoments):
            raise TypeError(f"only DataMoments can be merged, got {type(other).__name__}")
        self._require_same_settings(other.num_classes, other.covariance, other.rank)
        if other.count:
            self._join(other.count, other._mean, other._scatter, other._known)
            self._classes = self._classes.joined(other._classes)
        return self

    def balanced_means(self) -> tuple[Any, Tensor]:
        """The means of x and y if every class that was seen counts alike: of partners drawn balanced over classes."""
        z = self._classes.balanced()
        return self._known.x_of(z), self._known.y_of(z)

    def _join(self, count: float, mean: Tensor, scatter: Scatter | None, layout: SampleLayout) -> None:
        """Take in a group of samples by the rule of the module's head."""
        sums = mean.sum() if scatter is None else mean.sum() + scatter.trace()
        if not bool(torch.isfinite(sums)):
            raise ValueError("the data holds non-finite values (NaN or infinity): the means would not be finite")
        if self.count == 0:
            self._start_like(layout, mean.device)
        elif layout is not self._layout:
            self._known.require_same(layout)
        total = self.count + count
        step = mean.to(self._mean.device) - self._mean
        if self._scatter is not None and scatter is not None:
            self._scatter = self._scatter.joined(scatter, step, self.count * count / total)
        self._mean = self._mean + step * (count / total)
        self.count = total
        self._derived = {}

    def all_reduce(self) -> DataMoments:
        """Join the moments of all `torch.distributed` processes; afterwards each holds those of all the data.

        A process may have seen no data at all. Without a process group nothing happens. Call it once, when all data has
        been seen: what each process holds afterwards already counts everything.
        """
        if world_size() == 1:
            return self
        own = self.num_classes, self.covariance, self.rank
        everyone = gather_objects((self.count, own, None if self._layout is None else tuple(self._layout)))
        filled = [seen for seen in everyone if seen[0] > 0]
        if not filled:
            return self
        if len({seen[1] for seen in everyone}) == 1 and self.count == 0:
            self._start_like(SampleLayout(*filled[0][2]))
        # Every process sees the same list and so raises, or continues, together with the others.
        for count, settings, layout in everyone:
            self._require_same_settings(*settings)
            if count > 0:
                self._known.require_same(SampleLayout(*layout))
        total = sum(seen[0] for seen in filled)
        mean = sum_over_processes(self._mean * (self.count / total))
        if self._scatter is not None:
            self._scatter = self._scatter.of_processes(self._mean - mean, self.count)
        self._mean, self.count = mean, total
        self._classes = self._classes.of_processes()
        self._derived = {}
        return self

    def joined(self) -> DataMoments:
        """The moments of all processes, leaving this one as it is: for a look on the way."""
        return copy.copy(self).all_reduce()

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything as tensors and a JSON record, for `from_tensors`."""
        record: dict[str, Any] = {"num_classes": self.num_classes, "covariance": self.covariance, "count": self.count}
        record |= ({} if self.rank is None else {"rank": self.rank}) | ({"by_class": True} if self.by_class else {})
        if self.count == 0:
            return {}, record
        record |= self._known.to_json()
        tensors = {"mean": self._mean} | (self._classes.tensors() if self.by_class else {})
        return tensors | ({} if self._scatter is None else self._scatter.tensors()), record

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], record: dict[str, Any]) -> DataMoments:
        """What `to_tensors` gave."""
        is_by_class, count = bool(record.get("by_class")), record["count"]
        moments = cls(record["num_classes"], record["covariance"], record.get("rank"), is_by_class)
        if isinstance(count, bool) or not isinstance(count, (int, float)) or not 0 <= count < math.inf:
            raise ValueError(f"the number of samples must be a number of at least 0, got {count!r}")
        if count:
            moments._start_like(SampleLayout.from_json(record))
            size = moments._mean.numel()
            moments._mean = checked_tensor(tensors, "mean", (size,))
            if moments.covariance:
                moments._scatter = scatter_from(tensors, size, moments.rank)
            moments._classes = moments._classes.from_tensors(tensors, size - moments._known.targets)
        moments.count = count
        return moments

    def save(self, path: str | Path) -> None:
        """Write them to a safetensors file, in one step."""
        save_tensors(Path(path), *self.to_tensors())

    @classmethod
    def load(cls, path: str | Path) -> DataMoments:
        """Read what `save` wrote; a file that is broken or of another kind raises a ValueError that names it."""
        return read_from(Path(path), "moments", cls.from_tensors)

    def _start_like(self, layout: SampleLayout, device: torch.device | str = "cpu") -> None:
        self._layout = layout
        self._mean = torch.zeros(layout.size, dtype=torch.float64, device=device)
        if self.covariance:
            self._scatter = no_scatter(layout.size, self.rank, torch.device(device))

    def _require_same_settings(self, *settings: Any) -> None:
        names, own = ("num_classes", "covariance", "rank"), (self.num_classes, self.covariance, self.rank)
        if settings != own:
            here, there = (
                ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True) if value is not None)
                for values in (own, settings)
            )
            raise ValueError(f"moments with {here} cannot be joined with {there}")

    @property
    def _known(self) -> SampleLayout:
        if self._layout is None:
            raise ValueError("these moments have seen no data yet: call update(x, y) or from_loader(loader)")
        return self._layout

    @property
    def x_mean(self) -> Any:
        """x̄, float64, of the shape (and structure) of one sample."""
        return self._known.x_of(self._mean)

    @property
    def y_mean(self) -> Tensor:
        """ȳ, float64, of the shape of one target."""
        return self._known.y_of(self._mean)

    def __repr__(self) -> str:
        seen = f", {self._layout}" if self.count else ""
        return f"DataMoments(num_classes={self.num_classes}, covariance={self.covariance}, count={self.count}{seen})"
