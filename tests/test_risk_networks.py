"""Risks of unusual networks, in closed form for linear ones, and of wrong input."""

import math

import pytest
import torch
from dense import dense_quadratic, detached
from problems import SAMPLE_LOSSES, assert_terms, problem
from torch import nn

from mixreg import DataMoments, losses, risk
from mixreg.losses import derivatives
from mixreg.losses.targets import to_values
from mixreg.theory.least_squares import linear_mixup_risk, ordinary_least_squares, printed_linear_mixup_risk


def test_without_gradients_and_for_constant_networks() -> None:
    net, x, y = problem("cross_entropy")
    with torch.no_grad():
        assert risk.quadratic(net, x, y, 1.0).total == risk.quadratic(net, x, y, 1.0).total
    bias = torch.randn(3, dtype=torch.float64)
    q = risk.quadratic(lambda z: bias.expand(len(z), -1), x, y, 1.0)
    assert q.r2 == 0
    assert (q.total - q.base).abs() < 1e-12
    broken = x.clone()
    broken[5, 1] = torch.nan
    for function in (risk.mixup, risk.perturbed, risk.quadratic):
        with pytest.raises(ValueError, match="x is not finite at sample 5"):
            function(net, broken, y, 1.0)


def test_piecewise_linear_networks_have_no_r2() -> None:
    x = torch.randn(12, 3, 12, 12)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 5))
    with pytest.warns(UserWarning, match="12 samples of 432 coordinates"):
        q = risk.quadratic(net, x, torch.arange(12) % 5, 1.0, exact_directions=4)
    assert q.r2 == 0
    assert q.r2_stderr == 0


