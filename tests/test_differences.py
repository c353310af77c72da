"""Approximate Mixup by values on both sides: tangents by another way, for any layer that draws nothing."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from processes import run_processes
from test_approximate import check_unbiased, moments_of
from test_risk import SAMPLE_LOSSES, problem
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixreg import ApproximateMixup
from mixreg._autodiff.differences import differences, step_of
from mixreg._autodiff.tangents import tangents


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def norms() -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.AvgPool2d(2))
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def gradients(total: Tensor, net: nn.Module) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(net.parameters()))])


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
def test_values_derivatives_and_gradients_are_those_of_forward_mode(dtype, close, validate) -> None:
    net = norms().to(dtype)
    x, delta = torch.randn(2, 12, 2, 4, 4, dtype=dtype)
    other = copy.deepcopy(net)
    expected = tangents(net, x, delta, False)[:2]
    found = differences(other, x, delta, validate=validate)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=close, atol=close)
    slopes = [
        gradients(u.square().sum() + first.square().sum(), m) for (u, first), m in ((found, other), (expected, net))
    ]
    torch.testing.assert_close(*slopes, rtol=0, atol=10 * close * float(slopes[1].abs().max()))
    # Both sides are one batch: counted once, with the statistics of the middle.
    assert int(other[0][1].num_batches_tracked) == 1
    torch.testing.assert_close(other[0][1].running_mean, net[0][1].running_mean, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_their_error_is_of_the_order_that_is_promised(dtype) -> None:
    """f = exp along one line, f‴ h² / 6 and rounding: sinh(h) / h − 1."""
    x = torch.zeros(4, 1, dtype=dtype)
    _, first = differences(torch.exp, x, torch.ones_like(x))
    eps = float(torch.finfo(dtype).eps)
    step = float(step_of(x, torch.ones_like(x)))
    assert step == pytest.approx(eps ** (1 / 3), rel=1e-5)
    assert abs(float(first[0]) - 1) < step**2 / 5 + 4 * eps / step


@pytest.mark.parametrize("part", [1.0, 0.4])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_unbiased(loss, part) -> None:
    check_unbiased(loss, False, 100, 10, part=part, derivatives="differences")


def test_losses_of_a_part_are_those_of_forward_mode_and_stay_with_their_samples() -> None:
    net, x, y = problem("cross_entropy", n=7)
    moments = moments_of(x, y, 3)
    found, expected = (
        criterion.losses(net, criterion.draw(x, y, torch.Generator().manual_seed(1)))
        for criterion in (ApproximateMixup(0.7, moments, part=0.4, derivatives=d) for d in ("differences", "forward"))
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


class Recurrent(nn.Module):
    """Fused recurrent layers have no forward-mode derivative whose gradient can be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.last = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.recurrent(x)[0][:, -1])


def test_layers_without_a_forward_rule() -> None:
    net, x = Recurrent().double(), torch.randn(9, 4, 3, dtype=torch.float64)
    y = torch.randint(0, 2, (9,))
    criterion = ApproximateMixup(1.0, moments_of(x, y, 2), derivatives="differences")
    rows = criterion.draw(x, y, torch.Generator().manual_seed(2))
    found = criterion.losses(net, rows).mean()
    # Against a wider step, one row after another.
    h = 1e-3
    total = torch.zeros((), dtype=torch.float64)
    for shown, delta, target, epsilon, _ in zip(*rows, strict=True):
        u, above, below = (net((shown + k * h * delta).unsqueeze(0))[0] for k in (0, 1, -1))
        moved, p = (above - below) / (2 * h), u.softmax(0)
        curved = (p * moved.square()).sum() - (p * moved).sum().square()
        total = total + torch.logsumexp(u, 0) - target @ u + 0.5 * curved - epsilon @ moved
    torch.testing.assert_close(found, total / 9, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients(found, net), gradients(total / 9, net), rtol=0, atol=1e-5)


SEEDS = np.random.default_rng(0)


