"""Gaussian noise with chosen covariances: against Lemma 2, Theorem 3, sampling and closed forms."""

import math

import pytest
import torch
from torch import nn

from mixreg import DataMoments, Perturbation, risk
from mixreg.losses.targets import to_values
from mixreg.methods.gaussian import GaussianMixup
from mixreg.risk.noise_regularisers import dropout_regulariser, gaussian_noise, noise_regulariser
from mixreg.theory.least_squares import linear_mixup_risk


def small(seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return net, torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))


def moments_of(x: torch.Tensor, y: torch.Tensor, classes: int | None = 3) -> DataMoments:
    moments = DataMoments(num_classes=classes, covariance=True)
    moments.update(x, y)
    return moments


def test_covariances_are_those_of_lemma_2() -> None:
    _, x, y = small()
    moments = moments_of(x, y)
    values = to_values(y, 3, torch.float64)
    lemma = Perturbation(x, values, 0.7)
    a, b = x - x.mean(0), values - values.mean(0)
    gaussian = GaussianMixup(0.7, moments, torch.Generator().manual_seed(0))
    draws = [gaussian(x, y) for _ in range(5_000)]
    delta = torch.stack([draw[0] for draw in draws]) - lemma.x_modified
    epsilon = torch.stack([draw[1] for draw in draws]) - lemma.y_modified
    joint = torch.cat([delta, epsilon], 2)
    centred = torch.cat([a, b], 1)
    for i in range(len(x)):
        expected = lemma.var * torch.outer(centred[i], centred[i]) + lemma.gamma2 * centred.T @ centred / len(x)
        products = joint[:, i].unsqueeze(2) * joint[:, i].unsqueeze(1)
        # A class that does not occur has no noise at all.
        error = (products.std(0) / math.sqrt(len(draws))).clamp(min=1e-12)
        assert float(((products.mean(0) - expected).abs() / error).max()) < 4.5
        error = (joint[:, i].std(0) / math.sqrt(len(draws))).clamp(min=1e-12)
        assert float((joint[:, i].mean(0).abs() / error).max()) < 4.5


def test_linear_least_squares_see_no_difference() -> None:
    """Where the expansion is exact, Gaussian Mixup has Mixup's risk."""
    _, x, _ = small()
    y = torch.randn(8, 2, dtype=torch.float64)
    weight, bias = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    gaussian = GaussianMixup(1.3, moments_of(x, y, None), torch.Generator().manual_seed(1))
    losses = []
    for _ in range(5_000):
        mixed, targets = gaussian(x, y)
        losses.append(float(0.5 * (targets - mixed @ weight.T - bias).square().sum(1).mean()))
    values = torch.tensor(losses, dtype=torch.float64)
    expected = float(linear_mixup_risk(weight, bias, x, y, 1.3))
    assert abs(float(values.mean()) - expected) < 4 * float(values.std()) / math.sqrt(len(values))


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_lemma_2_as_a_regulariser_is_the_quadratic_risk(loss) -> None:
    net, x, y = small()
    values = to_values(y, 3, torch.float64)
    p = Perturbation(x, values, 0.7)
    joint = torch.cat([x - x.mean(0), values - values.mean(0)], 1)
    covariance = p.var * joint.unsqueeze(2) * joint.unsqueeze(1) + p.gamma2 * joint.T @ joint / len(x)
    found = noise_regulariser(
        net, p.x_modified, p.y_modified, covariance[:, :4, :4], covariance[:, :4, 4:], covariance[:, 4:, 4:], loss
    )
    expected = risk.quadratic(net, x, values, 0.7, loss)
    assert float(found.total) == pytest.approx(float(expected.total), rel=1e-10)
    assert float(found.curvature) == pytest.approx(float(expected.r2), rel=1e-9)
    assert float(found.jacobian + found.interaction) == pytest.approx(float(expected.r1 + expected.r3), rel=1e-8)
    assert float(found.labels) == pytest.approx(float(expected.r4), rel=1e-9, abs=1e-15)