def test_networks_are_left_as_they_were() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 3)).double()
    net[2].eval()
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 3
    state = {key: value.clone() for key, value in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    first = risk.quadratic(net, x, y, 1.0).total
    assert risk.mixup(net, x, y, 1.0) == risk.mixup(net, x, y, 1.0)
    assert first == risk.quadratic(net, x, y, 1.0).total
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_chunks_do_not_matter() -> None:
    net, x, y = problem("cross_entropy")
    for function in (risk.mixup, risk.perturbed):
        whole = function(net, x, y, 0.7)
        for size in (1, 7, 100):
            torch.testing.assert_close(function(net, x, y, 0.7, chunk_size=size), whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(risk.empirical(net, x, y, chunk_size=2), risk.empirical(net, x, y))


def test_scalar_outputs_and_plain_functions() -> None:
    x, y = torch.randn(7, 2, dtype=torch.float64), torch.randn(7, dtype=torch.float64)

    def net(z):
        return torch.sin(z[:, 0]) * z[:, 1]

    expected = detached(dense_quadratic(net, x, y.unsqueeze(1), 0.5, SAMPLE_LOSSES["squared_error"]))
    assert_terms(risk.quadratic(net, x, y, 0.5, loss="squared_error"), expected)
    assert abs(risk.mixup(net, x, y, 0.5, "squared_error") - risk.perturbed(net, x, y, 0.5, "squared_error")) < 1e-12
    labels = (y > 0).double()
    expected = detached(dense_quadratic(net, x, labels.unsqueeze(1), 0.5, SAMPLE_LOSSES["logistic"]))
    assert_terms(risk.quadratic(net, x, labels, 0.5, loss="logistic"), expected)


def test_moments_of_scalar_targets() -> None:
    x, y = torch.randn(7, 2, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    moments = DataMoments(covariance=True)
    moments.update(x, y)

    def net(z):
        return torch.sin(z[:, 0]) * z[:, 1]

    own = risk.quadratic(net, x, y, 0.5, loss="squared_error")
    given = risk.quadratic(net, x, y, 0.5, loss="squared_error", moments=moments)
    for name in ("base", "r1", "r2", "r3", "r4", "total"):
        assert getattr(given, name).item() == pytest.approx(getattr(own, name).item(), rel=1e-9)


def test_linear_least_squares_in_closed_form() -> None:
    _, x, y = problem("squared_error", n=12)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    weight, bias = linear[1].weight.detach(), linear[1].bias.detach()
    for alpha in (0.0, 0.2, 1.0, 20.0, float("inf")):
        exact = risk.mixup(linear, x, y, alpha, loss="squared_error")
        assert linear_mixup_risk(weight, bias, x, y, alpha).item() == pytest.approx(exact.item(), rel=1e-12)
        assert risk.quadratic(linear, x, y, alpha, loss="squared_error").total.item() == pytest.approx(exact.item())
    # Erratum 1: the printed formula is not off by a constant.
    other = weight + 0.3
    printed = [printed_linear_mixup_risk(w, bias, x, y, 1.0) for w in (weight, other)]
    right = [linear_mixup_risk(w, bias, x, y, 1.0) for w in (weight, other)]
    assert abs((printed[0] - printed[1]) - (right[0] - right[1])) > 1e-3
    # Both are minimised by ordinary least squares.
    best = ordinary_least_squares(x, y)
    flat = torch.cat([x.flatten(1), torch.ones(12, 1, dtype=torch.float64)], 1)
    solution = torch.linalg.lstsq(flat, y).solution
    torch.testing.assert_close(best[0], solution[:-1].T, rtol=0, atol=1e-10)
    torch.testing.assert_close(best[1], solution[-1], rtol=0, atol=1e-10)
    w, b = (t.clone().requires_grad_() for t in best)
    gradients = torch.autograd.grad(linear_mixup_risk(w, b, x, y, 1.0), (w, b))
    assert all(g.abs().max() < 1e-12 for g in gradients)
    with pytest.raises(ValueError, match="weight and bias must have shapes"):
        linear_mixup_risk(weight.T, bias, x, y, 1.0)


def test_derivatives_of_the_losses() -> None:
    for name, loss in losses.BUILT_IN.items():
        _, _, y = problem(name, n=5)
        y = to_values(y, 3, torch.float64)
        u = torch.randn(5, 3, dtype=torch.float64)
        auto = derivatives.CustomLoss(SAMPLE_LOSSES[name], torch.Size([3]), torch.Size([3]))
        for part in ("value", "u", "uu", "uy", "yy", "uu_inverse"):
            torch.testing.assert_close(getattr(loss, part)(y, u), getattr(auto, part)(y, u), rtol=1e-9, atol=1e-10)
        dy = torch.randn(5, 3, dtype=torch.float64)
        dy -= dy.mean(1, keepdim=True)
        du = torch.randn(5, 3, dtype=torch.float64)
        torch.testing.assert_close(loss.along(y, u, dy, du), auto.along(y, u, dy, du), rtol=1e-10, atol=1e-12)


NET, X, Y = problem("cross_entropy")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((NET, X, Y[:5]), ValueError, "x has 9 samples and y has 5"),
        ((NET, X.long(), Y), TypeError, "floating point"),
        ((NET, X[:0], Y[:0]), ValueError, "no sample"),
        ((NET, X, Y + 2), ValueError, r"labels must lie in 0\.\.2"),
        ((NET, X, torch.zeros(9, 4, dtype=torch.float64)), ValueError, r"targets \(4,\) and outputs \(3,\)"),
        ((NET, X, torch.ones(9, 3, dtype=torch.float64)), ValueError, "sum to 1"),
        ((lambda z: z.sum(), X, Y), ValueError, "must return 1 outputs for 1 inputs"),
        ((lambda z: [z], X, Y), TypeError, "must return a tensor, got list"),
        (
            (lambda z: NET(z) + (z[:, :1, 0] > 1e9) * 0, [X], Y),
            TypeError,
            "x must be a tensor, or a tuple or dict of tensors, got list",
        ),
    ],
)
def test_wrong_input(arguments, error, message) -> None:
    for function, more in ((risk.empirical, ()), (risk.mixup, (1.0,)), (risk.quadratic, (1.0,))):
        with pytest.raises(error, match=message):
            function(*arguments, *more)


def test_non_finite_outputs_are_located() -> None:
    def net(z):
        u = NET(z)
        return torch.where((z == X[4]).flatten(1).all(1, keepdim=True), torch.nan, u)

    with pytest.raises(ValueError, match="not finite at sample 4"):
        risk.empirical(net, X, Y)
    with pytest.raises(ValueError, match="not finite at sample 4"):
        risk.mixup(net, X, Y, 1.0)

    def beyond(z):
        return NET(z) / (z.flatten(1).norm(dim=1, keepdim=True) > 0.8)

    with pytest.raises(ValueError, match="not finite at a mixture of samples"):
        risk.mixup(beyond, X, Y, 1.0)


def test_other_wrong_input() -> None:
    with pytest.raises(ValueError, match="unknown loss 'hinge'; known are cross_entropy, logistic, squared_error"):
        risk.empirical(NET, X, Y, loss="hinge")
    for alpha in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=r"\[0, inf\]"):
            risk.mixup(NET, X, Y, alpha)
    with pytest.raises(ValueError, match="at least 20, got 3"):
        risk.mixup(NET, X, Y, 1.0, samples=3)
    with pytest.raises(ValueError, match="chunk_size must be a positive integer"):
        risk.mixup(NET, X, Y, 1.0, chunk_size=0)
    with pytest.raises(ValueError, match="at least 2 probes"):
        risk.quadratic(NET, X, Y, 1.0, probes=1)
    targets = to_values(Y, 3, torch.float64)
    with pytest.warns(UserWarning, match="piecewise linear"):
        risk.quadratic(NET, X, targets, 1.0, loss=lambda y, u: (y - u).abs().sum())
    with pytest.warns(UserWarning, match="do not exist apart"):
        risk.quadratic(NET, X, targets, 1.0, loss=lambda y, u: torch.relu(1 - y * u).sum())
    with pytest.raises(ValueError, match="chunk_size must be a positive integer"):
        risk.quadratic(NET, X, Y, 1.0, chunk_size=0)
    with pytest.raises(ValueError, match="known are"):
        risk.empirical(NET, X, Y, loss=["mse"])
    with pytest.raises(ValueError, match="no finite second derivative at sample 0"):
        risk.quadratic(lambda z: 0 * NET(z), X, targets, 1.0, loss=lambda y, u: u.abs().sqrt().sum())
    with pytest.raises(ValueError, match="must return one number"):
        risk.empirical(NET, X, targets, loss=lambda y, u: y - u)
    with pytest.raises(ValueError, match="built-in"):
        risk.unmixed(NET, X, targets, 1.0, loss=lambda y, u: (y - u).square().sum())


