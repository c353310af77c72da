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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mixreg._support.processes import gather_objects, sum_over_processes, world_size
from mixreg._support.structure import described, leaves, rebuild, shapes_of, tree_of_shapes
from mixreg._support.tensor_files import load_tensors, save_tensors
from mixreg.losses.targets import (
    is_class_index,
    require_labels_in_range,
    to_values,
    validate_num_classes,
    validate_pairs,
    validate_targets,
)

Result = TypeVar("Result")


class DataMoments:
    """Streaming x̄, ȳ and, on request, Σxx, Σxy, Σyy.

    Everything is float64 on the device of the first batch. Inputs of several tensors (tuples, dicts) give an `x_mean`
    of the same structure; covariances run over all their coordinates, flattened and in order.

    Args:
        num_classes: c; needed when targets are integer labels.
        covariance: also keep the (d + c) × (d + c) covariance.
    """

    def __init__(self, num_classes: int | None = None, covariance: bool = False) -> None:
        self.num_classes = validate_num_classes(num_classes)
        self.covariance = covariance
        self.count = 0
        # One vector z = (x, y) of d + c coordinates: its mean and its centred sum of outer products.
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._scatter: Tensor | None = None
        # A sample without its values (meta tensors): what x and y look like.
        self._x_like: Any = None
        self._y_like: Tensor = torch.empty(0, device="meta")
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
        cls, loader: Iterable[Any], num_classes: int | None = None, covariance: bool = False
    ) -> DataMoments:
        """One pass over a loader of (x, y) batches. Wrap `loader` in a progress bar to see it advance."""
        moments = cls(num_classes, covariance)
        for batch in loader:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise TypeError(f"the loader must give (x, y) pairs, got {type(batch).__name__}")
            moments.update(*batch)
        if moments.count == 0:
            raise ValueError("the loader is empty: there is no sample to average")
        return moments

    @classmethod
    def from_means(cls, x_mean: Tensor, y_mean: Tensor, num_classes: int | None = None, count: int = 1) -> DataMoments:
        """Moments without covariances from means known otherwise; x_mean, y_mean: of one sample's shape."""
        moments = cls(num_classes)
        one = cls(num_classes=None)
        one.update(x_mean.unsqueeze(0).double(), y_mean.unsqueeze(0).double())
        one.num_classes, one.count = num_classes, count
        return moments.merge(one)

    def update(self, x: Any, y: Tensor) -> None:
        """Take in one batch; x: n × … floating point (or a structure of such), y: n × … as `Mixup` takes it."""
        validate_targets(y, self.num_classes)
        n = validate_pairs(x, y)
        if n == 0:
            return
        # Most batches are like the one before: nothing to describe and to compare again.
        is_known = isinstance(x, Tensor) and isinstance(self._x_like, Tensor) and x.shape[1:] == self._x_like.shape
        x_like = self._x_like if is_known else rebuild(x, lambda t: torch.empty(t.shape[1:], device="meta"))
        columns = [t.detach().reshape(n, -1) for _, t in leaves(x)]
        device = columns[0].device
        if self.covariance:
            values = to_values(y.detach(), self.num_classes)
            z = torch.cat([c.to(device, torch.float64) for c in [*columns, values.reshape(n, -1)]], dim=1)
            mean = z.mean(0)
            centred = z - mean
            self._join(n, mean, centred.T @ centred, x_like, torch.empty(values.shape[1:], device="meta"))
        else:
            y_mean = self._target_mean(y.detach())
            means = [c.mean(0, dtype=torch.float64) for c in columns]
            mean = torch.cat([m.to(device) for m in [*means, y_mean.flatten()]])
            is_known = is_known and y_mean.shape == self._y_like.shape
            y_like = self._y_like if is_known else torch.empty(y_mean.shape, device="meta")
            self._join(n, mean, None, x_like, y_like)

    def _target_mean(self, y: Tensor) -> Tensor:
        """The mean target, without the n × c one-hot matrix where there is a shorter way."""
        if is_class_index(y) and y.ndim == 1 and self.num_classes is not None:
            require_labels_in_range(y, self.num_classes)
            return torch.bincount(y.long(), minlength=self.num_classes).double() / y.shape[0]
        return to_values(y, self.num_classes).mean(0, dtype=torch.float64)

    def merge(self, other: DataMoments) -> DataMoments:
        """Join `other` into this one (and return it): as if its samples had been seen here too."""
        if not isinstance(other, DataMoments):
            raise TypeError(f"only DataMoments can be merged, got {type(other).__name__}")
        self._require_same_settings(other.num_classes, other.covariance)
        if other.count:
            self._join(other.count, other._mean, other._scatter, other._x_like, other._y_like)
        return self

    def _join(self, count: int, mean: Tensor, scatter: Tensor | None, x_like: Any, y_like: Tensor) -> None:
        """Take in a group of samples by the rule of the module's head."""
        sums = mean.sum() if scatter is None else mean.sum() + scatter.diagonal().sum()
        if not bool(torch.isfinite(sums)):
            raise ValueError("the data holds non-finite values (NaN or infinity): the means would not be finite")
        if self.count == 0:
            self._start_like(x_like, y_like, mean.device)
        elif x_like is not self._x_like or y_like is not self._y_like:
            self._require_same_shapes(x_like, y_like)
        total = self.count + count
        step = mean.to(self._mean.device) - self._mean
        if self._scatter is not None and scatter is not None:
            self._scatter = self._scatter + scatter.to(self._scatter.device)
            self._scatter.addr_(step, step, alpha=self.count * count / total)
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
        everyone = gather_objects((self.count, self.num_classes, self.covariance, self._x_like, self._y_like))
        filled = [seen for seen in everyone if seen[0] > 0]
        if not filled:
            return self
        if len({seen[1:3] for seen in everyone}) == 1 and self.count == 0:
            self._start_like(*filled[0][3:])
        # Every process sees the same list and so raises, or continues, together with the others.
        for count, num_classes, covariance, x_like, y_like in everyone:
            self._require_same_settings(num_classes, covariance)
            if count > 0:
                self._require_same_shapes(x_like, y_like)
        total = sum(seen[0] for seen in filled)
        mean = sum_over_processes(self._mean * (self.count / total))
        if self._scatter is not None:
            step = self._mean - mean
            self._scatter = sum_over_processes(self._scatter + self.count * torch.outer(step, step))
        self._mean, self.count = mean, total
        self._derived = {}
        return self

    def joined(self) -> DataMoments:
        """The moments of all processes, leaving this one as it is: for a look on the way."""
        return copy.copy(self).all_reduce()

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything as tensors and a JSON record, for `from_tensors`."""
        record: dict[str, Any] = {"num_classes": self.num_classes, "covariance": self.covariance, "count": self.count}
        if self.count == 0:
            return {}, record
        record |= {"x": shapes_of(self._x_like), "y": list(self._y_like.shape)}
        tensors = {"mean": self._mean}
        return (tensors if self._scatter is None else tensors | {"scatter": self._scatter}), record

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], record: dict[str, Any]) -> DataMoments:
        """What `to_tensors` gave."""
        moments, count = cls(record["num_classes"], record["covariance"]), record["count"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"the number of samples must be an integer of at least 0, got {count!r}")
        if count:
            moments._start_like(tree_of_shapes(record["x"]), torch.empty(record["y"], device="meta"))
            for name in ("mean", "scatter") if moments.covariance else ("mean",):
                kept, given = getattr(moments, f"_{name}"), tensors[name]
                if given.shape != kept.shape or given.dtype != kept.dtype or not bool(torch.isfinite(given).all()):
                    raise ValueError(f"its {name} must be {tuple(kept.shape)} finite float64 numbers")
                setattr(moments, f"_{name}", given.clone())
        moments.count = count
        return moments

    def save(self, path: str | Path) -> None:
        """Write them to a safetensors file, in one step."""
        save_tensors(Path(path), *self.to_tensors())

    @classmethod
    def load(cls, path: str | Path) -> DataMoments:
        """Read what `save` wrote; a file that is broken or of another kind raises a ValueError that names it."""
        tensors, record = load_tensors(Path(path))
        try:
            return cls.from_tensors(tensors, record)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold moments: {error}") from error

    def _start_like(self, x_like: Any, y_like: Tensor, device: torch.device | str = "cpu") -> None:
        self._x_like, self._y_like = x_like, y_like
        size = sum(t.numel() for _, t in leaves(x_like)) + y_like.numel()
        self._mean = torch.zeros(size, dtype=torch.float64, device=device)
        if self.covariance:
            self._scatter = torch.zeros(size, size, dtype=torch.float64, device=device)

    def _require_same_settings(self, num_classes: int | None, covariance: bool) -> None:
        if (num_classes, covariance) != (self.num_classes, self.covariance):
            raise ValueError(
                f"moments with num_classes={self.num_classes}, covariance={self.covariance} cannot be joined with "
                f"num_classes={num_classes}, covariance={covariance}"
            )

    def _require_same_shapes(self, x_like: Any, y_like: Tensor) -> None:
        here, there = described(self._x_like), described(x_like)
        if here != there or self._y_like.shape != y_like.shape:
            raise ValueError(
                f"samples so far were x: {here}, y: {tuple(self._y_like.shape)}; "
                f"these are x: {there}, y: {tuple(y_like.shape)}"
            )

    def _require_data(self) -> None:
        if self.count == 0:
            raise ValueError("these moments have seen no data yet: call update(x, y) or from_loader(loader)")

    @property
    def x_mean(self) -> Any:
        """x̄, float64, of the shape (and structure) of one sample."""
        self._require_data()
        sizes = [t.numel() for _, t in leaves(self._x_like)]
        parts = iter(torch.split(self._mean, [*sizes, self._y_like.numel()]))
        return rebuild(self._x_like, lambda like: next(parts).reshape(like.shape).clone())

    @property
    def y_mean(self) -> Tensor:
        """ȳ, float64, of the shape of one target."""
        self._require_data()
        return self._mean[self._mean.numel() - self._y_like.numel() :].reshape(self._y_like.shape).clone()

    def _covariance(self) -> Tensor:
        self._require_data()
        if self._scatter is None:
            raise ValueError("covariances were not kept: make DataMoments(covariance=True)")
        return self._scatter / self.count

    @property
    def xx(self) -> Tensor:
        """Σxx: d × d, over the flattened coordinates."""
        c = self._y_like.numel()
        return self._covariance()[:-c, :-c]

    @property
    def xy(self) -> Tensor:
        """Σxy: d × c."""
        c = self._y_like.numel()
        return self._covariance()[:-c, -c:]

    @property
    def yy(self) -> Tensor:
        """Σyy: c × c."""
        c = self._y_like.numel()
        return self._covariance()[-c:, -c:]

    def __repr__(self) -> str:
        seen = f", x: {described(self._x_like)}, y: {tuple(self._y_like.shape)}" if self.count else ""
        return f"DataMoments(num_classes={self.num_classes}, covariance={self.covariance}, count={self.count}{seen})"
