"""Prediction with a Mixup model (eq. testmodif and Algorithm 1 of the paper).

By Theorem 1, Mixup fits f on data shrunk towards its mean (eq. modif),

    x̃ = x̄ + θ̄ (x − x̄),        ỹ = ȳ + θ̄ (y − ȳ),

so f maps shrunk inputs to shrunk outputs. To predict, shrink the input and stretch the output back:

    pred(x) = ȳ (1 − 1/θ̄) + f(θ̄ x + (1 − θ̄) x̄) / θ̄,

on f's own outputs (logits), before any softmax. `shrink` and `stretch` are inverse to each other. With balanced classes
the ȳ term shifts all logits alike and the stretch is a temperature of θ̄; for centred data and a homogeneous network
(f(ux) = u f(x)) nothing changes at all.

A network that was trained with mixed inputs and its own labels needs the first half of the rule only, one that was
trained with mixed labels the second (`mixreg.ablations`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mixreg.moments import DataMoments
from mixreg.structure import leaves, rebuild
from mixreg.theta import scalar_forms

PARTS = ("both", "inputs", "outputs")


def shrink(x: Tensor, x_mean: Tensor, theta_mean: float) -> Tensor:
    """x̄ + θ̄ (x − x̄), in one pass; x: n × …, x_mean: …, or any shape that fits one sample."""
    mean = _fit(x_mean, x, "x")
    return x if theta_mean == 1 else torch.lerp(mean, x, theta_mean)


def stretch(u: Tensor, y_mean: Tensor, theta_mean: float) -> Tensor:
    """ȳ + (u − ȳ) / θ̄, in one pass: the inverse of `shrink`; u: n × …, y_mean: …."""
    mean = _fit(y_mean, u, "y")
    # At θ̄ = 1 not even the masked logits of −∞ may change.
    return u if theta_mean == 1 else torch.lerp(mean, u, 1 / theta_mean)


def _fit(mean: Tensor, batch: Tensor, name: str) -> Tensor:
    """`mean` in the batch's dtype, if its shape fits one sample of the batch."""
    sample, shape = batch.shape[1:], mean.shape
    if len(shape) == len(sample) + 1 and shape[0] == 1:
        shape = shape[1:]  # a mean that kept its batch dimension, as in Algorithm 1
    trailing = sample[len(sample) - len(shape) :]
    if len(shape) > len(sample) or any(m not in (1, s) for m, s in zip(shape, trailing, strict=True)):
        raise ValueError(
            f"{name}_mean has shape {tuple(mean.shape)}, which does not fit samples of shape {tuple(sample)}"
        )
    return mean.to(batch.dtype)


class Rescaled(nn.Module):
    """A Mixup-trained network with the prediction rule that belongs to it.

    The wrapped network is `model.net`; x̄ and ȳ are buffers and α is part of the `state_dict`, so a saved model is
    complete. Means are cast to the dtype and device of the network's parameters, if it has any.

    Args:
        net: any module; called with the shrunk x and any further arguments, it must return one tensor.
        alpha: the α that the network was trained with.
        x_mean: x̄, of one sample's shape or one that broadcasts to it; for inputs of several tensors a tuple, list or
            dict of means of the same structure.
        y_mean: ȳ, of one output's shape.
        parts: what was mixed in training: "both", "inputs" or "outputs".
    """

    y_mean: Tensor

    def __init__(self, net: nn.Module, alpha: float, x_mean: Any, y_mean: Tensor, parts: str = "both") -> None:
        super().__init__()
        if parts not in PARTS:
            raise ValueError(f"unknown parts {parts!r}; known are {', '.join(PARTS)}")
        self.parts = parts
        if not isinstance(net, nn.Module):
            raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        self.net = net
        self._set_alpha(alpha)
        # One buffer "x_mean", or for several input tensors "x_mean_0", "x_mean_1", …: expression in x -> buffer.
        self._x_buffers: dict[str, str] = {}
        if not list(leaves(x_mean, "x_mean")):
            raise ValueError("x_mean holds no tensor")
        for index, (name, mean) in enumerate(leaves(x_mean, "x")):
            self._x_buffers[name] = "x_mean" if mean is x_mean else f"x_mean_{index}"
            self.register_buffer(self._x_buffers[name], _validate_mean(mean, f"the mean of {name}", like))
        self.register_buffer("y_mean", _validate_mean(y_mean, "y_mean", like))

    @classmethod
    def from_loader(
        cls, net: nn.Module, loader: Iterable[Any], alpha: float, num_classes: int | None = None
    ) -> Rescaled:
        """Wrap `net` with the means of one pass over its training loader of (x, y) batches."""
        moments = DataMoments.from_loader(loader, num_classes)
        return cls(net, alpha, moments.x_mean, moments.y_mean)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """pred(x) of eq. (testmodif); x as the network takes it, further arguments reach it unchanged."""
        u = self.net(self._shrink(x), *args, **kwargs)
        if not isinstance(u, Tensor):
            raise TypeError(
                f"the network must return one tensor to be stretched, got {type(u).__name__}; wrap a module that "
                "returns its logits"
            )
        return u if self.parts == "inputs" else stretch(u, self.y_mean, self.theta_mean)

    def _shrink(self, x: Any) -> Any:
        named = dict(leaves(x))
        if named.keys() != self._x_buffers.keys():
            raise ValueError(f"the means are those of {list(self._x_buffers)}, but the input holds {list(named)}")
        keep = 1.0 if self.parts == "outputs" else self.theta_mean
        shrunk = []
        for name, tensor in named.items():
            if not tensor.is_floating_point():
                raise TypeError(f"{name} has dtype {tensor.dtype}; convert and normalise it as in training first")
            shrunk.append(shrink(tensor, getattr(self, self._x_buffers[name]), keep))
        parts = iter(shrunk)
        return rebuild(x, lambda _: next(parts))

    def _set_alpha(self, alpha: float) -> None:
        # Python numbers: exact in every dtype, and constants to compilers.
        self.alpha, self.theta_mean = scalar_forms(alpha, "Rescaled")[:2]

    def get_extra_state(self) -> Tensor:
        """α, as a tensor so that formats which hold only tensors can save it; with the parts, if they are not both."""
        if self.parts == "both":
            return torch.tensor(self.alpha, dtype=torch.float64)
        return torch.tensor([self.alpha, PARTS.index(self.parts)], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take α and parts from a `state_dict`."""
        values = state.reshape(-1).tolist()
        self._set_alpha(values[0])
        self.parts = PARTS[int(values[1])] if len(values) > 1 else "both"

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        parts = "" if self.parts == "both" else f", parts={self.parts!r}"
        return f"alpha={self.alpha}, theta_mean={self.theta_mean:.4f}{parts}"


def _validate_mean(mean: Tensor, name: str, like: Tensor | None) -> Tensor:
    if not isinstance(mean, Tensor) or not mean.is_floating_point():
        given = mean.dtype if isinstance(mean, Tensor) else type(mean).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {given}")
    if not bool(torch.isfinite(mean).all()):
        raise ValueError(f"{name} holds non-finite values; the mean of the training data must be finite")
    mean = mean.detach().clone()
    return mean if like is None else mean.to(like.device, like.dtype)
