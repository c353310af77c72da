"""The quadratic risk of confident networks and of losses that are flat in places, against fifty digits."""

import math
import warnings

import mpmath
import pytest
import torch
from dense import theta_moments
from problems import problem

from mixreg import DataMoments, risk
from mixreg.losses import BUILT_IN
from mixreg.losses.targets import to_values

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(7, 2, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.arange(7) % 3
WEIGHT = torch.randn(3, 2, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(3, generator=GENERATOR, dtype=torch.float64)
TERMS = ("base", "r1", "r3", "joint")


def linear(sharpness: float):
    return lambda z: sharpness * (z @ WEIGHT.T + BIAS)


def matrix(values) -> mpmath.matrix:
    return mpmath.matrix(values.tolist())


def in_fifty_digits(sharpness: float, y: torch.Tensor, alpha: float, loss: str) -> dict[str, list]:
    """Theorem 3 for a linear network, written out: base, R1, R3 and R1 + R3 of every sample."""
    with mpmath.workdps(50):
        mean, var, gamma2 = (mpmath.mpf(value) for value in theta_moments(alpha))
        n, (c, d) = len(X), WEIGHT.shape
        x, targets = matrix(X), matrix(y)
        x_mean = [sum(x[i, j] for i in range(n)) / n for j in range(d)]
        y_mean = [sum(targets[i, k] for i in range(n)) / n for k in range(c)]
        a = [mpmath.matrix([x[i, j] - x_mean[j] for j in range(d)]) for i in range(n)]
        b = [mpmath.matrix([targets[i, k] - y_mean[k] for k in range(c)]) for i in range(n)]
        sxx = sum((v * v.T for v in a), mpmath.zeros(d)) / n
        sxy = sum((v * w.T for v, w in zip(a, b, strict=True)), mpmath.zeros(d, c)) / n
        jacobian = mpmath.mpf(sharpness) * matrix(WEIGHT)
        found: dict[str, list] = {name: [] for name in TERMS}
        for i in range(n):
            xx, xy = var * a[i] * a[i].T + gamma2 * sxx, var * a[i] * b[i].T + gamma2 * sxy
            u = jacobian * (mpmath.matrix(x_mean) + mean * a[i]) + mpmath.mpf(sharpness) * mpmath.matrix(BIAS.tolist())
            target = mpmath.matrix(y_mean) + mean * b[i]
            odds = [mpmath.exp(value) for value in u]
            if loss == "cross_entropy":
                p = mpmath.matrix(odds) / sum(odds)
                uu, inverse = mpmath.diag(p) - p * p.T, mpmath.diag([1 / value for value in p])
                base = mpmath.log(sum(odds)) - sum(t * value for t, value in zip(target, u, strict=True))
            else:
                uu, inverse = mpmath.diag(odds), mpmath.diag([1 / value for value in odds])
                base = sum(odd - t * value for odd, t, value in zip(odds, target, u, strict=True))
            best = inverse * xy.T * xx**-1
            gap = jacobian - best
            found["base"].append(base)
            found["r1"].append(trace(uu * gap * xx * gap.T) / 2)
            found["r3"].append(-trace(xy.T * xx**-1 * xy * inverse) / 2)
            found["joint"].append(trace(uu * jacobian * xx * jacobian.T) / 2 - trace(jacobian * xy))
        return found


def trace(m: mpmath.matrix) -> mpmath.mpf:
    return sum(m[k, k] for k in range(m.rows))


def assert_same(q: risk.Quadratic, exact: dict[str, list], names=TERMS, tolerance: float = 1e-10) -> None:
    for name in names:
        for got, expected in zip(q.per_sample[name].tolist(), exact[name], strict=True):
            assert got == pytest.approx(float(expected), rel=tolerance, abs=1e-14), name
        assert getattr(q, name).item() == pytest.approx(float(sum(exact[name]) / 7), rel=tolerance, abs=1e-14), name
    assert q.total.item() == pytest.approx(float(sum(exact["base"]) + sum(exact["joint"])) / 7, rel=tolerance)
    assert q.r2 == 0
    assert q.r4 == 0


@pytest.mark.parametrize("alpha", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("sharpness", [1.0, 8.0, 30.0, 100.0])
def test_cross_entropy_has_all_terms_however_confident(sharpness, alpha) -> None:
    """R1 and R3 reach 1e100 and cancel; their sum is a few units, and known to ten digits."""
    exact = in_fifty_digits(sharpness, to_values(LABELS, 3, torch.float64), alpha, "cross_entropy")
    for size in (1, 3, None):
        assert_same(risk.quadratic(linear(sharpness), X, LABELS, alpha, chunk_size=size), exact)


def test_where_no_float_holds_them_r1_and_r3_are_nan_and_nothing_else_is() -> None:
    exact = in_fifty_digits(1000.0, to_values(LABELS, 3, torch.float64), 1.0, "cross_entropy")
    with pytest.warns(UserWarning, match=r"R1 and R3 do not exist apart at \d of 7 samples.*so confident"):
        q = risk.quadratic(linear(1000.0), X, LABELS, 1.0)
    assert math.isnan(q.r1)
    assert math.isnan(q.r3)
    assert_same(q, exact, ("base", "joint"))
    # Only those samples are NaN whose own terms overflow.
    for r1, r3, expected in zip(q.per_sample["r1"], q.per_sample["r3"], exact["r3"], strict=True):
        assert math.isnan(r1) == math.isnan(r3)
        if abs(expected) < 1e290:
            assert float(r3) == pytest.approx(float(expected), rel=1e-9)
        else:
            assert math.isnan(r3)
    # Without noise there is nothing to divide.
    q = risk.quadratic(linear(1000.0), X, LABELS, 0.0)
    assert q.r1 == q.r3 == q.joint == 0


@pytest.mark.parametrize("sharpness", [1.0, 12.0, 40.0])
def test_poisson_rates_of_any_size(sharpness) -> None:
    counts = torch.poisson(torch.ones(7, 3), generator=torch.Generator().manual_seed(0)).double()
    exact = in_fifty_digits(sharpness, counts, 1.0, "poisson")
    assert min(float(value) for value in exact["r3"]) < -0.01

    def poisson(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.poisson_nll_loss(u, y, reduction="sum")

    for size in (1, None):
        assert_same(risk.quadratic(linear(sharpness), X, counts, 1.0, poisson, chunk_size=size), exact)


def test_huber_does_not_depend_on_chunks() -> None:
    net, x, y = problem("squared_error")
    y = y * torch.tensor([1.0, 30.0, 1.0, 1.0, 30.0, 30.0, 1.0, 30.0, 1.0], dtype=torch.float64).unsqueeze(1)

    def huber(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.huber_loss(u, y, reduction="sum", delta=1.0)

    whole = risk.quadratic(net, x, y, 1.0, huber)
    for size in (1, 2, 5):
        q = risk.quadratic(net, x, y, 1.0, huber, chunk_size=size)
        for name in ("base", "r1", "r2", "r3", "r4", "joint", "total"):
            assert getattr(q, name).item() == pytest.approx(getattr(whole, name).item(), rel=1e-12), name
    # Some outputs are in the flat part, some are not.
    assert whole.r1 + whole.r3 == pytest.approx(whole.joint.item(), rel=1e-9)
    assert whole.joint != 0
    # All of them in the flat part: the loss is linear here, and what it amounts to is said.
    with pytest.warns(UserWarning, match="piecewise linear at these samples"):
        flat = risk.quadratic(net, x, y + 1000, 1.0, huber)
    assert flat.r1 == flat.r3 == flat.joint == flat.r4 == 0
    assert math.isfinite(flat.total)


def test_losses_that_are_linear_in_the_outputs() -> None:
    net, x, y = problem("squared_error")
    with pytest.warns(UserWarning, match="R1 and R3 do not exist apart.*linear in the outputs"):
        q = risk.quadratic(net, x, y, 1.0, lambda y, u: (y * u).sum())
    assert math.isnan(q.r1)
    assert math.isnan(q.r3)
    # E y·u of the noise: base + tr(J B) + R2.
    assert q.joint != 0
    assert q.total.item() == pytest.approx((q.base + q.joint + q.r2 + q.r4).item())
    assert q.per_sample["joint"].mean().item() == pytest.approx(q.joint.item())


def test_single_precision_networks() -> None:
    torch.manual_seed(0)
    net, x, y = problem("cross_entropy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precise = risk.quadratic(lambda z: 40 * net(z), x, y, 1.0)
        single = risk.quadratic(lambda z: 40 * net.float()(z), x.float(), y, 1.0)
    for name in ("base", "joint", "r2", "total"):
        assert getattr(single, name).item() == pytest.approx(getattr(precise, name).item(), rel=1e-4), name


def test_second_derivatives_keep_their_digits() -> None:
    u = torch.tensor([[40.0, 0.0, -3.0], [-700.0, 1.0, 0.5], [0.1, 0.2, 0.3]], dtype=torch.float64)
    y = torch.full_like(u, 1 / 3)
    got = BUILT_IN["cross_entropy"].uu(y, u)
    with mpmath.workdps(400):
        for i, row in enumerate(u.tolist()):
            odds = [mpmath.exp(value) for value in row]
            p = [odd / sum(odds) for odd in odds]
            for j in range(3):
                for k in range(3):
                    expected = p[j] - p[j] ** 2 if j == k else -p[j] * p[k]
                    assert float(got[i, j, k]) == pytest.approx(float(expected), rel=1e-13, abs=1e-305)
    for name in ("cross_entropy", "logistic"):
        loss = BUILT_IN[name]
        inner = u[[0, 2]].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda v, loss=loss: loss.uu(y[:2], v), inner, atol=1e-8)
        uu, inverse = loss.uu(y, u), loss.generalised_inverse(y, u)
        inside = uu @ inverse @ uu
        torch.testing.assert_close(inside, uu, rtol=1e-12, atol=0 if name == "logistic" else 1e-300)


def test_a_diagonal_matrix_is_inverted_entry_by_entry() -> None:
    u = torch.tensor([[-40.0, 5.0], [0.0, 30.0]], dtype=torch.float64)
    from mixreg.losses.derivatives import CustomLoss

    loss = CustomLoss(lambda y, u: (u.exp() - y * u).sum(), torch.Size([2]), torch.Size([2]))
    torch.testing.assert_close(loss.uu_inverse(u, u), torch.diag_embed((-u).exp()), rtol=1e-14, atol=0)


def test_printing_does_not_list_the_samples() -> None:
    net, x, y = problem("cross_entropy")
    q = risk.quadratic(net, x, y, 1.0)
    assert "tensor" not in repr(q)
    assert len(repr(q)) < 200
    for name in ("base", "r1", "r2", "r3", "r4", "joint", "total"):
        assert f"{name}={float(getattr(q, name)):.6g}" in repr(q)
    assert "9 samples" in repr(q)


def test_few_samples_without_moments_are_warned_of() -> None:
    net, x, y = problem("cross_entropy", n=4, shape=(3, 3))
    with pytest.warns(UserWarning, match=r"4 samples of 9 coordinates.*DataMoments\(covariance=True\)"):
        own = risk.quadratic(net, x, y, 1.0)
    moments = DataMoments(num_classes=3, covariance=True)
    moments.update(x, y)
    given = risk.quadratic(net, x, y, 1.0, moments=moments)
    assert given.total.item() == pytest.approx(own.total.item(), rel=1e-10)
    risk.quadratic(net, x, y, 0.0)  # without noise nothing is fitted
