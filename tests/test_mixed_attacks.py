"""Mixed targets where somebody tried to break them: memory that is shared, smoothing, autocast, impossible classes."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixreg import MixedTargets, Mixup, SimilarTargets, calibration, mixed_loss
from mixreg.training.step import has_parts


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("columns", [3, 2])
def test_targets_that_are_the_inputs_stay_when_inputs_are_mixed_in_place(columns) -> None:
    x = torch.randn(4, 3, generator=seeded())
    expected = Mixup(1.0, generator=seeded())(x.clone(), x.clone()[:, :columns])[1]
    _, mixed = Mixup(1.0, inplace=True, generator=seeded())(x, x[:, :columns], parts=True)
    torch.testing.assert_close(mixed.values(), expected)


def test_numbers_to_regress_on_are_not_smoothed_and_parts_are_smoothed_by_the_loss() -> None:
    x, y = torch.randn(6, 2), {"k": torch.arange(6) % 3, "s": torch.full((6, 2), 100.0)}
    mixed = Mixup(1.0, {"k": 3, "s": None}, label_smoothing=0.1)(x, y)[1]
    torch.testing.assert_close(mixed["s"], y["s"])
    assert mixed["k"].min() > 0.03
    soft = torch.eye(3)[y["k"]]
    for target in (y["k"], soft, torch.randint(3, (6, 4))):
        with pytest.raises(ValueError, match="give label_smoothing to the loss"):
            Mixup(1.0, 3, label_smoothing=0.3)(x, target, parts=True)
    assert has_parts(Mixup(1.0, 3))
    assert not has_parts(Mixup(1.0, 3, label_smoothing=0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_under_autocast_are_taken_in_float32(dtype) -> None:
    net, x, y = nn.Conv2d(1, 5, 1), torch.randn(2, 1, 256, 256), torch.randint(5, (2, 256, 256))
    x, mixed = Mixup(1.0)(x, y, parts=True)
    outputs = net(x).detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = mixed_loss(nn.CrossEntropyLoss())(outputs, mixed), F.cross_entropy(outputs, mixed.soft(5))
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    slopes = [torch.autograd.grad(loss, outputs, retain_graph=True)[0].float() for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-2, atol=1e-6)


def test_what_has_no_weight_may_be_impossible() -> None:
    u, y = torch.randn(4, 3, generator=seeded()), torch.tensor([1, 2, -100, 1])
    u[:, 0] = -torch.inf
    u.requires_grad_()
    mixed = MixedTargets(y, y[[1, 0, 3, 2]], torch.tensor([0.1, 0.2, 0.3, 0.4]))
    found, expected = (loss(u) for loss in (partial(_index_loss, mixed), partial(_log_loss, mixed)))
    torch.testing.assert_close(found, expected)
    (slope,) = torch.autograd.grad(found, u)
    assert slope.isfinite().all()
    unmixed = MixedTargets(torch.tensor([1, 2]), torch.tensor([2, 1]), torch.zeros(2))
    u = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, -torch.inf, 2.0]])
    for loss in (nn.CrossEntropyLoss(), _Focal()):
        torch.testing.assert_close(mixed_loss(loss)(u, unmixed), loss(u, unmixed.y))


def _index_loss(mixed: MixedTargets, u: torch.Tensor) -> torch.Tensor:
    return mixed_loss(nn.CrossEntropyLoss())(u, mixed)


def _log_loss(mixed: MixedTargets, u: torch.Tensor) -> torch.Tensor:
    return mixed_loss(nn.NLLLoss())(u.log_softmax(1), mixed)


class _Focal(nn.Module):
    reduction = "mean"

    def forward(self, u: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(u, y, reduction="none")
        losses = (1 - (-losses).exp()).square() * losses
        return losses.mean() if self.reduction == "mean" else losses


def test_several_losses_are_reduced_as_they_are() -> None:
    y = {"a": torch.randint(3, (6,)), "b": torch.randn(6)}
    _, mixed = Mixup(1.0)(torch.randn(6, 3), y, parts=True)
    outputs = {"a": torch.randn(6, 3), "b": torch.randn(6)}
    losses = {"a": nn.CrossEntropyLoss(reduction="none"), "b": nn.MSELoss(reduction="none")}
    expected = sum(mixed_loss(losses[key])(outputs[key], mixed[key]) for key in y)
    torch.testing.assert_close(mixed_loss(losses)(outputs, mixed), expected)
    losses["b"] = nn.MSELoss()
    with pytest.raises(ValueError, match="have no sum"):
        mixed_loss(losses)(outputs, mixed)


def test_a_mean_leaves_ignored_labels_out_however_the_loss_is_given() -> None:
    log_p, y = torch.randn(6, 3).log_softmax(1), torch.tensor([0, -100, 2, -100, -100, 1])
    mixed = MixedTargets(y, y.flip(0), torch.full((6,), 0.25))
    expected = mixed_loss(nn.NLLLoss())(log_p, mixed)
    for loss in (F.nll_loss, partial(F.nll_loss, reduction="mean"), partial(F.nll_loss, ignore_index=-100)):
        torch.testing.assert_close(mixed_loss(loss)(log_p, mixed), expected)


def test_the_loss_that_was_given_stays_as_it_is() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.NLLLoss()

        @property
        def reduction(self) -> str:
            return self.inner.reduction

        @reduction.setter
        def reduction(self, reduction: str) -> None:
            self.inner.reduction = reduction

        def forward(self, u: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.inner(u, y)

    loss, log_p, y = Wrapper(), torch.randn(4, 3).log_softmax(1), torch.randint(3, (4,))
    mixed = MixedTargets(y, y.flip(0), torch.full((4,), 0.2))
    torch.testing.assert_close(mixed_loss(loss)(log_p, mixed), mixed_loss(nn.NLLLoss())(log_p, mixed))
    assert loss.reduction == "mean"


def test_similar_targets_wherever_they_lie() -> None:
    i = torch.arange(40).double()
    near, far = (SimilarTargets(0.3)(shift + i, seeded()) for shift in (0.0, 1.7e9))
    assert torch.equal(near, far)
    assert torch.equal(SimilarTargets(1e-200)(i[:3], seeded()), torch.arange(3))
    assert SimilarTargets(np.float32(0.5)).bandwidth == 0.5
    with pytest.raises(ValueError, match="not finite"):
        SimilarTargets(1.0)(torch.tensor([0.0, torch.nan]), seeded())


def test_the_first_target_that_was_given_chooses_partners() -> None:
    y = {"price": torch.tensor([0.0, 0, 9, 9]), "area": torch.tensor([0.0, 9, 0, 9])}
    _, mixed = Mixup(1.0, partners=SimilarTargets(0.1), generator=seeded())(torch.randn(4, 2), y, parts=True)
    assert torch.equal(mixed["price"].y, mixed["price"].y_partner)


def test_an_accuracy_of_what_has_none() -> None:
    logits, y = torch.randn(4, 3), torch.randint(3, (4,))
    with pytest.raises(TypeError, match="got list"):
        calibration.mixed_accuracy(logits, y.tolist())
    with pytest.raises(ValueError, match="have no accuracy against numbers"):
        calibration.mixed_accuracy(logits, torch.randn(4))
    with pytest.raises(ValueError, match="have no accuracy"):
        calibration.mixed_accuracy(logits, MixedTargets(torch.randn(4), torch.randn(4), torch.rand(4)))
