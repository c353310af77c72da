"""Theorem 1's noise and Lemma 2's covariances, by Monte Carlo and by matrices written out."""

import copy
import pickle

import pytest
import torch
from dense import theta_moments

from mixreg import DataMoments, Perturbation
from mixreg.losses.targets import to_values
from mixreg.theory.perturbation import Whitening
from mixreg.theory.smoothing import _fit_linear, entropy_bound


def data(n: int = 8, d: int = 3):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x, to_values(torch.randint(3, (n,), generator=generator), 3, torch.float64)


def test_modified_data() -> None:
    x, y = data()
    p = Perturbation(x, y, 0.6)
    mean = theta_moments(0.6)[0]
    torch.testing.assert_close(p.x_modified, x.mean(0) + mean * (x - x.mean(0)), rtol=0, atol=1e-12)
    torch.testing.assert_close(p.y_modified, y.mean(0) + mean * (y - y.mean(0)), rtol=0, atol=1e-12)
    assert len(p) == 8


def test_noise_is_centred_with_the_covariances_of_lemma_2() -> None:
    x, y = data()
    p = Perturbation(x, y, 0.6)
    generator = torch.Generator().manual_seed(0)
    draws = [p.sample(generator) for _ in range(20_000)]
    delta, epsilon = (torch.stack(parts) for parts in zip(*draws, strict=True))
    for noise in (delta, epsilon):
        error = noise.std(0) / 20_000**0.5
        assert (noise.mean(0).abs() <= 4.5 * error + 1e-12).all()
    for i in (0, 5):
        for left, right, exact in (
            (delta, delta, p.covariance_xx(i, torch.eye(3, dtype=torch.float64))),
            (delta, epsilon, p.covariance_xy(i)),
            (epsilon, epsilon, p.covariance_yy(i)),
        ):
            products = left[:, i, :, None] * right[:, i, None, :]
            error = products.std(0) / 20_000**0.5
            assert ((products.mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()


def test_the_mixed_sample_is_the_modified_one_plus_noise() -> None:
    x, y = data()
    p = Perturbation(x, y, 0.6)
    share, j = torch.rand(8, dtype=torch.float64) / 2, torch.randint(8, (8,))
    mixed = (1 - share).unsqueeze(1) * x + share.unsqueeze(1) * x[j]
    torch.testing.assert_close(p.x_modified + p.noise(x, p.x_mean, share, j), mixed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["full rank", "more coordinates than samples", "moments of other data"])
def test_matrices_and_jacobian_target(kind) -> None:
    x, y = data(5, 9) if kind == "more coordinates than samples" else data()
    moments = None
    base_x, base_y = x, y
    if kind == "moments of other data":
        base_x, base_y = data(20)
        base_x = base_x.clone()
        base_x[:, 2] = 1.0
        moments = DataMoments(covariance=True)
        moments.update(base_x, base_y)
    p = Perturbation(x, y, 0.9, moments)
    _, var, gamma2 = theta_moments(0.9)
    a_all, b_all = base_x - base_x.mean(0), base_y - base_y.mean(0)
    sxx, sxy, syy = (m / len(base_x) for m in (a_all.T @ a_all, a_all.T @ b_all, b_all.T @ b_all))
    for i in range(len(x)):
        a, b = x[i] - base_x.mean(0), y[i] - base_y.mean(0)
        xx, xy = var * torch.outer(a, a) + gamma2 * sxx, var * torch.outer(a, b) + gamma2 * sxy
        torch.testing.assert_close(p.covariance_xx(i, torch.eye(len(a), dtype=torch.float64)), xx, rtol=0, atol=1e-12)
        torch.testing.assert_close(p.covariance_xy(i), xy, rtol=0, atol=1e-12)
        torch.testing.assert_close(p.covariance_yy(i), var * torch.outer(b, b) + gamma2 * syy, rtol=0, atol=1e-12)
        inverse = torch.randn(4, 4, dtype=torch.float64)
        uy = torch.randn(4, 3, dtype=torch.float64)
        expected = -inverse @ uy @ xy.T @ torch.linalg.pinv(xx, rtol=1e-11)
        torch.testing.assert_close(p.jacobian_target(i, inverse, uy), expected, rtol=0, atol=1e-8)


def test_wrong_input() -> None:
    x, y = data()
    with pytest.raises(ValueError, match="floating point and equally long"):
        Perturbation(x, y[:3], 1.0)
    with pytest.raises(TypeError, match="one alpha as a number"):
        Perturbation(x, y, torch.tensor(1.0))
    moments = DataMoments(covariance=True)
    moments.update(x[:, :2], y)
    with pytest.raises(ValueError, match=r"the moments are those of x: \(2,\)"):
        Perturbation(x, y, 1.0, moments)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 2.0, 50.0])
