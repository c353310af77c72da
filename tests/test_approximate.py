"""Training on the quadratic risk: unbiased in value and gradient, for any loop, layer and number of processes."""

import copy
import math
from pathlib import Path

import pytest
import torch
from dense import dense_quadratic
from processes import run_processes
from test_risk import SAMPLE_LOSSES, named, problem
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mixreg import ApproximateMixup, DataMoments, Mixup, risk
from mixreg.approximate import tangents
from mixreg.network import curvature
from mixreg.targets import to_values


def moments_of(x: torch.Tensor, y: torch.Tensor, num_classes: int | None = None) -> DataMoments:
    m = DataMoments(num_classes=None if y.is_floating_point() else num_classes)
    m.update(x, y)
    return m


def check_unbiased(loss: str, second_order: bool, draws: int) -> None:
    net, x, y = problem(loss, n=7)
    terms = dense_quadratic(net, x, to_values(y, 3, torch.float64), 0.7, SAMPLE_LOSSES[loss])
    exact = terms["base"] + terms["joint"] + terms["r4"] + (terms["r2"] if second_order else 0.0)
    exact_gradient = torch.cat([g.flatten() for g in torch.autograd.grad(exact, list(net.parameters()))])
    generator = torch.Generator().manual_seed(0)
    criterion = ApproximateMixup(0.7, moments_of(x, y, 3), named(loss), second_order, generator)
    values, gradients = [], []
    for _ in range(draws):
        value = criterion(net, x, y)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(net.parameters()))]))
        values.append(value.detach())
    for drawn, expected in ((torch.stack(values), exact.detach()), (torch.stack(gradients), exact_gradient)):
        error = drawn.std(0) / math.sqrt(draws)
        assert ((drawn.mean(0) - expected).abs() <= 4 * error + 1e-12).all()


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_unbiased(loss, second_order) -> None:
    check_unbiased(loss, second_order, 800)


@pytest.mark.slow
@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_unbiased_over_ten_thousand_draws(loss, second_order) -> None:
    check_unbiased(loss, second_order, 10_000)


def test_alpha_zero_is_plain_training() -> None:
    net, x, y = problem("cross_entropy")
    value = ApproximateMixup(0.0, moments_of(x, y, 3))(net, x, y)
    torch.testing.assert_close(value, nn.functional.cross_entropy(net(x), y))


def test_reproducible_and_typed() -> None:
    net, x, y = problem("cross_entropy")
    net, x = net.float(), x.float()
    m = moments_of(x, y, 3)
    values = [ApproximateMixup(1.0, m, generator=torch.Generator().manual_seed(3))(net, x, y) for _ in range(2)]
    assert torch.equal(values[0], values[1])
    assert values[0].dtype == torch.float32
    assert repr(ApproximateMixup(1.0, m)) == "ApproximateMixup(alpha=1.0, loss='cross_entropy', second_order=False)"


