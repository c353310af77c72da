"""Risks against dense references, closed forms and each other."""

import math

import pytest
import torch
from dense import dense_quadratic, detached
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mixreg import DataMoments, losses, risk
from mixreg.least_squares import linear_mixup_risk, ordinary_least_squares, printed_linear_mixup_risk
from mixreg.targets import to_values

SAMPLE_LOSSES = {
    "cross_entropy": lambda y, u: torch.logsumexp(u, 0) - (y * u).sum(),
    "logistic": lambda y, u: (torch.log1p(torch.exp(-u.abs())) + u.clamp(min=0) - y * u).sum(),
    "squared_error": lambda y, u: 0.5 * ((y - u) ** 2).sum(),
    "custom": lambda y, u: torch.cosh(u - 0.5 * y).sum() + 0.1 * (y**2 * u**2).sum(),
}


def problem(loss: str, n: int = 9, shape=(2, 2), seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 6), nn.Tanh(), nn.Linear(6, 3)).double()
    if loss == "cross_entropy":
        y = torch.randint(3, (n,), generator=generator)
    elif loss == "logistic":
        y = torch.randint(2, (n, 3), generator=generator).double()
    else:
        y = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return net, x, y


def named(loss: str):
    return SAMPLE_LOSSES["custom"] if loss == "custom" else loss


def assert_terms(q: risk.Quadratic, expected: dict[str, float], tolerance: float = 1e-9) -> None:
    for name in ("base", "r1", "r2", "r3", "r4"):
        value = getattr(q, name).item()
        assert value == pytest.approx(expected[name], rel=tolerance, abs=1e-13), name
    total = expected["base"] + expected["joint"] + expected["r2"] + expected["r4"]
    assert q.total.item() == pytest.approx(total, rel=tolerance)
    assert (q.r1 + q.r3).item() == pytest.approx(expected["joint"], rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_theorem_1(loss, alpha) -> None:
    net, x, y = problem(loss)
    left = risk.mixup(net, x, y, alpha, loss=named(loss))
    right = risk.perturbed(net, x, y, alpha, loss=named(loss))
    assert abs(left - right) <= 1e-10


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0, 8.0])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_every_term_equals_the_dense_reference(loss, alpha) -> None:
    net, x, y = problem(loss)
    values = to_values(y, 3, torch.float64)
    expected = detached(dense_quadratic(net, x, values, alpha, SAMPLE_LOSSES[loss]))
    assert_terms(risk.quadratic(net, x, y, alpha, loss=named(loss)), expected)
    # The same loss as a callable goes through automatic differentiation.
    assert_terms(risk.quadratic(net, x, values, alpha, loss=SAMPLE_LOSSES[loss]), expected)
    assert_terms(risk.quadratic(net, x, y, alpha, loss=named(loss), chunk_size=2), expected)


@pytest.mark.parametrize("activation", [nn.SiLU, nn.GELU, nn.Softplus, nn.ELU, nn.Sigmoid])
def test_every_activation(activation) -> None:
    _, x, y = problem("cross_entropy")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), activation(), nn.Linear(5, 3)).double()
    expected = detached(dense_quadratic(net, x, to_values(y, 3, torch.float64), 0.6, SAMPLE_LOSSES["cross_entropy"]))
    assert_terms(risk.quadratic(net, x, y, 0.6), expected)


def degenerate(kind: str):
    net, x, y = problem("cross_entropy", n=9)
    if kind == "constant coordinates":
        x[:, 0] = 1.5
    elif kind == "more coordinates than samples":
        net, x, y = problem("cross_entropy", n=4, shape=(3, 3))
    elif kind == "all-equal labels":
        y = torch.ones_like(y)
    elif kind == "one sample":
        x, y = x[:1], y[:1]
    elif kind == "equal samples":
        x = x[:1].expand(9, -1, -1).clone()
    return net, x, y


@pytest.mark.parametrize(
    "kind",
    ["constant coordinates", "more coordinates than samples", "all-equal labels", "one sample", "equal samples"],
)
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_singular_covariances(kind, loss) -> None:
    net, x, y = degenerate(kind)
    values = to_values(y, 3, torch.float64)
    expected = detached(dense_quadratic(net, x, values, 0.7, SAMPLE_LOSSES[loss]))
    assert all(math.isfinite(v) for v in expected.values())
    assert_terms(risk.quadratic(net, x, values, 0.7, loss=loss), expected, 1e-7)