def test_entropy_bound_holds(alpha) -> None:
    generator = torch.Generator().manual_seed(int(100 * alpha))
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    x = torch.cat([x, torch.ones(80, 1, dtype=torch.float64)], 1)
    y = torch.randint(3, (80,), generator=generator)
    bound = entropy_bound(x, y, alpha)
    assert bound.lower <= bound.smoothed + 1e-10
    # The fit is scikit-learn's.
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=float("inf"), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, y)
    p = torch.from_numpy(model.predict_proba(x))
    assert bound.plain.item() == pytest.approx(-(p * p.log()).sum(1).mean().item(), rel=1e-4)


def test_entropy_bound_refuses_separable_classes() -> None:
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    with pytest.raises(ValueError, match="separates the classes"):
        entropy_bound(x, torch.tensor([0, 0, 1, 1]), 1.0)
    with pytest.raises(ValueError, match="expected 4 integer labels"):
        entropy_bound(x, torch.zeros(3, 2), 1.0)


def test_given_moments_are_factored_once(monkeypatch) -> None:
    x, y = data()
    moments = DataMoments(covariance=True)
    moments.update(x, y)
    calls = []
    factor = Whitening.of_covariance
    monkeypatch.setattr(Whitening, "of_covariance", staticmethod(lambda *given: calls.append(1) or factor(*given)))
    first = [Perturbation(x[:k], y[:k], alpha, moments).whitening for k, alpha in ((8, 1.0), (3, 0.2), (1, 7.0))]
    assert len(calls) == 1
    assert all(torch.equal(white.factor, first[0].factor) for white in first)
    # Copies are their own, and more data is noticed, however it comes in.
    other = copy.copy(moments)
    assert other._derived == {}
    other.update(2 * x, y)
    assert not torch.equal(Perturbation(x, y, 1.0, other).whitening.factor, first[0].factor)
    assert Perturbation(x, y, 1.0, moments).whitening.factor is not None
    assert len(calls) == 2
    for more in (lambda: moments.update(x + 1, y), lambda: moments.merge(other)):
        more()
        p = Perturbation(x, y, 1.0, moments)
        fresh = factor(moments.xx, moments.xy)
        assert torch.equal(p.whitening.factor, fresh.factor)
        assert torch.equal(p.whitening.slopes, fresh.slopes)
    assert len(calls) == 4
    assert len(pickle.dumps(moments)) == len(pickle.dumps(copy.deepcopy(moments)))


def classes_that_overlap() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    return torch.cat([x, torch.ones(80, 1, dtype=torch.float64)], 1), torch.randint(3, (80,), generator=generator)


@pytest.mark.parametrize("scale", [[1e-8, 1, 1e9, 1], [1e12] * 4, [1e-12] * 4, [1, 1e150, 1e-150, 1], [1, 0, 1, 1]])
def test_entropy_bound_does_not_depend_on_units(scale) -> None:
    x, y = classes_that_overlap()
    if 0 in scale:
        x[:, 1] = 0  # a constant coordinate has no unit
        scale = [1, 7, 1, 1]
    plain, scaled = entropy_bound(x, y, 1.0), entropy_bound(x * torch.tensor(scale, dtype=torch.float64), y, 1.0)
    for one, other in zip(plain, scaled, strict=True):
        assert other.item() == pytest.approx(one.item(), rel=1e-10)


def test_entropy_bound_of_offsets_and_outliers() -> None:
    x, y = classes_that_overlap()
    far = x.clone()
    far[:, :3] += 1e6  # with the column of ones, the same space
    assert entropy_bound(far, y, 1.0).plain.item() == pytest.approx(entropy_bound(x, y, 1.0).plain.item(), rel=1e-8)
    # One sample so far away that its prediction is certain; the others still overlap.
    x[0, :3] *= 1e3
    values = to_values(y, 3, torch.float64)
    p = _fit_linear(x, values, 200)
    assert p.min() < 1e-12
    slope = (p - values).T @ x / (p - values).abs().T.matmul(x.abs())
    assert slope.abs().max() < 1e-8
    bound = entropy_bound(x, y, 1.0)
    assert bound.lower <= bound.smoothed


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_separable_classes_are_refused_in_any_unit(scale) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + x[:, 1] > 0).long()
    with pytest.raises(ValueError, match="a linear model separates the classes"):
        entropy_bound(x * torch.tensor([scale, 1.0], dtype=torch.float64), y, 1.0)
    # All but the samples on the line itself: no minimum either.
    x[:2], y[:2] = torch.tensor([[0.5, -0.5], [0.5, -0.5]]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="a linear model separates the classes"):
        entropy_bound(x, y, 1.0)
    with pytest.raises(ValueError, match="not converged in 2 steps"):
        entropy_bound(*classes_that_overlap(), 1.0, steps=2)
    with pytest.raises(ValueError, match="must be finite"):
        entropy_bound(x * torch.nan, y, 1.0)