class Drawing(nn.Module):
    """Drops features without any layer that says so."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draw(x.shape)


def own_generator(shape) -> Tensor:
    if not hasattr(own_generator, "of"):
        own_generator.of = torch.Generator().manual_seed(0)
    return (torch.rand(shape, generator=own_generator.of) > 0.3).float()


def forked(shape) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(int(SEEDS.integers(1 << 30)))
        return (torch.rand(shape) > 0.3).float()


DRAWING = {
    "dropout": (nn.Dropout(0.5), r"layer '1' \(Dropout\) would"),
    "by itself": (Drawing(lambda shape: torch.rand(shape)), "random numbers"),
    "from a generator of its own": (Drawing(own_generator), "two outputs to one input"),
    "from a stream beside": (Drawing(forked), "two outputs to one input"),
    "from NumPy": (
        Drawing(lambda shape: torch.from_numpy(SEEDS.random(tuple(shape)) > 0.3)),
        "two outputs to one input",
    ),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_networks_that_draw_are_refused_and_have_learnt_nothing(kind) -> None:
    layer, message = DRAWING[kind]
    net = nn.Sequential(nn.BatchNorm1d(16), layer, nn.Linear(16, 3))
    x, y = torch.randn(8, 16), torch.arange(8) % 3
    criterion = ApproximateMixup(1.0, moments_of(x, y, 3), derivatives="differences")
    with pytest.raises(ValueError, match=message):
        criterion(net, x, y)
    assert int(net[0].num_batches_tracked) == 0
    assert torch.equal(net[0].running_mean, torch.zeros(16))
    if isinstance(layer, nn.Dropout):
        # In evaluation mode it draws nothing.
        assert criterion(net.eval(), x, y).isfinite()


def test_every_network_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("mixreg._autodiff.differences._refuse_drawing", lambda *given: looked.append(given[1]))
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    criterion = ApproximateMixup(1.0, moments_of(x, y, 3), derivatives="differences")
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    for net in (first, first, lambda z: first(z), lambda z: first(z), second):
        criterion(net, x, y)
    assert looked == [first, second]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="two outputs to one input"):
        criterion(nn.Sequential(Drawing(own_generator), first), x, y)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_compiled_step_refuses_them_too() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    criterion = ApproximateMixup(1.0, moments_of(x, y, 3), validate=False, derivatives="differences")
    net, last = Drawing(lambda shape: F.dropout(torch.ones(shape), 0.3)), nn.Linear(4, 3)
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="draws random numbers"):
        torch.compile(criterion, backend="eager")(lambda z: last(net(z)), x, y)


class HalfInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            hidden = torch.tanh(self.first(x))
        return self.last(hidden.float())


def test_half_precision_inside_is_refused() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    criterion = ApproximateMixup(1.0, moments_of(x, y, 3), derivatives="differences")
    with pytest.raises(TypeError, match=r"layer 'first' \(Linear\) computes in half precision"):
        criterion(HalfInside(), x, y)
    core = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).half())
    with pytest.raises(TypeError, match="layer '1'"):
        criterion(core, x, y)


class InPieces(nn.Module):
    """Normalises pieces of the batch, as several devices do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(piece) for piece in x.split(16)])


def test_both_sides_of_a_sample_are_in_one_piece_of_the_batch() -> None:
    x, delta = torch.randn(2, 32, 4, dtype=torch.float64)
    net = InPieces().double()
    _, first = differences(net, x, delta, validate=False)
    # Pieces of eight samples, each with its own statistics, which are held fixed.
    expected = [d / (p.var(0, correction=0) + 1e-5).sqrt() for p, d in zip(x.split(8), delta.split(8), strict=True)]
    torch.testing.assert_close(first, torch.cat(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e3])
def test_inputs_far_from_0_lose_few_digits(offset: float) -> None:
    torch.manual_seed(1)
    weight, delta = torch.randn(5, 3), torch.randn(400, 5)
    x = offset + torch.randn(400, 5)
    _, first = differences(lambda z: torch.tanh((z - offset) @ weight), x, delta)
    exact = torch.func.jvp(lambda z: torch.tanh((z - offset) @ weight.double()), (x.double(),), (delta.double(),))[1]
    assert float((first - exact).norm() / exact.norm()) < {0.0: 1e-3, 1e2: 3e-3, 1e3: 2e-2}[offset]


def test_inputs_that_leave_no_digits_are_refused() -> None:
    x, y = 1e5 + torch.randn(8, 4), torch.arange(8) % 3
    criterion = ApproximateMixup(1.0, moments_of(x, y, 3), derivatives="differences")
    with pytest.raises(ValueError, match="too few digits; centre and scale the inputs"):
        criterion(nn.Linear(4, 3), x, y)


def test_what_forward_mode_refuses_is_refused_alike() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    criterion = ApproximateMixup(1.0, moments_of(x, y, 3), derivatives="differences")
    with pytest.raises(TypeError, match="does not know its size yet"):
        criterion(nn.Sequential(nn.LazyLinear(3)), x, y)
    with pytest.raises(ValueError, match="needs more than one sample to train, got 1"):
        criterion(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), x[:1], y[:1])
    assert criterion(nn.Linear(4, 3), x[:1], y[:1]).isfinite()
    with pytest.raises(TypeError, match=r"x is torch.float32 and the network's parameters are torch.float64"):
        criterion(nn.Linear(4, 3).double(), x, y)


