"""Functions of PyTorch under all their names and in all precisions: right derivatives, or a sentence.

The reference is a difference of ordinary forward passes in float64, or what PyTorch itself computes.
"""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from test_approximate import moments_of
from test_layers import IMAGE, LINE, ROW, Applied, Bent, require_right_derivatives
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mixreg import ApproximateMixup, risk
from mixreg._autodiff.derivatives import curvature
from mixreg._autodiff.tangents import tangents
from mixreg._autodiff.written_out import written_out

DOUBLE = torch.float64


NORMS = {
    "normalize": F.normalize,
    "normalize, order 3": lambda x: F.normalize(x, p=3.0),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0)),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0)),
    "norm": lambda x: x.norm(dim=1),
}


# The others' ε is larger than 1e-30.
SIZES = [(name, torch.float16, 300.0) for name in NORMS if name not in ("normalize, order 3", "norm")]
SIZES += [(name, torch.float32, 1e30) for name in NORMS]
SIZES += [(name, torch.float32, 1e-30) for name in ("vector_norm", "norm")]


@pytest.mark.parametrize(("name", "dtype", "size"), SIZES)
def test_norms_neither_overflow_nor_vanish(name, dtype, size) -> None:
    x = (size * torch.randn(4, 100, generator=torch.Generator().manual_seed(0))).to(dtype)
    expected = NORMS[name](x.double()).to(dtype)
    with written_out():
        found = NORMS[name](x)
    torch.testing.assert_close(found, expected, rtol=3e-3, atol=0.0 if size < 1 else 3e-3 * float(expected.abs().max()))


def test_cosine_similarity_broadcasts_first() -> None:
    x = torch.randn(4, 6, 2, dtype=DOUBLE)
    for other, dim in ((x[0, :, :1], 1), (x[0, :1], 1), (x[:, :1], 1), (x[0], 2), (x[0, 0], 0)):
        expected = F.cosine_similarity(x, other, dim=dim)
        with written_out():
            torch.testing.assert_close(F.cosine_similarity(x, other, dim=dim), expected)


@pytest.mark.parametrize("write", [lambda x: F.hardsigmoid(x, inplace=True), nn.Hardsigmoid(inplace=True)])
def test_hardsigmoid_in_place_writes_in_place(write) -> None:
    def net(x: Tensor) -> Tensor:
        hidden = 4 * x
        write(hidden)
        return hidden

    x, delta = torch.randn(2, 5, 6, dtype=DOUBLE)
    value, along, _ = tangents(net, x, delta, second_order=False)
    torch.testing.assert_close(value, net(x))
    torch.testing.assert_close(along, (net(x + 1e-6 * delta) - net(x - 1e-6 * delta)) / 2e-6)


SQUARE = (4, 4, 4)


def regular(x: Tensor) -> Tensor:
    return x + 4 * torch.eye(4, dtype=x.dtype)


