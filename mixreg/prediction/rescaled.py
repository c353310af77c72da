"""A network with the prediction rule that belongs to its training (eq. testmodif and Algorithm 1 of the paper)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._autodiff.network import unwrapped
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
    # What the network calls its input, and its inputs if they are several by name: for calls by keyword.
    _first: str | None = None
    _named: tuple[str, ...] = ()

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
        self._first = first_parameter(unwrapped(net).forward)
        self._alpha: float | None = None
        if rule is None:
            if alpha is None or x_mean is None or y_mean is None:
                raise TypeError(
                    "Rescaled needs alpha, x_mean and y_mean, or a rule; a method that has none is used as it is"
                )
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
        self._named = tuple(rule.x_mean) if isinstance(rule.x_mean, dict) else ()
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

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """pred(x); x as the network takes it, first or by its name; further arguments reach it unchanged."""
        if x is None and not args:
            return self._stretched(self.net(**self._shrunk_by_name(kwargs)))
        return self._stretched(self.net(shrink_tree(x, self._means(), self.x_share), *args, **kwargs))

    def _shrunk_by_name(self, given: dict[str, Any]) -> dict[str, Any]:
        if self._named and all(name in given for name in self._named):
            # As many keywords as there are means.
            return given | shrink_tree({name: given[name] for name in self._named}, self._means(), self.x_share)
        name = input_among(given, self._first)
        return given | {name: shrink_tree(given[name], self._means(), self.x_share)}

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
        self._x_share = None if math.isnan(x_share) else x_share
        # A map says nothing of the α it was made for, but to those who made it.
        self._alpha = None if math.isnan(alpha) or not self._is_made_for(self._x_share) else alpha

    @staticmethod
    def _is_made_for(x_share: float | None) -> bool:
        return x_share is not None

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

    @staticmethod
    def _is_made_for(x_share: float | None) -> bool:
        return x_share is None

    def _set_alpha(self, alpha: float) -> None:
        share = own_share(alpha, *self.x_share_map.shape)
        self._alpha, self.y_share = alpha, float(share.mean())
        self.x_share_map.copy_(share)


def first_parameter(function: Callable[..., Any]) -> str | None:
    """What a function calls its first argument; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    first = next(iter(parameters), None)
    is_one = first is not None and first.kind in (first.POSITIONAL_OR_KEYWORD, first.KEYWORD_ONLY)
    return first.name if first is not None and is_one else None


def input_among(given: Mapping[str, Any], first: str | None) -> str:
    """Which of the keywords of a call is the network's input; `first`: what the network calls its first argument."""
    if first is None and len(given) == 1:
        return next(iter(given))
    if first is None or first not in given:
        raise TypeError(
            f"the network was called without {'its input' if first is None else repr(first)}, with "
            f"{', '.join(given) or 'nothing'}: give the input first, or by the name of the network's first argument"
        )
    return first


def _as_buffer(value: Tensor, name: str, like: Tensor | None) -> Tensor:
    """A copy, finite, in the dtype and on the device of the network's parameters."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        given = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {given}")
    if not value.is_meta and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} holds non-finite values; the mean of the training data must be finite")
    value = value.detach().clone()
    return value if like is None else value.to(like.device, like.dtype)
