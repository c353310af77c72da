"""Training on the quadratic risk: unbiased in value and gradient, with any optimiser, target and loss."""

import math

import pytest
import torch
from dense import dense_quadratic
from test_risk import SAMPLE_LOSSES, named, problem
from torch import nn

from mixreg import ApproximateMixup, DataMoments, Mixup, risk
from mixreg.losses.targets import to_values


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def moments_of(x: torch.Tensor, y: torch.Tensor, num_classes: int | None = None) -> DataMoments:
    m = DataMoments(num_classes=None if y.is_floating_point() else num_classes)
    m.update(x, y)
    return m


def check_unbiased(loss: str, second_order: bool, batches: int, copies: int, **options) -> None:
    """Means over batches, in which every sample stands several times: each row has noise of its own."""
    net, x, y = problem(loss, n=7)
    terms = dense_quadratic(net, x, to_values(y, 3, torch.float64), 0.7, SAMPLE_LOSSES[loss])
    exact = terms["base"] + terms["joint"] + terms["r4"] + (terms["r2"] if second_order else 0.0)
    exact_gradient = torch.cat([g.flatten() for g in torch.autograd.grad(exact, list(net.parameters()))])
    generator = torch.Generator().manual_seed(0)
    criterion = ApproximateMixup(0.7, moments_of(x, y, 3), named(loss), second_order, generator, **options)
    values, gradients = [], []
    many_x, many_y = (t.repeat(copies, *[1] * (t.ndim - 1)) for t in (x, y))
    for _ in range(batches):
        value = criterion(net, many_x, many_y)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(net.parameters()))]))
        values.append(value.detach())
    for drawn, expected in ((torch.stack(values), exact.detach()), (torch.stack(gradients), exact_gradient)):
        error = drawn.std(0) / math.sqrt(batches)
        assert ((drawn.mean(0) - expected).abs() <= 4 * error + 1e-12).all()


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_unbiased(loss, second_order) -> None:
    check_unbiased(loss, second_order, 100, 10)


@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_the_noise_of_a_part_of_the_batch_is_unbiased(loss, second_order) -> None:
    check_unbiased(loss, second_order, 100, 10, part=0.4)


def test_losses_of_a_part_stay_with_their_samples() -> None:
    net, x, y = problem("cross_entropy", n=7)
    criterion = ApproximateMixup(0.7, moments_of(x, y, 3), part=0.4)
    rows = criterion.draw(x, y, torch.Generator().manual_seed(1))
    found = criterion.losses(net, rows)
    whole = ApproximateMixup(0.7, moments_of(x, y, 3)).losses(net, rows)
    base = ApproximateMixup(0.0, moments_of(x, y, 3)).losses(
        net, rows._replace(delta=0 * rows.delta, epsilon=0 * rows.epsilon)
    )
    is_noisy = rows.order < 3
    torch.testing.assert_close(found, base + torch.where(is_noisy, 7 / 3, 0.0) * (whole - base))
    for part in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="part must be a share of a batch"):
            ApproximateMixup(0.7, moments_of(x, y, 3), part=part)


@pytest.mark.slow
@pytest.mark.parametrize("second_order", [False, True])
@pytest.mark.parametrize("loss", SAMPLE_LOSSES)
def test_unbiased_over_ten_thousand_draws(loss, second_order) -> None:
    check_unbiased(loss, second_order, 1_000, 10)


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


def test_a_batch_in_the_linear_part_of_huber_s_loss_is_no_reason_to_refuse_it() -> None:
    net, x, y = problem("squared_error")

    def huber(y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return nn.functional.huber_loss(u, y, reduction="sum", delta=0.01)

    far = y + 100
    value = ApproximateMixup(1.0, moments_of(x, far), loss=huber)(net, x, far)
    assert bool(torch.isfinite(value))


def test_inputs_that_are_features_of_another_network() -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 3)
    m = DataMoments.from_means(torch.zeros(4), torch.ones(3) / 3)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    found = ApproximateMixup(1.0, m, generator=torch.Generator().manual_seed(0))(head, encoder(x), y)
    (slope,) = torch.autograd.grad(found, encoder.bias, retain_graph=True)
    assert slope.abs().max() > 0


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_sample_that_is_not_finite_is_named_and_not_learnt_from(part) -> None:
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    x[3] = float("inf")
    m = DataMoments.from_means(torch.zeros(4), torch.ones(3) / 3)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    for seed in range(4):
        with pytest.raises(ValueError, match="not finite at sample"):
            ApproximateMixup(1.0, m, part=part, generator=torch.Generator().manual_seed(seed))(net, x, y)
        assert net[1].running_mean.isfinite().all()
        assert int(net[1].num_batches_tracked) == 0
        with pytest.raises(ValueError, match="sample 3"):
            ApproximateMixup(1.0, m, part=part, generator=torch.Generator().manual_seed(seed))(net[0], x, y)


def test_parts_that_are_none() -> None:
    net, x, y = problem("cross_entropy", n=7)
    for part in ("0.5", None):
        with pytest.raises(ValueError, match="part must be a share of a batch"):
            ApproximateMixup(0.7, moments_of(x, y, 3), part=part)
    criterion = ApproximateMixup(0.7, moments_of(x, y, 3), part=0.5)
    assert "part=0.5" in repr(criterion)
    with pytest.raises(ValueError, match="one output for each input"):
        criterion(lambda z: net(z).sum(), x, y)
