"""CutMix: boxes, and the shares they leave, against sampling and against the expectation over all pairs."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import betainc
from torch import nn

from mixreg.methods.cutmix import CutMix
from mixreg.prediction.rescaled import RescaledCutMix
from mixreg.theory.boxes import draw_boxes, own_share


@pytest.mark.parametrize(("alpha", "height", "width"), [(1.0, 12, 12), (0.3, 9, 14), (4.0, 8, 7)])
def test_shares_match_a_million_boxes(alpha, height, width) -> None:
    expected = own_share(alpha, height, width)
    generator = torch.Generator().manual_seed(0)
    count, total, areas = 0, torch.zeros(height, width, dtype=torch.float64), []
    for _ in range(20):
        boxes = draw_boxes(50_000, alpha, height, width, generator)
        covers_most = 2 * boxes.area() > height * width
        own = ~boxes.masks(height, width) ^ covers_most.reshape(-1, 1, 1)
        total += own.double().sum(0)
        areas.append(own.double().mean((1, 2)))
        count += len(own)
    found = total / count
    error = (expected * (1 - expected) / count).sqrt()
    # Three standard errors for each of 100 pixels, at the level at which all of them hold together.
    level = stats.norm.isf(stats.norm.sf(3) / (height * width))
    assert float(((found - expected) / error).abs().max()) < level
    theta = torch.cat(areas)
    assert abs(float(theta.mean() - expected.mean())) < 3 * float(theta.std()) / count**0.5
    assert float(expected.min()) >= 0.5
    assert float(expected.max()) <= 1


def test_limits() -> None:
    assert bool((own_share(0.0, 5, 6) == 1).all())
    # λ = ½ always: sides ⌊5 √½⌋ = 3 and ⌊6 √½⌋ = 4, never more than half.
    found = own_share(float("inf"), 5, 6)
    boxes = draw_boxes(1000, float("inf"), 5, 6, torch.Generator().manual_seed(0))
    assert int((boxes.bottom - boxes.top).max()) == 3
    assert int((boxes.right - boxes.left).max()) == 4
    assert float(found.mean()) == pytest.approx(1 - float(boxes.area().double().mean()) / 30, abs=0.01)


def test_the_expectation_of_a_mixed_batch() -> None:
    """E[x̂ | i] and E[ŷ | i] over partners and boxes are the shrunk sample."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 2, 7, 8, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 2, 1, 2])
    cut = CutMix(1.0, num_classes=3, generator=generator)
    draws = [cut(x, y) for _ in range(4000)]
    images, labels = (torch.stack([draw[k] for draw in draws]) for k in range(2))
    share = own_share(1.0, 7, 8)
    one_hot = nn.functional.one_hot(y, 3).double()
    expected_x = x.mean(0) + share * (x - x.mean(0))
    expected_y = one_hot.mean(0) + share.mean() * (one_hot - one_hot.mean(0))
    for found, expected in ((images, expected_x), (labels, expected_y)):
        error = found.std(0) / len(draws) ** 0.5
        worst = ((found.mean(0) - expected).abs() / error.clamp(min=1e-12)).max()
        assert float(worst) < stats.norm.isf(stats.norm.sf(3) / expected.numel())


def test_every_pixel_is_from_one_of_two_images_and_labels_tell_how_much() -> None:
    x = torch.arange(5.0).reshape(5, 1, 1, 1).expand(5, 3, 6, 6).contiguous()
    cut = CutMix(1.0, num_classes=5, generator=torch.Generator().manual_seed(0))
    mixed, soft = cut(x, torch.arange(5))
    for index in range(5):
        shares = torch.stack([(mixed[index] == value).double().mean() for value in range(5)])
        torch.testing.assert_close(shares, soft[index].double(), atol=1e-6, rtol=0)
        assert int(soft[index].argmax()) == index or float(soft[index, index]) == pytest.approx(0.5)
    assert (mixed[:, 0] == mixed[:, 1]).all()


def test_rescaled_prediction() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 36, 3))
    x_mean, y_mean = torch.randn(2, 6, 6), torch.tensor([0.2, 0.3, 0.5])
    model = RescaledCutMix(net, 1.0, x_mean, y_mean)
    x = torch.randn(4, 2, 6, 6)
    share = own_share(1.0, 6, 6).float()
    expected = y_mean + (net(x_mean + share * (x - x_mean)) - y_mean) / share.mean()
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(RescaledCutMix(net, 0.0, x_mean, y_mean)(x), net(x))
    again = RescaledCutMix(net, 1.0, torch.zeros(2, 6, 6), torch.zeros(3))
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), expected)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (torch.rand(4, 5), torch.zeros(4, dtype=torch.long), TypeError, "takes floating-point images"),
        (torch.zeros(4, 3, 5, 5, dtype=torch.uint8), torch.zeros(4, dtype=torch.long), TypeError, "got torch.uint8"),
        (torch.rand(4, 3, 5, 5), torch.zeros(3, dtype=torch.long), ValueError, "x has 4 samples and y has 3"),
    ],
)
def test_wrong_input(x, y, error, message) -> None:
    with pytest.raises(error, match=message):
        CutMix(1.0, num_classes=2)(x, y)
    with pytest.raises(ValueError, match="alpha"):
        CutMix(-1.0)


