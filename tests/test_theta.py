"""The law of θ against 50-digit arithmetic and the exact distribution function."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import betainc, betaincinv

from mixreg import Theta

MOMENTS = ("mean", "shrinkage", "var", "gamma2")


def reference(alpha: float) -> dict[str, mpmath.mpf]:
    """θ̄, 1 − θ̄, σ², γ² from the formulae of the paper in 50 digits (80 to be safe from cancellation)."""
    with mpmath.workdps(80):
        a = mpmath.mpf(alpha)
        g = mpmath.exp(mpmath.loggamma(a + mpmath.mpf(1) / 2) - mpmath.loggamma(a + 1)) / mpmath.sqrt(mpmath.pi)
        mean = (1 + g) / 2
        var = 1 / (4 * (2 * a + 1)) - (mean - mpmath.mpf(1) / 2) ** 2
        return {"mean": mean, "shrinkage": 1 - mean, "var": var, "gamma2": var + (1 - mean) ** 2}


def relative_error(alpha: float, moment: str) -> float:
    exact = reference(alpha)[moment]
    return float(abs(mpmath.mpf(getattr(Theta(alpha), moment)) / exact - 1))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("low", "high", "bound"), [(-3, 3, 1e-12), (-6, 6, 1e-12)])
def test_moments_are_accurate(moment: str, low: int, high: int, bound: float) -> None:
    alphas = [*np.logspace(low, high, 121), 0.125, np.nextafter(0.125, 0), 1.0, np.nextafter(1.0, 0)]
    assert max(relative_error(float(a), moment) for a in alphas) <= bound


def test_one_minus_mean_by_subtraction_is_accurate_enough() -> None:
    for alpha in np.logspace(-6, 6, 61):
        exact = reference(float(alpha))["shrinkage"]
        error = abs(mpmath.mpf(1 - Theta(float(alpha)).mean) / exact - 1)
        assert error <= (1e-12 if 1e-3 <= alpha <= 1e3 else 1e-8)


def test_reference_moments_are_those_of_the_truncated_beta() -> None:
    # The closed forms themselves, against integrals over the density of s = 1 − θ on [0, ½].
    for alpha in (0.25, 0.5, 1.0, 2.0, 5.0):
        with mpmath.workdps(30):
            mass, first, second = (
                mpmath.quad(lambda s, k=k, a=alpha: s**k * (s * (1 - s)) ** (a - 1), [0, 0.5]) for k in range(3)
            )
        assert Theta(alpha).shrinkage == pytest.approx(float(first / mass), rel=1e-6)
        assert Theta(alpha).gamma2 == pytest.approx(float(second / mass), rel=1e-6)


def test_limits_are_exact() -> None:
    assert [getattr(Theta(0), m) for m in MOMENTS] == [1.0, 0.0, 0.0, 0.0]
    assert [getattr(Theta(math.inf), m) for m in MOMENTS] == [0.5, 0.5, 0.0, 0.25]
    assert math.copysign(1, Theta(0).var) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_derivatives_in_alpha(moment: str) -> None:
    for alpha in (1e-6, 1e-3, 0.1, 0.1249, 0.1251, 0.7, 0.999, 1.001, 3.0, 50.0, 1e4):
        a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(getattr(Theta(a), moment), a, create_graph=True)
        (second,) = torch.autograd.grad(first, a)
        for order, value in ((1, first), (2, second)):
            with mpmath.workdps(60):
                exact = mpmath.diff(lambda z: reference(z)[moment], mpmath.mpf(alpha), order, h=alpha * 1e-12)
            assert value.item() == pytest.approx(float(exact), rel=1e-7)


def test_derivatives_are_finite_at_the_limits() -> None:
    a = torch.tensor([0.0, math.inf], dtype=torch.float64, requires_grad=True)
    theta = Theta(a)
    total = theta.mean + theta.var + theta.gamma2 + theta.shrinkage
    (slope,) = torch.autograd.grad(total.sum(), a)
    assert torch.isfinite(slope).all()


def test_tensor_alpha_keeps_shape_and_dtype() -> None:
    a = torch.tensor([[0.2, 1.0, 4.0]])
    assert Theta(a).mean.shape == (1, 3)
    assert Theta(a).mean.dtype == torch.float32
    assert Theta(a.double()).var.dtype == torch.float64
    assert isinstance(Theta(1).mean, float)
    assert Theta(torch.tensor(1.0, dtype=torch.float64)).mean.item() == Theta(1.0).mean


@pytest.mark.parametrize("alpha", [1e-6, 1e-4, 1e-3, 0.1, 0.5, 1.0, 3.0, 100.0, 1e6])
def test_samples_follow_the_exact_distribution(alpha: float, generator: torch.Generator) -> None:
    n = 200_000
    points = np.array([1e-300, 1e-100, 1e-30, 1e-10, 1e-4, 0.01, 0.1, 0.3, 0.4, 0.499, 0.4995, 0.5, 0.5005, 0.6, 0.9])
    exact = betainc(alpha, alpha, points)
    drawn = np.sort(Theta(alpha).sample_lambda((n,), generator, torch.float64).numpy())
    below = np.searchsorted(drawn, points, side="right") / n
    error = np.sqrt(exact * (1 - exact) / n)
    assert (np.abs(below - exact) <= 4.5 * error + 1e-9).all()

    # θ ≥ t exactly when λ is outside (1 − t, t).
    thresholds = np.array([0.5005, 0.6, 0.9, 0.9999])
    exact = 2 * betainc(alpha, alpha, 1 - thresholds)
    drawn = Theta(alpha).sample((n,), generator, torch.float64).numpy()
    above = (drawn[:, None] >= thresholds).mean(0)
    assert (np.abs(above - exact) <= 4.5 * np.sqrt(exact * (1 - exact) / n) + 1e-9).all()
    assert drawn.min() >= 0.5
    assert drawn.max() <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.02, 0.03, 0.1, 0.2, 0.5, 1.0, 3.0, 1e6, 1e7])
def test_shares_follow_the_exact_distribution(alpha: float, dtype: torch.dtype, generator: torch.Generator) -> None:
    """At its own quantiles, on both sides of where the way of drawing changes."""
    n = 200_000
    probabilities = np.array([1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999])
    quantiles = betaincinv(alpha, alpha, probabilities / 2)
    held = quantiles > torch.finfo(dtype).tiny
    drawn = Theta(alpha).sample_share((n,), generator, dtype)
    assert drawn.dtype == dtype
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 0.5
    below = (drawn.double().numpy()[:, None] <= quantiles).mean(0)
    error = np.sqrt(probabilities * (1 - probabilities) / n)
    assert held.sum() >= 5
    assert (np.abs(below - probabilities) <= 4.5 * error)[held].all()


def test_samples_have_the_moments(generator: torch.Generator) -> None:
    for alpha in (0.05, 0.4, 1.0, 8.0):
        theta = Theta(alpha)
        share = theta.sample_share((400_000,), generator, torch.float64)
        for power, exact in ((1, theta.shrinkage), (2, theta.gamma2)):
            values = share**power
            assert abs(values.mean() - exact) <= 4.5 * values.std() / math.sqrt(len(values))


def test_samples_at_the_limits(generator: torch.Generator) -> None:
    ends = Theta(0).sample_lambda((10_000,), generator)
    assert set(ends.tolist()) == {0.0, 1.0}
    assert abs(ends.mean() - 0.5) < 0.025
    assert (Theta(0).sample((100,), generator) == 1).all()
    assert (Theta(math.inf).sample_lambda((100,), generator) == 0.5).all()


def test_samples_are_reproducible_and_typed(generator: torch.Generator) -> None:
    first, second = (Theta(0.3).sample((3, 4), torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (3, 4)
    assert first.dtype == torch.get_default_dtype()
    assert Theta(0.3).sample(7, generator, torch.float64).shape == (7,)
    assert not torch.equal(Theta(0.3).sample(7, generator), Theta(0.3).sample(7, generator))


def test_sample_gradient_is_the_derivative_of_the_mean(generator: torch.Generator) -> None:
    a = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    draws = Theta(a).sample((4000,), generator)
    (slope,) = torch.autograd.grad(draws.mean(), a)
    (exact,) = torch.autograd.grad(Theta(a).mean, a)
    # The spread of single-draw derivatives gives the standard error.
    each = torch.stack([torch.autograd.grad(d, a, retain_graph=True)[0] for d in Theta(a).sample((400,), generator)])
    assert abs(slope - exact) <= 4.5 * each.std() / math.sqrt(4000)


def test_sample_gradients_are_finite_for_small_alpha(generator: torch.Generator) -> None:
    a = torch.tensor([1e-3, 1e-2, 1.0], dtype=torch.float64, requires_grad=True)
    Theta(a).sample((2000, 3), generator).sum().backward()
    assert torch.isfinite(a.grad).all()


def test_alpha_must_fit_the_shape() -> None:
    assert Theta(torch.ones(3)).sample((5, 3)).shape == (5, 3)
    for shape in ((), (5, 1), (4,)):
        with pytest.raises(ValueError, match="does not broadcast"):
            Theta(torch.ones(3)).sample(shape)


@pytest.mark.parametrize("alpha", [-1.0, math.nan, -math.inf, torch.tensor([1.0, -0.1]), torch.tensor(math.nan)])
def test_alpha_outside_its_range(alpha: object) -> None:
    with pytest.raises(ValueError, match=r"\[0, inf\]"):
        Theta(alpha)


@pytest.mark.parametrize("alpha", ["one", "0.5", None, True, [1.0], torch.tensor(1)])
def test_alpha_of_the_wrong_type(alpha: object) -> None:
    with pytest.raises(TypeError, match="alpha must be"):
        Theta(alpha)


def test_theta_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Theta(1.0).alpha = 2.0