def test_outputs_as_low_as_numbers_go() -> None:
    """Masked logits: half of each, not of their sum."""
    mask = torch.tensor([0.0, 0.0, torch.finfo(torch.float32).min])
    net, x = nn.Linear(4, 3), torch.randn(8, 4)
    u, first = differences(lambda z: net(z).where(mask == 0, mask), x, torch.randn(8, 4))
    assert u.isfinite().all()
    assert torch.equal(first[:, 2], torch.zeros(8))


def test_what_does_not_go_together_is_refused() -> None:
    net, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.arange(8) % 3
    moments = moments_of(x, y, 3)
    with pytest.raises(ValueError, match="derivatives must be one of forward, differences, got 'both'"):
        ApproximateMixup(1.0, moments, derivatives="both")
    with pytest.raises(ValueError, match="second derivatives are not taken by differences"):
        ApproximateMixup(1.0, moments, second_order=True, derivatives="differences")
    criterion = ApproximateMixup(1.0, moments, derivatives="differences")
    assert "derivatives='differences'" in repr(criterion)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="autocast is on"):
        criterion(net, x, y)
    with pytest.raises(TypeError, match="bfloat16"):
        criterion(net.bfloat16(), x.bfloat16(), y)
    with pytest.raises(TypeError, match=r"outputs of float32 or float64, got torch.bfloat16"):
        differences(lambda z: net(z.bfloat16()), x, x)
    with pytest.raises(ValueError, match="one output for each input"):
        criterion(lambda z: z.sum(), x, y)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_sample_that_is_not_finite_is_named_and_not_learnt_from(part) -> None:
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    moments = moments_of(x, y, 3)
    x[3] = math.inf
    for seed in range(4):
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        given = {"part": part, "derivatives": "differences", "generator": torch.Generator().manual_seed(seed)}
        with pytest.raises(ValueError, match="not finite at sample"):
            ApproximateMixup(1.0, moments, **given)(net, x, y)
        assert net[1].running_mean.isfinite().all()
        with pytest.raises(ValueError, match="sample 3"):
            ApproximateMixup(1.0, moments, **given)(net[0], x, y)


# The compiler looks at the .grad of tensors that come out of a part it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("compiles_step", [False, True])
def test_compiled_networks_and_steps(compiles_step) -> None:
    net, x, y = norms(), torch.randn(8, 2, 4, 4), torch.arange(8) % 3
    criterion = ApproximateMixup(0.5, moments_of(x, y, 3), derivatives="differences")
    values = []
    for compiles in (False, True):
        torch._dynamo.reset()
        own = copy.deepcopy(net)
        # A compiler that changes nothing, so that what it traces is what is looked at.
        run = torch.compile(criterion, backend="eager") if compiles and compiles_step else criterion
        used = torch.compile(own, backend="eager") if compiles and not compiles_step else own
        torch.manual_seed(5)
        value = run(used, x, y)
        values.append((value.detach(), gradients(value, own)))
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)


def _gradient_of_half(rank: int, distributed: bool = True) -> Tensor:
    net, x, y = problem("cross_entropy", n=12)
    half = slice(6 * rank, 6 * rank + 6)
    generator = torch.Generator().manual_seed(rank)
    criterion = ApproximateMixup(0.6, moments_of(x, y, 3), generator=generator, derivatives="differences")
    wrapped = DistributedDataParallel(net) if distributed else net
    for _ in range(3):
        wrapped.zero_grad()
        criterion(wrapped, x[half], y[half]).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    expected = (_gradient_of_half(0, False) + _gradient_of_half(1, False)) / 2
    for gradient in run_processes(_gradient_of_half, 2, tmp_path):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_gradients_have_what_moves_a_kink() -> None:
    """f = max(x + b, 0) of normal x: E ½ f′² = ½ Φ(b) moves by ½ φ(b), and by nothing where kinks are left out."""
    found = []
    for _ in range(40):
        b = torch.tensor(0.3, requires_grad=True)
        x = torch.randn(20_000, 1)
        _, first = differences(lambda x, b=b: torch.relu(x + b), x, torch.ones_like(x))
        (of_b,) = torch.autograd.grad(0.5 * first.square().mean(), b)
        found.append(float(of_b))
    expected = 0.5 * math.exp(-(0.3**2) / 2) / math.sqrt(2 * math.pi)
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert abs(np.mean(found) - expected) < 4 * error + 1e-3
    assert error < 0.1 * expected