aten = torch.ops.aten
CASES = {
    "torch.instance_norm": (lambda x: torch.instance_norm(x, None, None, None, None, True, 0.1, 1e-5, False), LINE),
    "aten.instance_norm": (lambda x: aten.instance_norm(x, None, None, None, None, True, 0.1, 1e-5, False), LINE),
    "torch.native_layer_norm": (lambda x: torch.native_layer_norm(x, (6,), None, None, 1e-5)[0], ROW),
    "aten.layer_norm": (lambda x: aten.layer_norm(x, [6]), ROW),
    "aten.layer_norm.default": (lambda x: aten.layer_norm.default(x, [6]), ROW),
    "aten.native_layer_norm": (lambda x: aten.native_layer_norm.default(x, [6], None, None, 1e-5)[0], ROW),
    "channels last": (lambda x: F.group_norm(x.contiguous(memory_format=torch.channels_last), 2), IMAGE),
    "solve": (lambda x: torch.linalg.solve(regular(x), x), SQUARE),
    "solve, vectors": (lambda x: torch.linalg.solve(regular(x), x[:, 0]), SQUARE),
    "solve, from the right": (lambda x: torch.linalg.solve(regular(x), x, left=False), SQUARE),
    "solve_ex": (lambda x: torch.linalg.solve_ex(regular(x), x).result, SQUARE),
    "tensorsolve": (
        lambda x: torch.stack([torch.linalg.tensorsolve(regular(m).reshape(2, 2, 4), m[:2, :2]) for m in x]),
        SQUARE,
    ),
    "det": (lambda x: torch.linalg.det(x)[:, None], SQUARE),
    "Tensor.det": (lambda x: x.det()[:, None], SQUARE),
    "slogdet": (lambda x: torch.linalg.slogdet(x).logabsdet[:, None], SQUARE),
    "logdet": (lambda x: torch.logdet(x @ x.mT + torch.eye(4, dtype=x.dtype))[:, None], SQUARE),
    "Tensor.norm": (lambda x: x.norm(dim=1, keepdim=True), ROW),
    "torch.norm": (lambda x: torch.norm(x, dim=(1, 2))[:, None], LINE),
    "norm of order 3": (lambda x: x.norm(p=3, dim=1, keepdim=True), ROW),
    "norm of order 1.5": (lambda x: torch.linalg.vector_norm(x, 1.5, dim=1, keepdim=True), ROW),
    "linalg.norm": (lambda x: torch.linalg.norm(x, dim=1, keepdim=True), ROW),
    "linalg.norm, fro": (lambda x: torch.linalg.norm(x, "fro", dim=(1, 2))[:, None], LINE),
    "matrix_norm": (lambda x: torch.linalg.matrix_norm(x)[:, None], LINE),
    "normalize of order 3": (lambda x: F.normalize(x, p=3.0), ROW),
    "distance of order 3": (lambda x: F.pairwise_distance(x, x.roll(1, 1), p=3.0)[:, None], ROW),
    "dist": (lambda x: torch.stack([torch.dist(row, 1 / (1 + row.square())) for row in x])[:, None], ROW),
    "renorm": (lambda x: x.renorm(2, 0, 0.5), ROW),
    "std": (lambda x: x.std(1, keepdim=True), ROW),
    "std as in NumPy": (lambda x: x.std(axis=1, keepdims=True), ROW),
    "std_mean": (lambda x: torch.cat(torch.std_mean(x, (1, 2), correction=0)).reshape(2, -1).T, LINE),
    "global response normalisation": (
        lambda x: x * (size := x.norm(p=2, dim=(2, 3), keepdim=True)) / (size.mean(1, keepdim=True) + 1e-6),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_what_is_written_out(name) -> None:
    function, shape = CASES[name]
    torch.manual_seed(0)
    require_right_derivatives(Bent(Applied(function), shape).double(), *torch.randn(2, *shape, dtype=DOUBLE))


@pytest.mark.parametrize("function", [lambda x: x.cumprod(1), lambda x: x.prod(1, keepdim=True)])
def test_products_with_factors_of_zero(function) -> None:
    torch.manual_seed(0)
    x, delta = torch.randn(2, 4, 5, dtype=DOUBLE)
    x[:2, 1], x[1, 3] = 0.0, 0.0
    require_right_derivatives(Bent(Applied(function), x.shape).double(), x, delta)


def test_an_exported_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, delta = torch.randn(2, 5, 6, dtype=DOUBLE)
    require_right_derivatives(torch.export.export(net, (x,)).module(), x, delta)


@pytest.mark.parametrize(
    ("function", "second_order"),
    [
        (lambda x: torch.linalg.householder_product(x[..., :2], x[:, 0, :2]), False),
        (lambda x: torch.zeros_like(x).scatter_reduce(1, torch.zeros_like(x).long(), x, "prod"), False),
        (lambda x: torch.linalg.eigvalsh(x @ x.mT), True),
        (lambda x: aten._linalg_det(x)[0], False),
        (lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0], False),
    ],
)
def test_operations_with_a_wrong_rule_are_refused(function, second_order) -> None:
    x = torch.randn(*SQUARE, dtype=DOUBLE)
    net = nn.Sequential(nn.Linear(4, 4), Applied(function)).double()
    with pytest.raises(NotImplementedError, match=r"layer '1' \(Applied\).*is wrong when it is differentiated again"):
        tangents(net, x, x, second_order)


def scripted(net: nn.Module, x: Tensor) -> nn.Module:
    return torch.jit.script(net)


def traced(net: nn.Module, x: Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(net, x)


@pytest.mark.parametrize(
    ("compiled", "name", "behind_a_function"),
    [(scripted, "script", True), (traced, "trace", False), (traced, "trace", True)],
)
def test_torchscript_is_refused(compiled, name, behind_a_function) -> None:
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    net = compiled(nn.Linear(4, 3), x)
    with pytest.raises(TypeError, match=rf"^the network comes from torch\.jit\.{name}"):
        ApproximateMixup(1.0, moments_of(x, y, 3))((lambda z: net(z)) if behind_a_function else net, x, y)


def test_what_is_computed_again_is_refused() -> None:
    inner = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    net = nn.Sequential(nn.Tanh(), Applied(lambda layer, x: checkpoint(layer, x, use_reentrant=False), inner))
    x = torch.randn(5, 4)
    with pytest.raises(NotImplementedError, match=r"layer '1' \(Applied\).*torch\.utils\.checkpoint"):
        tangents(net, x, x, second_order=False)
    net(x).sum().backward()


def test_mixed_precisions_return_what_pytorch_returns() -> None:
    net = nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3).bfloat16())
    x = torch.randn(5, 6).bfloat16()
    value, along, _ = tangents(net, x, x, second_order=False)
    expected = net(x)
    assert value.dtype == along.dtype == expected.dtype
    torch.testing.assert_close(value, expected, rtol=2e-2, atol=2e-2)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def test_functions_that_are_differentiable_once_have_no_curvature() -> None:
    torch.manual_seed(0)
    linear, x, y = nn.Linear(4, 3), torch.randn(12, 4), torch.arange(12) % 3
    for net in (lambda z: linear(Cubed.apply(z)), lambda z: linear(Cubed.apply(z.tanh()))):
        with pytest.raises(NotImplementedError, match=r"^Cubed can be differentiated once only"):
            risk.quadratic(net, x, y, 1.0)
    # In the weights it is of no concern; piecewise linear networks have no curvature.
    assert risk.quadratic(lambda z: F.linear(z.relu(), Cubed.apply(linear.weight)), x, y, 1.0).r2 == 0


