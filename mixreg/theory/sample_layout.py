"""What one sample looks like, and where its coordinates are in the vector z = (x, y) of all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixreg._support.structure import described, leaves, rebuild, shapes_of, tree_of_shapes


class SampleLayout(NamedTuple):
    """x: a tree of meta tensors in the shapes of one input; y: one in the shape of one target."""

    x: Any
    y: Tensor

    @property
    def targets(self) -> int:
        """c, coordinates of a target: the last ones."""
        return self.y.numel()

    @property
    def size(self) -> int:
        """d + c."""
        return sum(part.numel() for _, part in leaves(self.x)) + self.targets

    def x_of(self, z: Tensor) -> Any:
        """The input in a vector of d + c, in its structure."""
        sizes = [part.numel() for _, part in leaves(self.x)]
        parts = iter(torch.split(z, [*sizes, self.targets]))
        return rebuild(self.x, lambda like: next(parts).reshape(like.shape).clone())

    def y_of(self, z: Tensor) -> Tensor:
        """The target in it."""
        return z[z.numel() - self.targets :].reshape(self.y.shape).clone()

    def require_same(self, other: SampleLayout) -> None:
        """An error unless samples of the other look the same."""
        here, there = described(self.x), described(other.x)
        if here != there or self.y.shape != other.y.shape:
            raise ValueError(
                f"samples so far were x: {here}, y: {tuple(self.y.shape)}; these are x: {there}, "
                f"y: {tuple(other.y.shape)}"
            )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"x": shapes_of(self.x), "y": list(self.y.shape)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> SampleLayout:
        """What `to_json` gave; named tuples come back as tuples."""
        return cls(tree_of_shapes(record["x"]), torch.empty(record["y"], device="meta"))

    def __str__(self) -> str:
        return f"x: {described(self.x)}, y: {tuple(self.y.shape)}"


def layout_of(x: Any, y_shape: torch.Size, like: SampleLayout | None) -> SampleLayout:
    """Of a batch x with targets of this shape; `like` itself, where a batch is like the one before."""
    is_known = like is not None and isinstance(x, Tensor) and isinstance(like.x, Tensor) and x.shape[1:] == like.x.shape
    if like is not None and is_known and like.y.shape == y_shape:
        return like
    x_like = rebuild(x, lambda part: torch.empty(numbers_of(part).shape[1:], device="meta"))
    return SampleLayout(x_like, torch.empty(y_shape, device="meta"))


def numbers_of(part: Tensor) -> Tensor:
    """A tensor of a batch; of integers and booleans (ids, lengths, masks), which have no mean, n × 0."""
    return part if part.is_floating_point() else torch.empty(len(part), 0, device=part.device)