class Attention(nn.Module):
    """One head of attention over the rows of a sample, fused by PyTorch or written out."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project, self.head, self.fused = nn.Linear(2, 6), nn.Linear(4, 3), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, dim=-1)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1))[:, 0]
        else:
            mixed = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(2), -1) @ v
        return self.head(mixed.flatten(1))


def test_fused_attention_has_second_derivatives() -> None:
    _, x, y = problem("cross_entropy")
    terms = [risk.quadratic(Attention(fused).double(), x, y, 1.0) for fused in (True, False)]
    for name in ("base", "r1", "r2", "r3", "total"):
        torch.testing.assert_close(getattr(terms[0], name), getattr(terms[1], name))
    assert terms[0].r2 != 0


def test_networks_that_write_to_their_input() -> None:
    net, x, y = problem("cross_entropy")
    writing = nn.Sequential(nn.ReLU(inplace=True), net)
    before, expected = x.clone(), nn.Sequential(nn.ReLU(), net)
    torch.testing.assert_close(risk.empirical(writing, x, y), risk.empirical(expected, x, y))
    torch.testing.assert_close(risk.quadratic(writing, x, y, 1.0).total, risk.quadratic(expected, x, y, 1.0).total)
    assert torch.equal(x, before)


def test_dtypes_that_do_not_fit() -> None:
    net, x, y = problem("cross_entropy")
    with pytest.raises(TypeError, match=r"x is torch\.float32 and the network's parameters are torch\.float64"):
        risk.empirical(net, x.float(), y)