def test_moments_of_other_data() -> None:
    net, x, y = problem("cross_entropy")
    # The moments' data does not vary in one coordinate, in which the samples do: outside the covariance's range.
    other = torch.randn(7, 2, 2, dtype=torch.float64)
    other[:, 1, 1] = 0.3
    labels = torch.arange(7) % 3
    moments = DataMoments(num_classes=3, covariance=True)
    moments.update(other, labels)
    values = to_values(y, 3, torch.float64)
    data = other, to_values(labels, 3, torch.float64)
    expected = detached(dense_quadratic(net, x, values, 1.0, SAMPLE_LOSSES["cross_entropy"], data))
    assert_terms(risk.quadratic(net, x, y, 1.0, moments=moments), expected)
    means_only = DataMoments(num_classes=3)
    means_only.update(other, labels)
    with pytest.raises(ValueError, match="covariance=True"):
        risk.quadratic(net, x, y, 1.0, moments=means_only)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), alpha=st.floats(0.02, 30))
def test_parts_add_up(seed, alpha) -> None:
    net, x, y = problem("cross_entropy", seed=seed)
    q = risk.quadratic(net, x, y, alpha)
    assert (q.base + q.r1 + q.r2 + q.r3 + q.r4).item() == pytest.approx(q.total.item(), rel=1e-9)
    assert q.r1 >= 0
    assert q.r3 <= 0
    assert q.per_sample["r1"].mean().item() == pytest.approx(q.r1.item())
    assert q.per_sample["r1"].shape == (9,)


def test_alpha_zero_is_the_empirical_risk() -> None:
    net, x, y = problem("cross_entropy")
    expected = nn.functional.cross_entropy(net(x), y).item()
    for value in (
        risk.empirical(net, x, y),
        risk.mixup(net, x, y, 0),
        risk.perturbed(net, x, y, 0),
        risk.quadratic(net, x, y, 0).total,
        risk.quadratic(net, x, y, 0, expansion="unmixed").total,
    ):
        assert value.item() == pytest.approx(expected, abs=1e-12)


def test_the_expansion_becomes_exact_for_small_alpha_and_not_for_large() -> None:
    # Erratum 2: the paper says α → ∞.
    net, x, y = problem("cross_entropy")
    gaps = {a: abs(risk.quadratic(net, x, y, a).total - risk.mixup(net, x, y, a)).item() for a in (1e-4, 1e-2, 1e3)}
    assert gaps[1e-4] < 0.02 * gaps[1e-2]
    assert gaps[1e3] > 10 * gaps[1e-4]


def plain_unmixed(net, x, y, alpha) -> float:
    """Zhang et al. (2021), Lemma 3.1, for cross-entropy: E over λ ~ Beta(α+1, α) and all partners, second order."""
    first, second = alpha / (2 * alpha + 1), alpha / (2 * (2 * alpha + 1))
    total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            step = x[j] - x[i]

            def along(t, i=i, step=step):
                u = net((x[i] + t * step).unsqueeze(0))[0]
                return torch.logsumexp(u, 0) - u[y[i]]

            zero = torch.zeros((), dtype=torch.float64)
            slope = torch.func.grad(along)
            total += along(zero) + first * slope(zero) + 0.5 * second * torch.func.grad(slope)(zero)
    return total.detach().item() / len(x) ** 2


def test_the_unmixed_expansion() -> None:
    net, x, y = problem("cross_entropy")
    for alpha in (0.1, 1.0, 10.0):
        got = risk.quadratic(net, x, y, alpha, expansion="unmixed")
        assert got.total.item() == pytest.approx(plain_unmixed(net, x, y, alpha), rel=1e-10)
    # Squared error: quadratic in x for a linear network, so that the expansion is exact.
    net, x, y = problem("squared_error")
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    got = risk.quadratic(linear, x, y, 0.6, loss="squared_error", expansion="unmixed").total
    assert got.item() == pytest.approx(risk.mixup(linear, x, y, 0.6, loss="squared_error").item(), rel=1e-11)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 2.0, float("inf")])
def test_monte_carlo_is_unbiased_with_an_honest_error(alpha) -> None:
    net, x, y = problem("cross_entropy", n=30)
    exact = risk.mixup(net, x, y, alpha)
    generator = torch.Generator().manual_seed(1)
    scores = []
    for _ in range(60):
        estimate = risk.mixup(net, x, y, alpha, samples=2000, generator=generator)
        scores.append(((estimate.value - exact) / estimate.stderr).item())
    scores = torch.tensor(scores)
    assert abs(scores.mean()) <= 4 / math.sqrt(60)
    assert 0.6 < scores.std() < 1.6


