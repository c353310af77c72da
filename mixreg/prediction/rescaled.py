"""A network with the prediction rule that belongs to its training (eq. testmodif and Algorithm 1 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._support.structure import leaves
from mixreg.prediction.rule import Rule, Share, require_output, shrink_tree
from mixreg.theory.boxes import own_share
from mixreg.theory.modified import stretch
from mixreg.theory.moments import DataMoments
from mixreg.theory.theta import scalar_forms


class Rescaled(nn.Module):
    """A Mixup-trained network with the prediction rule that belongs to it.

    The wrapped network is `model.net`; means are buffers and shares are part of the `state_dict`, so a saved model is
    complete. Means are cast to the dtype and device of the network's parameters, if it has any.

        Rescaled(net, alpha=1.0, x_mean=x_mean, y_mean=y_mean)     # Mixup's rule
        Rescaled(net, rule=method.rule(moments))                   # that of any method

    Args:
        net: any module; called with the shrunk x and any further arguments, it must return one tensor.
        alpha: the α of Mixup that the network was trained with; setting `model.alpha` changes the rule.
        x_mean: x̄, of one sample's shape or one that broadcasts to it; for inputs of several tensors a tuple, list or
            dict of means of the same structure.
        y_mean: ȳ, of one output's shape.
        rule: instead of the three above.
    """

    y_mean: Tensor
    x_share_map: Tensor

    def __init__(
        self,
        net: nn.Module,
        alpha: float | None = None,
        x_mean: Any = None,
        y_mean: Tensor | None = None,
        *,
        rule: Rule | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        self.net = net
        self._alpha: float | None = None
        if rule is None:
            if alpha is None or x_mean is None or y_mean is None:
                raise TypeError("Rescaled needs alpha, x_mean and y_mean, or a rule")
            rule = Rule.of_mixup(alpha, x_mean, y_mean)
            self._alpha = scalar_forms(alpha, "Rescaled").alpha
        elif not (alpha is None and x_mean is None and y_mean is None):
            raise TypeError("a rule has its own shares and means: give it alone, or alpha, x_mean and y_mean")
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        # Python numbers: exact in every dtype, and constants to compilers.
        self.y_share: float = rule.y_share
        self._x_share: float | None = None
        if isinstance(rule.x_share, Tensor):
            # A copy: what is computed once is shared by all.
            self.register_buffer("x_share_map", _as_buffer(rule.x_share, "x_share", like))
        else:
            self._x_share = rule.x_share
        # One buffer "x_mean", or for several input tensors "x_mean_0", "x_mean_1", …: expression in x -> buffer.
        self._x_buffers: dict[str, str] = {}
        for index, (name, mean) in enumerate(leaves(rule.x_mean, "x")):
            self._x_buffers[name] = "x_mean" if mean is rule.x_mean else f"x_mean_{index}"
            self.register_buffer(self._x_buffers[name], _as_buffer(mean, f"the mean of {name}", like))
        if not self._x_buffers:
            raise ValueError("x_mean holds no tensor")
        self.register_buffer("y_mean", _as_buffer(rule.y_mean, "y_mean", like))

    @classmethod
    def from_loader(
        cls, net: nn.Module, loader: Iterable[Any], alpha: float, num_classes: int | None = None
    ) -> Rescaled:
        """Wrap `net` with the means of one pass over its training loader of (x, y) batches."""
        moments = DataMoments.from_loader(loader, num_classes)
        return cls(net, alpha, moments.x_mean, moments.y_mean)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """pred(x); x as the network takes it, further arguments reach it unchanged."""
        return self._stretched(self.net(shrink_tree(x, self._means(), self.x_share), *args, **kwargs))

    def _means(self) -> dict[str, Tensor]:
        return {name: getattr(self, buffer) for name, buffer in self._x_buffers.items()}

    def _stretched(self, u: Any) -> Tensor:
        return stretch(require_output(u), self.y_mean, self.y_share)

    @property
    def x_share(self) -> Share:
        """S̄, the share of inputs: a number, or a map."""
        return self.x_share_map if self._x_share is None else self._x_share

    @property
    def theta_mean(self) -> float:
        """θ̄, the share of outputs."""
        return self.y_share

    @property
    def alpha(self) -> float | None:
        """The α that the rule was made for; None if it was given as a rule."""
        return self._alpha

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        if self._alpha is None:
            raise AttributeError("this model was given a rule, which has no alpha to set; make a new one")
        self._set_alpha(scalar_forms(alpha, type(self).__name__).alpha)

    def _set_alpha(self, alpha: float) -> None:
        self._alpha = alpha
        self._x_share = self.y_share = scalar_forms(alpha, "Rescaled").mean

    def get_extra_state(self) -> Tensor:
        """α and the shares (NaN for none), as a tensor so that formats which hold only tensors can save them."""
        numbers = (self._alpha, self.y_share, self._x_share)
        return torch.tensor([math.nan if n is None else n for n in numbers], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take α and the shares from a `state_dict`."""
        alpha, self.y_share, x_share = state.tolist()
        self._alpha, self._x_share = (None if math.isnan(n) else n for n in (alpha, x_share))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        if self._alpha is not None:
            return f"alpha={self._alpha}, theta_mean={self.y_share:.4f}"
        inputs = "a map" if self._x_share is None else f"{self._x_share:.4f}"
        return f"x_share={inputs}, y_share={self.y_share:.4f}"


class RescaledCutMix(Rescaled):
    """A CutMix-trained network with the prediction rule that belongs to it: a share for every pixel.

    Args:
        net: any module that takes images and returns one tensor.
        alpha: the α that it was trained with; setting `model.alpha` changes the rule.
        x_mean: x̄, … × height × width.
        y_mean: ȳ, of one output's shape.
    """

    def __init__(self, net: nn.Module, alpha: float, x_mean: Tensor, y_mean: Tensor) -> None:
        share = own_share(float(alpha), x_mean.shape[-2], x_mean.shape[-1])
        super().__init__(net, rule=Rule(share, float(share.mean()), x_mean, y_mean))
        self._alpha = float(alpha)

    def _set_alpha(self, alpha: float) -> None:
        share = own_share(alpha, *self.x_share_map.shape)
        self._alpha, self.y_share = alpha, float(share.mean())
        self.x_share_map.copy_(share)


def _as_buffer(value: Tensor, name: str, like: Tensor | None) -> Tensor:
    """A copy, finite, in the dtype and on the device of the network's parameters."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        given = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {given}")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} holds non-finite values; the mean of the training data must be finite")
    value = value.detach().clone()
    return value if like is None else value.to(like.device, like.dtype)
