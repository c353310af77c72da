"""Losses against PyTorch's own, smoothing against its definition."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from mixreg import Theta, losses, smooth_labels


def test_losses_equal_pytorch_s() -> None:
    u = 10 * torch.randn(6, 4, dtype=torch.float64)
    soft = torch.randn(6, 4, dtype=torch.float64).softmax(1)
    expected = F.cross_entropy(u, soft, reduction="none")
    torch.testing.assert_close(losses.cross_entropy(soft, u), expected, rtol=0, atol=1e-12)
    image, labels = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3).softmax(1)
    torch.testing.assert_close(
        losses.cross_entropy(labels, image), F.cross_entropy(image, labels, reduction="none"), rtol=0, atol=1e-5
    )
    targets = torch.rand(6, 4, dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(u, targets, reduction="none")
    torch.testing.assert_close(losses.logistic(targets, u), expected.sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(losses.logistic(targets[:, 0], u[:, 0]), expected[:, 0], rtol=0, atol=1e-12)
    expected = 0.5 * F.mse_loss(u, targets, reduction="none").sum(1)
    torch.testing.assert_close(losses.squared_error(targets, u), expected, rtol=0, atol=1e-12)
    assert losses.squared_error(targets[:, 0], u[:, 0]).shape == (6,)


def test_losses_are_finite_for_huge_logits() -> None:
    u = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(losses.cross_entropy(y, u), torch.tensor([0.0, 2e4]))
    torch.testing.assert_close(losses.logistic(torch.tensor([1.0, 1.0]), u[:, 0]), torch.tensor([0.0, 1e4]))


def test_losses_do_not_cancel() -> None:
    for y, u in ((1.0, 15.3), (0.0, -15.3), (1.0, 40.0)):
        value = losses.logistic(torch.tensor([y], dtype=torch.float64), torch.tensor([u], dtype=torch.float64))
        assert value.item() == pytest.approx(math.log1p(math.exp(-abs(u))), rel=1e-12)
    u = torch.randn(50, 4)
    y = torch.randn(50, 4).softmax(1)
    expected = losses.cross_entropy(y.double(), u.double())
    shifted = losses.cross_entropy(y, (u + 64) * 1.0)
    torch.testing.assert_close(shifted.double(), losses.cross_entropy(y.double(), (u + 64).double()), rtol=0, atol=1e-6)
    torch.testing.assert_close(losses.cross_entropy(y, u).double(), expected, rtol=0, atol=1e-6)
    assert losses.squared_error(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0,)


def test_losses_refuse_what_does_not_match() -> None:
    for loss in (losses.cross_entropy, losses.logistic, losses.squared_error):
        with pytest.raises(ValueError, match=r"\(3, 2\) and outputs of shape \(3, 4\)"):
            loss(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="use logistic"):
        losses.cross_entropy(torch.zeros(3), torch.zeros(3))


@given(alpha=st.floats(0, 100), seed=st.integers(0, 100))
def test_smoothing_is_towards_the_mean_label(alpha, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (20,), generator=generator)
    one_hot = F.one_hot(y, 3).double()
    y_mean = one_hot.mean(0)
    smooth = smooth_labels(one_hot, y_mean, alpha=alpha)
    epsilon = Theta(alpha).shrinkage
    torch.testing.assert_close(smooth, (1 - epsilon) * one_hot + epsilon * y_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(smooth.sum(1), torch.ones(20, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(smooth.mean(0), y_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(smooth_labels(y, y_mean, epsilon=epsilon).double(), smooth, rtol=0, atol=1e-6)


def test_balanced_smoothing_is_pytorch_s_label_smoothing() -> None:
    u, y = torch.randn(8, 4), torch.arange(8) % 4
    smooth = smooth_labels(y, torch.full((4,), 0.25), epsilon=0.1)
    torch.testing.assert_close(F.cross_entropy(u, smooth), F.cross_entropy(u, y, label_smoothing=0.1))


def test_smoothing_refuses_wrong_input() -> None:
    y, mean = torch.tensor([0, 1]), torch.tensor([0.5, 0.5])
    for arguments in ({}, {"alpha": 1.0, "epsilon": 0.1}):
        with pytest.raises(ValueError, match="either alpha or epsilon"):
            smooth_labels(y, mean, **arguments)
    with pytest.raises(ValueError, match=r"\[0, 1\], got 1.5"):
        smooth_labels(y, mean, epsilon=1.5)
    with pytest.raises(ValueError, match="one entry per class"):
        smooth_labels(y, torch.tensor([[0.5, 0.5]]), epsilon=0.1)
    with pytest.raises(TypeError, match="y_mean must be a tensor, got list"):
        smooth_labels(y, [0.5, 0.5], epsilon=0.1)
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1"):
        smooth_labels(y + 1, mean, epsilon=0.1)