def test_variance_reduction_reduces_variance() -> None:
    net, x, y = problem("squared_error", n=40)
    generator = torch.Generator().manual_seed(1)
    errors = [risk.mixup(net, x, y, 1.0, "squared_error", samples=4000, generator=generator).stderr for _ in range(5)]
    values = []
    for _ in range(4000):
        i, j = torch.randint(40, (2,), generator=generator)
        lam = torch.rand((), generator=generator, dtype=torch.float64)
        u = net((lam * x[i] + (1 - lam) * x[j]).unsqueeze(0))[0]
        values.append((0.5 * (lam * y[i] + (1 - lam) * y[j] - u).square().sum()).item())
    plain = torch.tensor(values).std() / math.sqrt(4000)
    assert torch.stack(errors).mean() < 0.8 * plain


def test_randomised_r2_reports_its_error() -> None:
    net, x, y = problem("cross_entropy")
    exact = risk.quadratic(net, x, y, 1.0)
    assert exact.r2_stderr == 0
    generator = torch.Generator().manual_seed(0)
    estimates = [risk.quadratic(net, x, y, 1.0, exact_directions=2, probes=6, generator=generator) for _ in range(80)]
    scores = torch.stack([(q.r2 - exact.r2) / q.r2_stderr for q in estimates])
    assert abs(torch.stack([q.r2 for q in estimates]).mean() - exact.r2) <= 4 * torch.stack(
        [q.r2 for q in estimates]
    ).std() / math.sqrt(80)
    assert 0.5 < scores.std() < 2.0
    assert estimates[0].r1 == exact.r1


@pytest.mark.parametrize("sharpness", [10.0, 100.0, 1000.0])
def test_confident_networks_give_finite_terms_that_add_up(sharpness) -> None:
    net, x, y = problem("cross_entropy")
    for q in (
        risk.quadratic(lambda z: sharpness * net(z), x, y, 1.0),
        risk.quadratic(lambda z: sharpness * net.float()(z), x.float(), y, 1.0),
    ):
        assert all(math.isfinite(getattr(q, name)) for name in ("base", "r1", "r2", "r3", "r4", "total"))
        assert q.r1 >= 0
        assert q.r3 <= 0
        net.double()
    if sharpness == 10:
        named = risk.quadratic(lambda z: 10 * net(z), x, y, 1.0)
        values = to_values(y, 3, torch.float64)
        own = risk.quadratic(lambda z: 10 * net(z), x, values, 1.0, loss=SAMPLE_LOSSES["cross_entropy"])
        assert own.r1.item() == pytest.approx(named.r1.item(), rel=1e-6)
        assert own.r3.item() == pytest.approx(named.r3.item(), rel=1e-6)


@pytest.mark.parametrize("ratio", [1e-8, 1e4, 1e8])
def test_units_of_the_inputs_do_not_matter(ratio) -> None:
    net, x, y = problem("cross_entropy")
    scale = torch.tensor([[1.0, ratio], [1.0, 1.0]], dtype=torch.float64)
    plain, scaled = risk.quadratic(net, x, y, 1.0), risk.quadratic(lambda z: net(z / scale), x * scale, y, 1.0)
    for name in ("base", "r1", "r2", "r3", "total"):
        assert getattr(scaled, name).item() == pytest.approx(getattr(plain, name).item(), rel=1e-9)


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
        auto = losses.CustomLoss(SAMPLE_LOSSES[name], torch.Size([3]), torch.Size([3]))
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
        ((lambda z: NET(z) + (z[:, :1, 0] > 1e9) * 0, [X], Y), TypeError, "x must be a tensor, got list"),
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
    with pytest.raises(ValueError, match="known are 'modified' and 'unmixed'"):
        risk.quadratic(NET, X, Y, 1.0, expansion="taylor")
    with pytest.raises(ValueError, match="at least 20, got 3"):
        risk.mixup(NET, X, Y, 1.0, samples=3)
    with pytest.raises(ValueError, match="chunk_size must be a positive integer"):
        risk.mixup(NET, X, Y, 1.0, chunk_size=0)
    with pytest.raises(ValueError, match="at least 2 probes"):
        risk.quadratic(NET, X, Y, 1.0, probes=1)
    targets = to_values(Y, 3, torch.float64)
    with pytest.raises(ValueError, match="piecewise linear"):
        risk.quadratic(NET, X, targets, 1.0, loss=lambda y, u: (y - u).abs().sum())
    with pytest.raises(ValueError, match="do not exist apart"):
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
        risk.quadratic(NET, X, targets, 1.0, loss=lambda y, u: (y - u).square().sum(), expansion="unmixed")


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
