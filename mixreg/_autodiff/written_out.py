"""Functions written out in elementary steps, where PyTorch's forward-mode rule is missing or wrong when derived again.

Normalisations (`normalisation`), linear systems (`linear_systems`) and products with zeros (`products`) have tangents
that are right with gradients that are not, without a word; norms (`norms`) fail in the gradient of a second tangent;
fractional max-pooling has a second tangent of 0; `hardsigmoid` and `glu` have no rule at all. Inside `written_out` they
are computed from functions whose rules are right to every order, under whatever name they are called; what cannot be is
refused. `tests/test_layers.py` compares every kind of layer in `torch.nn` with finite differences,
`tests/test_every_operation.py` every operation that PyTorch tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mixreg._autodiff import linear_systems, normalisation, norms, products
from mixreg._autodiff.jets import Order, moves
from mixreg._autodiff.normalisation import LearningNormalisations, statistics_last


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.hardsigmoid`."""
    result = F.relu6(input + 3) / 6
    return input.copy_(result) if inplace else result


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`torch.nn.functional.glu`."""
    linear, gate = input.chunk(2, dim)
    return linear * torch.sigmoid(gate)


def _fractional(function: Callable[..., tuple[Tensor, Tensor]], spatial: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Fractional max-pooling by what it chose: of its indices the values are gathered."""

    def pooled(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        _, indices = function(input.detach(), *args, **kwargs)
        outer = indices.ndim - spatial
        chosen = input.flatten(outer).gather(outer, indices.flatten(outer))
        return chosen.reshape(indices.shape), indices

    return pooled


def _refused(name: str, when: Callable[..., bool] = lambda *_, **__: True) -> Callable[..., Any]:
    """What raises an error if the network's input moves what it is given."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not when(*args, **kwargs) or not any(moves(value) for value in given):
            return NotImplemented
        raise NotImplementedError(
            f"PyTorch's forward mode of {name} is wrong when it is differentiated again; compute it in another way"
        )

    return refuse


def _is_product(*args: Any, **kwargs: Any) -> bool:
    return "prod" in (*args[4:5], kwargs.get("reduce"))


def _is_second_tangent(*_: Any, **__: Any) -> bool:
    return len(torch._C._functorch.get_interpreter_stack() or ()) > 1


def _trains(*args: Any, **kwargs: Any) -> bool:
    return any(value is True for value in args) or bool(kwargs.get("training"))


# By the name of a function in ATen: what to compute. Its arguments are those of the function.
_WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "layer_norm": normalisation.layer_norm,
    "native_layer_norm": normalisation.native_layer_norm,
    "group_norm": normalisation.group_norm,
    "hardsigmoid": hardsigmoid,
    "hardsigmoid_": lambda input: hardsigmoid(input, inplace=True),
    "glu": glu,
    "normalize": norms.normalize,
    "cosine_similarity": norms.cosine_similarity,
    "pairwise_distance": norms.pairwise_distance,
    "linalg_vector_norm": norms.vector_norm,
    "linalg_matrix_norm": norms.matrix_norm,
    "linalg_norm": norms.linalg_norm,
    "norm": norms.norm,
    "dist": norms.dist,
    "renorm": norms.renorm,
    "std": norms.std,
    "std_mean": norms.std_mean,
    "prod": products.prod,
    "cumprod": products.cumprod,
    "linalg_solve": linear_systems.solve,
    "linalg_solve_ex": linear_systems.solve_ex,
    "linalg_tensorsolve": linear_systems.tensorsolve,
    **dict.fromkeys(("det", "linalg_det"), linear_systems.det),
    **dict.fromkeys(("slogdet", "linalg_slogdet"), linear_systems.slogdet),
    "logdet": linear_systems.logdet,
    **{
        name: _refused(name)
        for name in (
            "linalg_householder_product",
            "orgqr",
            "linear_cross_entropy",
            "_linalg_det",
            "_linalg_slogdet",
            "_linalg_solve_ex",
            "_batch_norm_with_update",
            "_batch_norm_with_update_functional",
        )
    },
    **{
        name: _refused(f"{name}, taken twice,", _is_second_tangent)
        for name in ("linalg_eig", "linalg_eigvals", "linalg_eigh", "linalg_eigvalsh", "_linalg_eigh")
    },
    **{name: _refused(f"{name} of products", _is_product) for name in ("scatter_reduce", "scatter_reduce_")},
    **{
        name: _refused(f"{name} in training", _trains)
        for name in ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
    },
}
_LEARNING: dict[str, Callable[..., Any]] = {
    "batch_norm": statistics_last(LearningNormalisations.batch_norm),
    "instance_norm": statistics_last(LearningNormalisations.instance_norm),
    **dict.fromkeys(("add_", "__iadd__"), LearningNormalisations.add_),
}
# PyTorch takes NumPy's names of arguments, too.
_NUMPY = {"axis": "dim", "keepdims": "keepdim"}


def _called(name: str) -> Iterator[Any]:
    """All functions of that name: torch's, torch.nn.functional's, a tensor's methods, and those of torch.ops.aten."""
    linalg: Any = torch._C
    for place in (torch, F, Tensor, torch._C._nn, linalg._linalg):
        if hasattr(place, name):
            yield getattr(place, name)
    operations = getattr(torch.ops.aten, name, None)
    if operations is not None:
        yield operations
        yield from (getattr(operations, overload) for overload in operations.overloads())


_STATELESS = {function: rule for name, rule in _WRITTEN_OUT.items() for function in _called(name)} | {
    torch._C._nn.fractional_max_pool2d: _fractional(torch._C._nn.fractional_max_pool2d, 2),
    torch._C._nn.fractional_max_pool3d: _fractional(torch._C._nn.fractional_max_pool3d, 3),
}
_STATEFUL = {function: rule for name, rule in _LEARNING.items() for function in _called(name)} | {
    # In another order than ATen's.
    F.batch_norm: LearningNormalisations.batch_norm,
    F.instance_norm: LearningNormalisations.instance_norm,
}


class written_out(TorchFunctionMode):
    """Inside, the functions above are computed in elementary steps; running statistics are learnt when it ends well.

    Args:
        samples: how many there are in the batch, if it is known.
        order: of the derivatives along one direction that are taken inside, if they are.
    """

    def __init__(self, samples: int | None = None, order: Order | None = None) -> None:
        super().__init__()
        self._given = samples, order
        self._learning = LearningNormalisations(*self._given)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _STATELESS.get(func)
        if rule is not None:
            result = NotImplemented if kwargs.get("out") is not None else _by_name(rule, args, kwargs)
        elif func in _STATEFUL:
            result = _STATEFUL[func](self._learning, *args, **kwargs)
        else:
            return func(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]
        learning, self._learning = self._learning, LearningNormalisations(*self._given)
        if kind is None:
            learning.learn()
        else:
            learning.forget()


def _by_name(rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`rule` of what a function of PyTorch was given, whose first argument has several names."""
    named = {_NUMPY.get(name, name): value for name, value in kwargs.items()}
    first = [named.pop(name) for name in ("input", "self", "A", "x") if not args and name in named]
    return rule(*args, *first, **named)