def test_half_precision_shares_are_finite() -> None:
    x, y = torch.rand(4, 1, 512, 512).half(), torch.arange(4)
    _, labels = CutMix(1.0, 4, torch.Generator().manual_seed(0))(x, y)
    assert bool(torch.isfinite(labels).all())
    # As with Mixup, labels keep the digits that half precision would lose.
    torch.testing.assert_close(labels.sum(1), torch.ones(4))


def test_a_saved_model_is_complete_and_shares_nothing() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)).double()
    x_mean, y_mean, x = torch.rand(1, 8, 8).double(), torch.full((3,), 1 / 3).double(), torch.rand(2, 1, 8, 8).double()
    first = RescaledCutMix(net, 1.0, x_mean, y_mean)
    second = RescaledCutMix(net, 0.1, 0 * x_mean, y_mean)
    before = own_share(0.1, 8, 8).clone()
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second(x), first(x))
    assert second.alpha == 1.0
    assert torch.equal(own_share(0.1, 8, 8), before)


def test_workers_draw_apart() -> None:
    cut = CutMix(1.0, 2, torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(torch.rand(32, 1, 8, 8), torch.arange(32) % 2)

    def collate(samples: list) -> torch.Tensor:
        return cut(*torch.utils.data.default_collate(samples))[1]

    loader = torch.utils.data.DataLoader(data, batch_size=8, collate_fn=collate, num_workers=2)
    labels = list(loader)
    shares = [sorted(batch.amax(1).tolist()) for batch in labels]
    assert len({tuple(share) for share in shares}) == 4


@pytest.mark.parametrize("kind", ["integers", "soft", "numbers"])
def test_dense_targets_are_cut_with_the_same_box(kind) -> None:
    """Every pixel of the image carries its own label, so that image and mask can be checked against each other."""
    labels = torch.randint(3, (6, 12, 9), generator=torch.Generator().manual_seed(0))
    x = torch.stack([labels.float(), torch.arange(6.0).reshape(6, 1, 1).expand(6, 12, 9)], 1)
    y = {"integers": labels, "soft": torch.nn.functional.one_hot(labels, 3).movedim(3, 1).float(), "numbers": x[:, :1]}
    classes = 3 if kind != "numbers" else None
    mixed, targets = CutMix(1.0, classes, torch.Generator().manual_seed(1))(x, y[kind])
    assert not torch.equal(mixed, x)
    if kind == "numbers":
        assert torch.equal(targets[:, 0], mixed[:, 0])
    else:
        assert targets.shape == (6, 3, 12, 9)
        assert torch.equal(targets.argmax(1).float(), mixed[:, 0])
        assert torch.equal(targets.amax(1), torch.ones(6, 12, 9))
    # Two images at most take part in a sample.
    assert max(len(sample.unique()) for sample in mixed[:, 1]) == 2


def test_the_sides_of_dense_targets_are_those_of_the_image() -> None:
    """Rows of as many numbers as a label has are no masks."""
    x = torch.rand(16, 1, 8, 8)
    _, targets = CutMix(1.0, generator=torch.Generator().manual_seed(0))(x, torch.eye(16))
    assert ((targets > 0) & (targets < 1)).any()


def test_a_lost_pixel_of_odd_sides_changes_little() -> None:
    """What mixreg.theory.boxes says of the boxes of other code, by counting: every scale, every centre."""
    side = 32
    edges = np.arange(side + 1) / side
    weights = np.diff(betainc(1.0, 1.0, edges**2))
    shares = []
    for loses in (False, True):
        total = np.zeros((side, side))
        for weight, length in zip(weights, range(side), strict=True):
            length = length // 2 * 2 if loses else length
            first = np.arange(side)[:, None] - length // 2
            inside = (np.arange(side) >= first) & (np.arange(side) < first + length)
            for row in inside:
                for column in inside:
                    box = np.outer(row, column)
                    total += weight / side**2 * (box if 2 * box.sum() > side**2 else ~box)
        shares.append(total)
    np.testing.assert_allclose(own_share(1.0, side, side).numpy(), shares[0], atol=1e-12)
    assert 0.015 < np.abs(shares[0] - shares[1]).max() < 0.0205
