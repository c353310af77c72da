"""Every operation that PyTorch tests, in a tangent: none has a wrong derivative without a word.

PyTorch keeps samples of inputs for each. Behind an elementwise product with parameters, the tangent, its gradient, the
second tangent and its gradient are compared with differences of forward passes; an error is an answer, too.
"""

import sys
import types
import unittest
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from mixreg._autodiff.tangents import tangents

# Names of operations whose differences along any direction are no reference, and why.
NO_REFERENCE = {
    "symmetric or triangular inputs have derivatives along such directions alone": (
        "cholesky_inverse",
        "linalg.cholesky",
        "linalg.cholesky_ex",
        "linalg.eigh",
        "linalg.eigvalsh",
        "linalg.pinv hermitian",
    ),
    "differences vanish in rounding": ("bfloat16", "half", "cfloat", "chalf"),
    "batch statistics are held fixed (tests/test_batch_norm_attacks.py)": ("nn.functional.batch_norm",),
    "weights are written to, or have gradients that are scaled": ("nn.functional.embedding",),
    "PyTorch's tangent overflows for the sample of ±10,000": ("logcumsumexp",),
    "they are random": ("normal",),
    "what is masked is infinite": ("masked.logaddexp",),
}
# Whose other outputs are by-products without derivatives in reverse mode.
FIRST_OUTPUT = ("native_layer_norm", "linalg.lstsq")


def operations() -> Iterator:
    # PyTorch's own tests ask for a package that its wheels do not bring, to compare strings.
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase, stand_in.assert_expected_inline = unittest.TestCase, None
    sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    left_out = {name for names in NO_REFERENCE.values() for name in names}
    for op in op_db:
        if op.supports_autograd and torch.float64 in op.dtypes and name_of(op) not in left_out:
            yield op


def name_of(op) -> str:
    return f"{op.name} {op.variant_test_name}".strip()


class Sampled(nn.Module):
    """An operation on x times parameters, with the other arguments of a sample; all its outputs in one row."""

    def __init__(self, op, sample) -> None:
        super().__init__()
        self.op, self.sample = op, sample
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(sample.input.shape, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        out = self.op.op(x * self.scale, *self.sample.args, **self.sample.kwargs)
        if self.op.name not in FIRST_OUTPUT and self.sample.output_process_fn_grad:
            out = self.sample.output_process_fn_grad(out)
        parts = list(out) if isinstance(out, (tuple, list)) else [out]
        parts = [t for t in parts if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
        parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in parts]
        return torch.cat([t.reshape(-1) for t in parts[: 1 if self.op.name in FIRST_OUTPUT else None]]).reshape(1, -1)


def wrong_derivatives(net: Sampled, x: Tensor) -> set[str]:
    """Those that differ from differences which agree at two steps."""
    delta = torch.randn_like(x)

    def at(t: float) -> Tensor:
        return net(x + t * delta)

    if not torch.equal(at(0.0), at(0.0)) or not at(0.0).requires_grad:
        return set()  # random, or without derivatives
    weights = torch.randn_like(at(0.0))

    def gradient(of: Tensor) -> Tensor:
        if not of.requires_grad:
            return torch.zeros_like(net.scale)
        return torch.autograd.grad(
            (weights * of).sum(), net.scale, retain_graph=True, allow_unused=True, materialize_grads=True
        )[0]

    def slope(step: float) -> Tensor:
        return (at(step) - at(-step)) / (2 * step)

    def bend(step: float) -> Tensor:
        return (at(step) - 2 * at(0.0) + at(-step)) / step**2

    def differ(a: Tensor, b: Tensor, tolerance: float) -> bool:
        return not float((a - b).detach().norm()) <= tolerance * (1 + float(b.detach().norm()))

    wrong = set()
    orders = (False, slope, 1e-6, (1e-4, 1e-3)), (True, bend, 1e-4, (1e-2, 2e-2))
    for second_order, quotient, step, tolerances in orders:
        near, far = quotient(step), quotient(2 * step)
        try:
            found = tangents(net, x, delta, second_order)[1 + second_order]
            pairs = [("", found, near, far), (", gradient", *map(gradient, (found, near, far)))]
        except (RuntimeError, ValueError):
            continue
        for (what, got, expected, again), tolerance in zip(pairs, tolerances, strict=True):
            if not differ(again, expected, tolerance / 10) and differ(got, expected, tolerance):
                wrong.add(f"tangent {1 + second_order}{what}")
    return wrong


@pytest.mark.slow
def test_no_operation_has_a_wrong_derivative_without_a_word() -> None:
    torch.manual_seed(0)
    wrong: dict[str, set[str]] = {}
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operations():
            samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=False))
            for sample in samples[:: max(1, len(samples) // 6)][:8]:
                x = sample.input
                if not isinstance(x, Tensor) or not x.is_floating_point() or not 0 < x.numel() <= 300:
                    continue
                if x.layout != torch.strided:
                    continue
                try:
                    found = wrong_derivatives(Sampled(op, sample), x.detach().clone())
                except (RuntimeError, ValueError):
                    continue  # samples that do not bear a product, as probabilities
                compared += 1
                if found:
                    wrong.setdefault(name_of(op), set()).update(found)
    assert wrong == {}
    assert compared > 1000