def test_curvature_of_hard_activations() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Hardsigmoid(), nn.Hardswish(), nn.Linear(8, 3)).double()
    x, delta, y = torch.randn(12, 4, dtype=DOUBLE), torch.randn(12, 4, dtype=DOUBLE), torch.arange(12) % 3
    slope = torch.randn(12, 3, dtype=DOUBLE)
    bent = (net(x + 1e-4 * delta) - 2 * net(x) + net(x - 1e-4 * delta)) / 1e-8
    torch.testing.assert_close(curvature(net, x, slope)(delta), (slope * bent).sum(1), rtol=1e-5, atol=1e-6)
    for measure in (
        lambda: risk.quadratic(net, x, y, 1.0).total,
        lambda: risk.unmixed(net, x, y, 1.0).total,
        lambda: risk.noise_regulariser(net, x, y, 0.1).total,
        lambda: risk.dropout_regulariser(net, x, y, 0.1).total,
    ):
        assert bool(measure().isfinite())


def test_layers_that_wait_for_their_size_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(3))
    x = torch.randn(5, 4)
    with pytest.raises(TypeError, match=r"^layer '1' does not know its size yet"):
        tangents(net, x, x, second_order=False)


def test_a_loss_that_looks_at_numbers_is_named() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 5, generator=draw), torch.randn(20, 3, generator=draw)
    weight = torch.randn(3, 5, generator=draw)

    def doubled(y, u):
        error = (u - y).square().sum()
        return 2 * error if error > 1 else error

    def by_number(y, u):
        return (u - y).square().sum() * (1 + abs(u.sum().item()))

    for loss in (doubled, by_number):
        with pytest.raises(TypeError, match=rf"the loss {loss.__name__} looks at the numbers.*use torch\.where"):
            risk.quadratic(lambda x: x @ weight.T, x, y, loss=loss)


def test_distances_are_right_or_refused_in_a_sentence() -> None:
    draw = torch.Generator().manual_seed(0)
    x, centres = (torch.randn(shape, generator=draw, dtype=torch.double) for shape in ((20, 5), (3, 5)))
    y = torch.randint(0, 3, (20,), generator=draw)
    expected = risk.quadratic(lambda x: (x.unsqueeze(1) - centres).square().sum(2).sqrt(), x, y)
    try:
        found = risk.quadratic(lambda x: torch.cdist(x, centres), x, y)
    except NotImplementedError as error:
        # PyTorch 2.13 differentiates them once, 2.15 as often as one likes.
        assert re.search(r"differentiate once only.*_cdist_backward.*elementary steps", str(error))  # noqa: PT017
    else:
        torch.testing.assert_close(found.total, expected.total)
        torch.testing.assert_close(found.r2, expected.r2)


def test_functions_of_signs_have_the_terms_of_what_they_are_written_out() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=draw, dtype=torch.double) for shape in ((20, 5), (3, 5)))
    y = torch.randint(0, 3, (20,), generator=draw)
    for net, written in (
        (lambda u: torch.copysign(u.exp(), u), lambda u: torch.where(u > 0, 1.0, -1.0) * u.exp()),
        (lambda u: torch.sgn(torch.complex(u, u**2)).real, lambda u: u / (u**2 + u**4).sqrt()),
    ):
        found, expected = (risk.quadratic(lambda x, f=f: f(x @ weight.T), x, y) for f in (net, written))
        torch.testing.assert_close(found.r2, expected.r2)
        torch.testing.assert_close(found.total, expected.total)
