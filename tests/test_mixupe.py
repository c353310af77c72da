import math

import pytest
import torch

from mixreg.methods.mixupe import MixupE
from mixreg.risk import mixup as mixup_risk

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(n: int = 12) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return net, torch.randn(n, 5) + 1, torch.randint(3, (n,))


def slopes(net, x: torch.Tensor, y: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """d/dt of each sample's loss on the way to the mean, by central differences."""

    def at(t: float) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(net(x + t * (mean - x)), y, reduction="none")

    return (at(1e-5) - at(-1e-5)) / 2e-5


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0, math.inf])
def test_the_penalty_is_the_slope_of_the_loss_towards_the_mean(alpha: float) -> None:
    net, x, y = problem()
    criterion = MixupE(alpha, x.mean(0), weight=0.7, num_classes=3, generator=torch.Generator().manual_seed(1))
    rows = criterion.draw(x, y)
    plain = torch.nn.functional.cross_entropy(net(rows.mixed_x), rows.mixed_y, reduction="none")
    share = 0.5 if math.isinf(alpha) else alpha / (2 * alpha + 1)
    expected = plain + 0.7 * share * slopes(net, x, y, x.mean(0)).abs()
    torch.testing.assert_close(criterion.losses(net, rows), expected, rtol=1e-8, atol=1e-9)


def test_the_slope_is_the_first_order_term_of_the_mixup_risk() -> None:
    # For small α, λ stays near 1: risk(α) = risk(0) + α/(2α+1) mean q + O of the second moment of 1 − λ, for which
    # data are moved together until second derivatives no longer matter.
    net, x, y = problem()
    alpha = 1.0
    for size in (1e-3, 1e-4):
        near = x.mean(0) + size * (x - x.mean(0))
        gained = mixup_risk(net, near, y, alpha) - torch.nn.functional.cross_entropy(net(near), y).detach()
        # Labels are mixed as well: for cross-entropy that is the same as mixing inputs with λ ~ Beta(α + 1, α).
        expected = alpha / (2 * alpha + 1) * slopes(net, near, y, near.mean(0)).mean().detach()
        torch.testing.assert_close(gained, expected, rtol=0, atol=30 * size**2)
        assert abs(float(expected)) > 1e-3 * size


def test_gradients_reach_the_weights_through_the_slope() -> None:
    net, x, y = problem()
    criterion = MixupE(1.0, x.mean(0), num_classes=3)
    rows = criterion.draw(x, y)
    weight = net[0].weight
    (found,) = torch.autograd.grad(criterion.losses(net, rows).mean(), weight)
    step = torch.zeros_like(weight)
    step[3, 2] = 1e-6

    def value(change: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight.add_(change)
            result = criterion.losses(net, rows).mean()
            weight.sub_(change)
        return result

    torch.testing.assert_close(found[3, 2], (value(step) - value(-step)) / 2e-6, rtol=1e-5, atol=1e-8)


def test_without_weight_it_is_mixup_and_wrong_weights_are_refused() -> None:
    net, x, y = problem()
    mean = x.mean(0)
    first = MixupE(1.0, mean, weight=0.0, num_classes=3, generator=torch.Generator().manual_seed(3))
    rows = first.draw(x, y)
    expected = torch.nn.functional.cross_entropy(net(rows.mixed_x), rows.mixed_y)
    torch.testing.assert_close(first.losses(net, rows).mean(), expected)
    with pytest.raises(ValueError, match="weight must be a number of at least 0, got -1"):
        MixupE(1.0, mean, weight=-1)
    with pytest.raises(ValueError, match="num_classes"):
        MixupE(1.0, mean)(net, x, y)


def test_a_network_with_batch_normalisation_learns_its_statistics_twice() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    _, x, y = problem(32)
    MixupE(1.0, x.mean(0), num_classes=3)(net, x, y).backward()
    # Once with the data, once with what Mixup makes of it.
    assert int(net[1].num_batches_tracked) == 2
    assert bool(torch.isfinite(net[0].weight.grad).all())
