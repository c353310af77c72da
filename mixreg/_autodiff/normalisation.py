"""Normalisations in elementary steps, whose derivatives of every order are right, and what they learn.

PyTorch's rules for layer and instance normalisation hold the saved statistics constant when a tangent is differentiated
once more: the tangent is right, its gradient and a second tangent are not, without a word (2 to 130 % off). Everything
is computed at least in float32 and returned in the dtype that PyTorch's function returns.

**Batch normalisation** in training mode makes f(x_i) depend on all of the batch through its mean and variance. The
terms of Theorem 3 are derivatives of one sample's output in its own input. So the statistics are computed from the
batch, learn, and pass gradients to the parameters as in ordinary training; only their forward-mode derivative is left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _BatchNorm

from mixreg._autodiff import fused_normalisation
from mixreg._autodiff.jets import Jet, Order, linear, outside_of_forward_mode
from mixreg._autodiff.reachable import modules_of

# Layers that rescale what they take and do nothing else.
NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


_ONE_WIDE = ({torch.float32}, {torch.float64})


def wide(x: Tensor) -> Tensor:
    """x at least in float32."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _standardised(x: Tensor, over: Sequence[int], eps: float) -> Tensor:
    """(x − mean) / √(var + ε) over some dimensions."""
    centred = x - x.mean(list(over), keepdim=True)
    variance = centred.square().mean(list(over), keepdim=True)
    return centred * torch.rsqrt(variance + eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    last = len(tuple(normalized_shape))
    if tuple(input.shape[input.ndim - last :]) != tuple(normalized_shape):
        raise ValueError(f"layer_norm over {tuple(normalized_shape)} does not fit inputs of {tuple(input.shape)}")
    dtype = input.dtype
    if {t.dtype for t in (input, weight, bias) if t is not None} not in _ONE_WIDE:
        # Mixed precisions and autocast have rules of their own, so PyTorch is asked.
        dtype = F.layer_norm(input.new_zeros(tuple(normalized_shape)), normalized_shape, weight, bias).dtype
    result = _standardised(wide(input), range(-last, 0), eps)
    result = result if weight is None else result * weight
    return (result if bias is None else result + bias).to(dtype)


def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.native_layer_norm`: the result, the mean and 1 / √(var + ε)."""
    over = list(range(-len(tuple(normalized_shape)), 0))
    variance, mean = torch.var_mean(wide(input), over, correction=0, keepdim=True)
    return layer_norm(input, normalized_shape, weight, bias, eps), mean, torch.rsqrt(variance + eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`torch.nn.functional.group_norm`, whose rule is right but for other memory formats than the usual one."""
    return torch.group_norm(input.contiguous(), num_groups, weight, bias, eps, cudnn_enabled)


class _WithoutTangent(torch.autograd.Function):
    """The identity, for which no forward-mode derivative exists but reverse-mode ones do."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return torch.zeros_like(tangent)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, is_fixed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch normalised by its own statistics, their tangents left out if they are fixed; its mean and variance."""
    statistics = torch.var_mean(x, [d for d in range(x.ndim) if d != 1], correction=0)
    if is_fixed:
        statistics = tuple(_WithoutTangent.apply(t) for t in statistics)  # type: ignore[no-untyped-call]
    var, mean = statistics
    scale = torch.rsqrt(var + eps) * (weight if weight is not None else 1.0)
    shift = (bias if bias is not None else 0.0) - mean * scale
    shape = (1, -1, *[1] * (x.ndim - 2))
    return x * scale.reshape(shape) + shift.reshape(shape), mean, var


class LearningNormalisations:
    """Normalisations of one forward pass that learn running statistics, which move when `learn` is called.

    Args:
        samples: how many there are in the batch, if it is known.
        order: of the derivatives along one direction that are taken, if they are.
    """

    def __init__(self, samples: int | None = None, order: Order | None = None) -> None:
        self._samples, self._order = samples, order or Order(0)
        self._seen: list[tuple[Tensor, Tensor, Tensor, Tensor, float]] = []
        self._counted: list[tuple[Tensor, int]] = []

    def batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
        cudnn_enabled: bool = False,
    ) -> Tensor:
        """`torch.nn.functional.batch_norm`, the statistics of a batch held fixed."""
        if not training:
            return self._by_running_statistics(input, running_mean, running_var, weight, bias, eps)
        count = input.numel() // max(1, input.shape[1])
        if count == 1:
            raise ValueError(f"batch_norm needs more than 1 value per channel to train, got {tuple(input.shape)}")
        # Of several samples, those that are one row do not meet in it: another normalisation, written as this one.
        is_fixed = input.shape[0] > 1 or self._samples == 1
        jet = self._jet(input, weight, bias) if is_fixed else None
        if jet is not None:
            elementary = partial(_batch_norm, eps=eps, is_fixed=True)
            with outside_of_forward_mode():
                found, mean, deviation = fused_normalisation.batch_norm(
                    lambda *given: elementary(*given)[0], jet, weight, bias, eps
                )
                var = deviation.pow(-2) - eps
            result = self._order.tensor(found)
        else:
            result, mean, var = _batch_norm(wide(input), weight, bias, eps, is_fixed)
        self._note(running_mean, running_var, mean, var * (count / max(1, count - 1)), momentum)
        return result.to(input.dtype)

    def _jet(self, input: Tensor, *parameters: Tensor | None) -> Jet | None:
        """Of an input that has one, if the parameters are of its dtype and stand still."""
        given = [t for t in parameters if t is not None]
        return self._order.jet(input) if all(t.dtype == input.dtype and not _is_wrapped(t) for t in given) else None

    def _by_running_statistics(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        jet = self._jet(input, running_mean, running_var, weight, bias)
        if jet is None or running_mean is None or running_var is None:
            return NotImplemented
        with outside_of_forward_mode():
            value = F.batch_norm(jet.value, running_mean, running_var, weight, bias, False, 0.0, eps)
            scale = torch.rsqrt(running_var + eps) * (weight if weight is not None else 1.0)
            scale = scale.reshape(-1, *[1] * (input.ndim - 2))
            found = linear(value, jet, lambda t: t * scale)
        return self._order.tensor(found)

    def instance_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
        cudnn_enabled: bool = False,
    ) -> Tensor:
        """`torch.nn.functional.instance_norm`."""
        shape, over, x = (1, -1, *[1] * (input.ndim - 2)), range(2, input.ndim), wide(input)
        if use_input_stats:
            if input.shape[2:].numel() == 1:
                raise ValueError(f"instance_norm needs more than 1 value per channel, got {tuple(input.shape)}")
            if running_mean is not None:
                var, mean = torch.var_mean(x.detach(), list(over))
                self._note(running_mean, running_var, mean.mean(0), var.mean(0), momentum)
            result = _standardised(x, over, eps)
        elif running_mean is not None and running_var is not None:
            result = (x - running_mean.reshape(shape)) * torch.rsqrt(running_var.reshape(shape) + eps)
        else:
            raise ValueError("instance_norm needs its inputs' statistics, or running ones")
        result = result if weight is None else result * weight.reshape(shape)
        return (result if bias is None else result + bias.reshape(shape)).to(input.dtype)

    def add_(self, input: Tensor, other: Any, **kwargs: Any) -> Tensor:
        """`Tensor.add_` of a number to a counter of batches, which `torch.func.jvp` refuses."""
        if not isinstance(other, int) or kwargs or input.is_floating_point() or _is_wrapped(input):
            return NotImplemented
        with temporarily_clear_interpreter_stack():
            input.add_(other)
        self._counted.append((input, other))
        return input

    def _note(self, running_mean: Any, running_var: Any, mean: Tensor, var: Tensor, momentum: float) -> None:
        if running_mean is not None and running_var is not None:
            self._seen.append((running_mean, running_var, _value_of(mean), _value_of(var), momentum))

    @torch.no_grad()
    def learn(self) -> None:
        """Running statistics move towards the batch's, as in an ordinary forward pass."""
        for running_mean, running_var, mean, var, momentum in self._seen:
            for running, value in ((running_mean, mean), (running_var, var)):
                # As PyTorch's kernels do: graphs of other passes that have seen it remain valid.
                with _unsafe_preserve_version_counter(running):
                    running.lerp_(value.to(running.dtype), momentum)

    @torch.no_grad()
    def forget(self) -> None:
        """Counters are set back: the pass has failed."""
        for counter, number in self._counted:
            counter.sub_(number)


def statistics_last(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """With the arguments in ATen's order: weight and bias before running statistics."""

    def reordered(
        self: Any, input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, *rest: Any, **named: Any
    ) -> Tensor:
        return function(self, input, running_mean, running_var, weight, bias, *rest, **named)

    return reordered


def _is_wrapped(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x)


def _value_of(x: Tensor) -> Tensor:
    """What a tensor holds, out of all transformations that are under way."""
    while _is_wrapped(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.detach()


@contextmanager
def own_statistics(net: Any) -> Iterator[None]:
    """Inside, synchronised batch normalisations use what is in their process: synchronising has no forward mode."""
    layers = [
        layer
        for root in modules_of(net)
        for layer in root.modules()
        if type(layer) is nn.SyncBatchNorm and "forward" not in layer.__dict__
    ]
    try:
        for layer in layers:
            layer.forward = partial(_BatchNorm.forward, layer)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers:
            del layer.forward