def normalised(dimensions: int) -> nn.Module:
    torch.manual_seed(0)
    if dimensions == 1:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_batch_normalisation_holds_its_statistics_and_learns(dimensions, second_order) -> None:
    x = torch.randn(10, 4, dtype=torch.float64) if dimensions == 1 else torch.randn(10, 2, 4, 4, dtype=torch.float64)
    delta = torch.randn_like(x)
    net, ordinary = normalised(dimensions), normalised(dimensions)
    for _ in range(2):
        u, first, second = tangents(net, x, delta, second_order)
        expected = ordinary(x)
    torch.testing.assert_close(u, expected, rtol=0, atol=1e-12)
    for got, want in zip(net[1].buffers(), ordinary[1].buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    # With the batch's own statistics as running ones, evaluation mode is the function to differentiate.
    fixed = normalised(dimensions)
    with torch.no_grad():
        h = fixed[0](x)
        over = [d for d in range(h.ndim) if d != 1]
        fixed[1].running_mean.copy_(h.mean(over))
        fixed[1].running_var.copy_(h.var(over, correction=0))
    fixed.eval()
    along = lambda z: torch.func.jvp(fixed, (z,), (delta,))[1]  # noqa: E731
    torch.testing.assert_close(first, along(x), rtol=0, atol=1e-12)
    if second_order:
        torch.testing.assert_close(second, torch.func.jvp(along, (x,), (delta,))[1], rtol=0, atol=1e-12)
    # Gradients of the outputs are those of ordinary training, through the statistics.
    for a, b in zip(
        torch.autograd.grad(u.square().sum(), list(net.parameters())),
        torch.autograd.grad(expected.square().sum(), list(ordinary.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert "forward" not in net[1].__dict__


def test_evaluation_mode_leaves_running_statistics_alone() -> None:
    net = normalised(1).eval()
    before = copy.deepcopy(net.state_dict())
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 3
    ApproximateMixup(1.0, moments_of(x, y, 3))(net, x, y).backward()
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_dropout_uses_one_mask_for_value_and_tangent() -> None:
    net = nn.Sequential(nn.Dropout(0.5)).double()
    x = torch.ones(200, 4, dtype=torch.float64)
    u, first, _ = tangents(net, x, x, False)
    assert torch.equal(u, first)
    assert 0.4 < (u == 0).double().mean() < 0.6


def lenet(normalised: bool) -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(4), nn.Dropout(0.3)] if normalised else []
    return nn.Sequential(nn.Conv2d(1, 4, 3), *norms, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


# The compiler looks at the .grad of tensors that come out of a part it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("second_order", [False, True])
def test_compiled_networks_and_compiled_steps(second_order, normalised) -> None:
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    m = moments_of(x, y, 3)

    step = ApproximateMixup(0.5, m, second_order=second_order)
    values = []
    for compile_net, compile_step in ((False, False), (True, False), (False, True)):
        torch._dynamo.reset()
        net = torch.compile(lenet(normalised)) if compile_net else lenet(normalised)
        run = torch.compile(lambda *batch: step(*batch)) if compile_step else step
        torch.manual_seed(5)
        value = run(net, x, y)
        value.backward()
        gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
        values.append((value.detach(), gradient))
    for value, gradient in values[1:]:
        torch.testing.assert_close(value, values[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, values[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_lowers_the_mixup_risk(optimizer) -> None:
    from mixreg import risk

    net, x, y = problem("cross_entropy", n=40)
    criterion = ApproximateMixup(0.3, moments_of(x, y, 3), generator=torch.Generator().manual_seed(0))
    before = risk.mixup(net, x, y, 0.3)
    steps = optimizer(net.parameters(), lr=0.05)
    for _ in range(150):
        steps.zero_grad()
        criterion(net, x, y).backward()
        steps.step()
    assert risk.mixup(net, x, y, 0.3) < before - 0.05


class Doubled(torch.autograd.Function):
    """A function that its author gave no forward-mode rule."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Stubborn(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


def test_scripted_layers_are_refused() -> None:
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    scripted = torch.jit.script(nn.Linear(4, 3))
    approximate = ApproximateMixup(1.0, moments_of(x, y, 3))
    for net, place in ((scripted, "the network"), (nn.Sequential(nn.Tanh(), scripted), "layer '1'")):
        with pytest.raises(TypeError, match=f"^{place} comes from torch.jit.script"):
            approximate(net, x, y)


def test_a_layer_without_a_forward_rule_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Stubborn()), nn.Linear(4, 3))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    with pytest.raises(NotImplementedError, match=r"layer '1\.1' \(Stubborn\) has no forward-mode derivative"):
        ApproximateMixup(1.0, moments_of(x, y, 3))(net, x, y)


@pytest.mark.parametrize("activation", [nn.SiLU, nn.GELU, nn.Softplus, nn.Tanh])
def test_second_tangents_agree_with_backward_passes(activation) -> None:
    net = nn.Sequential(nn.Linear(4, 4), activation(), nn.Linear(4, 3)).double()
    x, delta = torch.randn(2, 5, 4, dtype=torch.float64)
    slope = torch.randn(5, 3, dtype=torch.float64)
    _, _, second = tangents(net, x, delta, True)
    torch.testing.assert_close((slope * second).sum(1), curvature(net, x, slope)(delta), rtol=0, atol=1e-12)


def _gradient_of_half(rank: int, distributed: bool) -> torch.Tensor:
    net, x, y = problem("cross_entropy", n=12)
    m = moments_of(x, y, 3)
    wrapped = DistributedDataParallel(net) if distributed else net
    half = slice(6 * rank, 6 * rank + 6)
    criterion = ApproximateMixup(0.6, m, generator=torch.Generator().manual_seed(rank))
    # More than one step: the wrapper rearranges its buckets after the first.
    for _ in range(3):
        wrapped.zero_grad()
        criterion(wrapped, x[half], y[half]).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def _distributed_gradient(rank: int) -> torch.Tensor:
    return _gradient_of_half(rank, distributed=True)


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    expected = (_gradient_of_half(0, False) + _gradient_of_half(1, False)) / 2
    for gradient in run_processes(_distributed_gradient, 2, tmp_path):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def _distributed_with_norms(rank: int) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    wrapped = DistributedDataParallel(net)
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    criterion = ApproximateMixup(0.6, moments_of(x, y, 3), second_order=True)
    for _ in range(3):
        wrapped.zero_grad()
        criterion(wrapped, x[6 * rank : 6 * rank + 6], y[6 * rank : 6 * rank + 6]).backward()
    assert "forward" not in net.__dict__
    assert net[1].num_batches_tracked == 3
    return net[0].weight.grad


def test_two_processes_with_batch_normalisation(tmp_path: Path) -> None:
    first, second = run_processes(_distributed_with_norms, 2, tmp_path)
    torch.testing.assert_close(first, second)


def test_a_layer_used_twice_learns_twice_and_keeps_its_forward() -> None:
    layer = nn.BatchNorm1d(4).double()
    ordinary = copy.deepcopy(layer)
    x = torch.randn(6, 4, dtype=torch.float64)
    tangents(nn.Sequential(layer, nn.Tanh(), layer), x, x, False)
    nn.Sequential(ordinary, nn.Tanh(), ordinary)(x)
    for got, want in zip(layer.buffers(), ordinary.buffers(), strict=True):
        torch.testing.assert_close(got, want)
    mine = layer.forward
    layer.forward = mine
    tangents(layer, x, x, False)
    assert layer.__dict__["forward"] is mine
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        tangents(nn.BatchNorm1d(4).double(), x[:1], x[:1], False)


def test_same_targets_as_mixup() -> None:
    net, x, y = problem("cross_entropy")
    soft = to_values(y, 3, torch.float64)
    first, second = (
        ApproximateMixup(1.0, moments_of(x, t, 3), generator=torch.Generator().manual_seed(1))(net, x, t)
        for t in (y, soft)
    )
    torch.testing.assert_close(first, second)
    assert Mixup(1.0, 3)(x, y)[1].shape == soft.shape


def test_wrong_input() -> None:
    net, x, y = problem("cross_entropy")
    m = moments_of(x, y, 3)
    with pytest.raises(ValueError, match="x has 9 samples and y has 4"):
        ApproximateMixup(1.0, m)(net, x, y[:4])
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.2"):
        ApproximateMixup(1.0, m)(net, x, y + 1)
    with pytest.raises(ValueError, match=r"the moments are those of x: \(2, 2\)"):
        ApproximateMixup(1.0, m)(net, x[:, :1], y)
    with pytest.raises(ValueError, match="known are cross_entropy, logistic, squared_error"):
        ApproximateMixup(1.0, m, loss="hinge")
    with pytest.raises(TypeError, match="moments must be DataMoments, got Tensor"):
        ApproximateMixup(1.0, x)
    with pytest.raises(ValueError, match="no data yet"):
        ApproximateMixup(1.0, DataMoments())
    with pytest.raises(ValueError, match=r"\[0, inf\]"):
        ApproximateMixup(-1.0, m)
    with pytest.raises(ValueError, match="no sample"):
        ApproximateMixup(1.0, m)(net, x[:0], y[:0])
    broken = x.clone()
    broken[5] = torch.nan
    with pytest.raises(ValueError, match="not finite at sample"):
        ApproximateMixup(1.0, m)(net, broken, y)
    with pytest.raises(ValueError, match="piecewise linear"):
        ApproximateMixup(1.0, m, loss=lambda y, u: (y - u).abs().sum())(net, x, y)
    with pytest.raises(ValueError, match=r"targets \(3,\) and outputs \(4,\)"):
        ApproximateMixup(1.0, m)(lambda z: z.flatten(1), x, y)


def test_wrong_networks_and_targets_get_a_sentence() -> None:
    net, x, y = problem("cross_entropy")
    m = moments_of(x, y, 3)
    with pytest.raises(ValueError, match="sum to 1 over the classes"):
        ApproximateMixup(1.0, m)(net, x, 2 * to_values(y, 3, torch.float64))
    with pytest.raises(TypeError, match=r"x is torch\.float32 and the network's parameters are torch\.float64"):
        ApproximateMixup(1.0, m)(net, x.float(), y)
    with pytest.raises(TypeError, match="must return a tensor, got tuple"):
        ApproximateMixup(1.0, m)(lambda z: (net(z), None), x, y)


def test_a_loss_without_a_forward_rule() -> None:
    """Huber's loss has two reverse derivatives and no forward one; within its quadratic part it is squared error."""
    net, x, y = problem("squared_error")
    y = 0.1 * y

    def huber(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(u, y, reduction="sum", delta=100.0)

    first, second = (
        ApproximateMixup(1.0, moments_of(x, y), loss=loss, generator=torch.Generator().manual_seed(1))(net, x, y)
        for loss in (huber, "squared_error")
    )
    torch.testing.assert_close(first, second)


def test_binary_labels_may_be_integers() -> None:
    _, x, _ = problem("squared_error")
    for head, shape in ((nn.Flatten(), (9, 1)), (nn.Flatten(0), (9,))):
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1), head).double()
        labels = torch.arange(9) % 2
        values = labels.double().reshape(shape)
        first, second = (
            ApproximateMixup(1.0, moments_of(x, values), "logistic", generator=torch.Generator().manual_seed(1))(
                net, x, y
            )
            for y in (labels, values)
        )
        torch.testing.assert_close(first, second)
        torch.testing.assert_close(
            risk.mixup(net, x, labels, 1.0, "logistic"), risk.mixup(net, x, values, 1.0, "logistic")
        )
        with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1"):
            risk.empirical(net, x, labels + 1, "logistic")