def test_small_noise_costs_what_the_regulariser_says() -> None:
    net, x, y = small(1)
    values = to_values(y, 3, torch.float64)
    torch.manual_seed(2)
    root = 0.05 * torch.randn(8, 7, 7, dtype=torch.float64)
    joint = root @ root.transpose(1, 2)
    xx, xy, yy = joint[:, :4, :4], joint[:, :4, 4:], joint[:, 4:, 4:]
    expected = noise_regulariser(net, x, values, xx, xy, yy, "squared_error")
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(4000):
        delta, epsilon = gaussian_noise(x, values, xx, xy, yy, generator)
        # In pairs of opposite signs, which cancels the first order.
        pair = [(0.5 * (values + s * epsilon - net(x + s * delta)).square().sum(1)).mean() for s in (1, -1)]
        losses.append(float((pair[0] + pair[1]).detach()) / 2)
    found = torch.tensor(losses, dtype=torch.float64)
    error = float(found.std()) / math.sqrt(len(found))
    gain = float(expected.total - expected.base)
    # What the fourth order leaves is far below the gain itself.
    assert abs(float(found.mean()) - float(expected.total)) < 4 * error + 0.02 * abs(gain)
    assert error < 0.02 * abs(gain)


def test_dropout_in_closed_form_and_by_sampling() -> None:
    """Logistic regression: ½ q/(1−q) Σ p (1 − p) x_j² w_j² (Wager et al., 2013)."""
    torch.manual_seed(0)
    net = nn.Linear(5, 1).double()
    x = torch.randn(9, 5, dtype=torch.float64)
    y = torch.randint(2, (9, 1)).double()
    found = dropout_regulariser(net, x, y, 0.3, "logistic")
    p = torch.sigmoid(net(x))
    expected = 0.5 * 0.3 / 0.7 * (p * (1 - p) * (x.square() @ net.weight.square().T)).mean()
    assert float(found.jacobian) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert float(found.curvature) == 0
    assert float(found.interaction) == float(found.labels) == 0
    # A network with curvature and inputs so small that the second order is all there is: every mask, exactly.
    deep, x, labels = small(3)
    x = 0.02 * x
    regulariser = dropout_regulariser(deep, x, labels, 0.3)
    exact = torch.zeros((), dtype=torch.float64)
    for bits in range(16):
        mask = torch.tensor([bits >> j & 1 for j in range(4)], dtype=torch.float64)
        probability = float(torch.where(mask == 1, 0.7, 0.3).prod())
        exact += probability * nn.functional.cross_entropy(deep(x * mask / 0.7), labels).detach()
    gain = float(regulariser.total - regulariser.base)
    assert float(exact - regulariser.base) == pytest.approx(gain, rel=0.05)
    dense = noise_regulariser(deep, x, labels, torch.diag_embed(x.square() * 0.3 / 0.7))
    assert float(dense.total) == pytest.approx(float(regulariser.total), rel=1e-12)


def test_limits_and_wrong_input() -> None:
    net, x, y = small()
    moments = moments_of(x, y)
    same, values = GaussianMixup(0.0, moments)(x, y)
    torch.testing.assert_close(same, x)
    torch.testing.assert_close(values, to_values(y, 3, torch.float64))
    with pytest.raises(ValueError, match="x has 8 samples and y has 7"):
        GaussianMixup(1.0, moments)(x, y[:7])
    with pytest.raises(ValueError, match="alpha"):
        GaussianMixup(-1.0, moments)
    with pytest.raises(ValueError, match="negative eigenvalue"):
        gaussian_noise(x, values, torch.eye(4).double(), 5 * torch.ones(4, 3).double(), torch.eye(3).double())
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got 1"):
        dropout_regulariser(net, x, y, 1)


def test_covariances_of_deficient_rank_are_taken_in_single_precision() -> None:
    a = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    x, y = torch.zeros(5, 64), torch.zeros(5, 1)
    noise, _ = gaussian_noise(x, y, a.T @ a / 20, generator=torch.Generator().manual_seed(1))
    assert bool(torch.isfinite(noise).all())
    with pytest.raises(ValueError, match="negative eigenvalue"):
        gaussian_noise(x, y, a.T @ a / 20 - 0.01 * torch.eye(64))
