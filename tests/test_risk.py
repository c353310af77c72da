"""Risks against dense references, closed forms and each other."""

import math
from contextlib import nullcontext

import pytest
import torch
from dense import dense_quadratic, detached
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import SAMPLE_LOSSES, assert_terms, named, problem
from scipy.integrate import quad
from torch import nn

from mixreg import DataMoments, risk
from mixreg.losses.targets import to_values


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
    with pytest.warns(UserWarning, match="interpolate so few") if len(x) <= x[0].numel() else nullcontext():
        found = risk.quadratic(net, x, values, 0.7, loss=loss)
    assert_terms(found, expected, 1e-7)


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
        risk.unmixed(net, x, y, 0).total,
    ):
        assert value.item() == pytest.approx(expected, abs=1e-12)


def test_the_share_of_mixup_s_effect_that_the_expansions_capture() -> None:
    """Erratum 2: it tends to 1 neither as α → 0, where both sides tend to ERM, nor as α → ∞, as the paper says."""
    net, x, y = problem("cross_entropy")
    x = 4 * x
    values = to_values(y, 3, torch.float64)
    plain = risk.empirical(net, x, y)

    def mixed(share: float) -> torch.Tensor:
        pairs = [(i, j) for i in range(9) for j in range(9)]
        points, targets = (torch.stack([(1 - share) * t[i] + share * t[j] for i, j in pairs]) for t in (x, values))
        return nn.functional.cross_entropy(net(points), targets).detach()

    def shares(alpha: float) -> list[float]:
        effect = risk.mixup(net, x, y, alpha) - plain
        return [
            ((expansion(net, x, y, alpha).total - plain) / effect).item()
            for expansion in (risk.quadratic, risk.unmixed)
        ]

    # As α → 0: Mixup's effect by an integral over shares, the expansions' by their written-out references.
    def density(s: float) -> float:
        return (mixed(s) - plain).item() / (s * (1 - s))

    effect = quad(density, 1e-9, 0.5, epsabs=1e-10)[0]
    terms = detached(dense_quadratic(net, x, values, 1e-5, SAMPLE_LOSSES["cross_entropy"]))
    modified = (terms["base"] + terms["joint"] + terms["r2"] + terms["r4"] - plain.item()) / 1e-5
    unmixed = (plain_unmixed(net, x, y, 1e-5) - plain.item()) / 1e-5
    assert shares(1e-6) == pytest.approx([modified / effect, unmixed / effect], rel=1e-3)
    assert all(abs(share - 1) > 0.01 for share in shares(1e-6))
    # As α → ∞: all mixtures are midpoints.
    effect = (mixed(0.5) - plain).item()
    terms = detached(dense_quadratic(net, x, values, 1e9, SAMPLE_LOSSES["cross_entropy"]))
    modified = terms["base"] + terms["joint"] + terms["r2"] + terms["r4"] - plain.item()
    unmixed = plain_unmixed(net, x, y, 1e9) - plain.item()
    assert shares(math.inf) == pytest.approx([modified / effect, unmixed / effect], rel=1e-3)
    assert all(abs(share - 1) > 0.01 for share in shares(math.inf))


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
        got = risk.unmixed(net, x, y, alpha)
        assert got.total.item() == pytest.approx(plain_unmixed(net, x, y, alpha), rel=1e-10)
    # Squared error: quadratic in x for a linear network, so that the expansion is exact.
    net, x, y = problem("squared_error")
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    got = risk.unmixed(linear, x, y, 0.6, loss="squared_error").total
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


@pytest.mark.parametrize("sharpness", [10.0, 100.0])
def test_confident_networks_give_finite_terms_that_add_up(sharpness) -> None:
    net, x, y = problem("cross_entropy")
    for q in (
        risk.quadratic(lambda z: sharpness * net(z), x, y, 1.0),
        risk.quadratic(lambda z: sharpness * net.float()(z), x.float(), y, 1.0),
    ):
        assert all(math.isfinite(getattr(q, name)) for name in ("base", "r1", "r2", "r3", "r4", "joint", "total"))
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
