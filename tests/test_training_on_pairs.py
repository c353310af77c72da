"""Training compares pairs of labels and shares where it can: the losses and gradients are those of soft labels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixreg import Choice, CutMix, Mixup, PartialMixup
from mixreg._support.random import stream
from mixreg.losses import WeightedCrossEntropy
from mixreg.losses.pair_cross_entropy import label_cross_entropy
from mixreg.losses.targets import to_values
from mixreg.methods.erm import EmpiricalRisk
from mixreg.methods.method import Augmentation, Rows
from mixreg.training.batches import Batch
from mixreg.training.step import draw_rows, has_parts


class Fixed(Mixup):
    """Draws otherwise than the class that it comes from."""

    def draw(self, x, y, generator=None) -> Rows:
        return x, to_values(y, self.num_classes, x.dtype)


class Compared(Mixup):
    """Compares otherwise."""

    def losses(self, net, rows: Rows) -> torch.Tensor:
        x, y = rows
        return (net(x) - y).square().sum(1)


PAIRS = {
    "mixup": Mixup(0.7, 3),
    "cutmix": CutMix(0.7, 3),
    "erm": EmpiricalRisk(1.0, 3),
    "outputs": PartialMixup("outputs", 0.7, 3),
    "choice": Choice([Mixup(0.7, 3), CutMix(1.0, 3)], probability=0.7),
    "balanced": Mixup(0.7, 3, partners="balanced"),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 1.0])])
def test_pairs_give_the_losses_and_gradients_of_soft_labels(name, weights) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    batch = Batch(torch.randn(12, 1, 4, 4), torch.randint(3, (12,)), slice(None), 12)
    method: Augmentation = PAIRS[name]
    method.loss = "cross_entropy" if weights is None else WeightedCrossEntropy(weights)
    assert has_parts(method)
    for seed in range(5):
        rows = draw_rows(method, batch, 3, 0.0, stream(seed))
        # Labels and shares, or labels alone where nothing is mixed.
        of_targets = [torch.long] if name == "erm" else [torch.long, torch.long, torch.float32]
        assert [row.dtype for row in rows] == [torch.float32, *of_targets]
        soft = method.draw(batch.x, to_values(batch.y, 3), stream(seed))
        assert torch.equal(rows[0], soft[0])
        found, expected = method.losses(net, rows), method.losses(net, soft)
        torch.testing.assert_close(found, expected)
        slopes = [torch.autograd.grad(losses.sum(), list(net.parameters())) for losses in (found, expected)]
        torch.testing.assert_close(*slopes)
        # A process's own rows stand alone.
        torch.testing.assert_close(method.losses(net, tuple(row[:5] for row in rows)), found[:5])
    smoothed = draw_rows(method, batch, 3, 0.1, stream(0))
    assert len(smoothed) == 2
    assert float(smoothed[1].min()) > 0


def test_classes_of_ones_own_are_trained_as_they_say() -> None:
    batch = Batch(torch.randn(6, 4), torch.randint(3, (6,)), slice(None), 6)
    for method in (Fixed(1.0, 3), Compared(1.0, 3), Choice([Fixed(1.0, 3)])):
        assert not has_parts(method)
        assert len(draw_rows(method, batch, 3, 0.0, stream(0))) == 2
    numbers = replace_loss(Mixup(1.0), "squared_error")
    assert not has_parts(numbers)


def replace_loss(method: Mixup, loss: str) -> Mixup:
    method.loss = loss
    return method


def test_rows_of_pairs_have_one_for_each_sample() -> None:
    batch = Batch(torch.randn(6, 4), torch.randint(3, (6,)), slice(2, 5), 6)
    rows = draw_rows(Mixup(1.0, 3), batch, 3, 0.0, stream(0))
    assert all(len(row) == 6 for row in rows)


class Louder(EmpiricalRisk):
    """Changes its inputs after all."""

    def draw(self, x, y, generator=None) -> Rows:
        return 2 * x, to_values(y, 3, x.dtype)

    def draw_parts(self, x, y, generator=None):
        return 2 * x, super().draw_parts(x, y, generator)[1]


def test_what_comes_from_erm_and_draws_is_asked_to() -> None:
    batch = Batch(torch.randn(6, 4), torch.randint(3, (6,)), slice(None), 6)
    rows = draw_rows(Louder(1.0, 3), batch, 3, 0.0, stream(0))
    assert torch.equal(rows[0], 2 * batch.x)
    assert torch.equal(draw_rows(EmpiricalRisk(1.0, 3), batch, 3, 0.0, stream(0))[0], batch.x)


def test_labels_alone_are_compared_as_pairs_are() -> None:
    """With what is ignored, what is impossible and has no weight, and the same sentences for what is wrong."""
    logits = torch.randn(7, 4, requires_grad=True)
    y = torch.tensor([0, 1, 3, -100, 2, 2, 0])
    for labels, weight in ((y, None), (y.abs() % 4, None), (y.abs() % 4, torch.tensor([1.0, 2.0, 0.5, 1.0]))):
        expected = F.cross_entropy(logits, labels, weight, reduction="none")
        found = label_cross_entropy(logits, labels, weight)
        torch.testing.assert_close(found, expected)
        slopes = [torch.autograd.grad(losses.sum(), logits)[0] for losses in (found, expected)]
        torch.testing.assert_close(*slopes)
    impossible = torch.tensor([[1.0, -torch.inf, 0.0]])
    assert label_cross_entropy(impossible, torch.tensor([1]), torch.tensor([1.0, 0.0, 1.0])) == 0
    with pytest.raises(ValueError, match="labels must lie in"):
        label_cross_entropy(logits, torch.full((7,), 9))
    with pytest.raises(ValueError, match="3 class weights for 4 classes"):
        label_cross_entropy(logits, y.abs() % 4, torch.ones(3))
