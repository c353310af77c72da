"""Batches, targets, losses and partners at the edges of what they may be."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mixreg import Choice, CutMix, DataMoments, ManifoldMixup, Mixup, RegMixup, calibration, mixed_loss
from mixreg.losses.mixed_targets import MixedTargets
from mixreg.methods.partial import PartialMixup


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("make", [Mixup, CutMix])
def test_wide_targets_beside_narrow_inputs_stay_wide(make: Any) -> None:
    x, y = torch.randn(4, 3, 8, 8), 1.7e9 + torch.arange(4).double()
    _, mixed = make(1.0, generator=seeded())(x, y)
    _, parts = make(1.0, generator=seeded())(x, y, parts=True)
    torch.testing.assert_close(mixed, parts.values(), rtol=1e-12, atol=1e-5)
    # In float32 all of them are one number.
    assert len(set((mixed - 1.7e9).tolist())) > 1


def test_a_label_that_small_integers_cannot_hold_is_nowhere() -> None:
    x, mask = torch.rand(2, 1, 2, 2), torch.full((2, 2, 2), 156, dtype=torch.uint8)
    _, soft = Mixup(1.0, 171, ignore_index=-100)(x, mask)
    assert torch.equal(soft.sum(1), torch.ones(2, 2, 2))
    _, parts = Mixup(1.0)(x, mask, parts=True)
    logits = torch.zeros(2, 171, 2, 2)
    logits[:, 156] = 5
    assert float(calibration.mixed_accuracy(logits, parts)) == 1

    class OfAnyInteger(nn.CrossEntropyLoss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return super().forward(input, target.long())

    torch.testing.assert_close(mixed_loss(OfAnyInteger())(logits, parts), functional.cross_entropy(logits, mask.long()))
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.3"):
        Mixup(1.0, 4, ignore_index=255)(x, torch.full((2, 2, 2), -1, dtype=torch.int8))


@pytest.mark.parametrize(
    "y", [torch.full((4, 1), 100.0), torch.ones(4, 4).bool(), torch.ones(4, 3), torch.tensor([[0, 1, 1]] * 4)]
)
def test_numbers_and_several_labels_are_not_smoothed(y: Tensor) -> None:
    with pytest.raises(ValueError, match="label_smoothing is for classes, as indices or as rows that sum to 1"):
        Mixup(1.0, label_smoothing=0.1)(torch.randn(4, 3), y)


def test_soft_labels_are_smoothed_as_their_classes_are() -> None:
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
    hard = Mixup(1.0, 3, label_smoothing=0.1, generator=seeded())(x, y)[1]
    soft = Mixup(1.0, 3, label_smoothing=0.1, generator=seeded())(x, functional.one_hot(y, 3).float())[1]
    assert torch.equal(hard, soft)


@pytest.mark.parametrize("ignored", [-100, 255])
def test_what_is_ignored_is_nobodys_balanced_partner(ignored: int) -> None:
    y = torch.tensor([ignored] * 6 + [0] * 3 + [1] * 2 + [2])
    # With parts a method that was not told knows negative labels for none.
    mix = Mixup(1.0, 3, partners="balanced", generator=seeded(), ignore_index=ignored if ignored > 0 else None)
    drawn = torch.cat([mix(torch.randn(12, 4), y, parts=True)[1].y_partner for _ in range(300)])
    share = torch.stack([(drawn == label).double().mean() for label in (ignored, 0, 1, 2)])
    error = (2 / 9 / drawn.numel()) ** 0.5
    assert float(share[0]) == 0
    assert float((share[1:] - 1 / 3).abs().max()) < 4 * error
    alone = Mixup(1.0, 3, partners="balanced")(torch.randn(3, 4), torch.full((3,), -100), parts=True)[1]
    assert torch.equal(alone.y_partner, alone.y)


@pytest.mark.parametrize("y", [torch.randn(12, 1), torch.randn(12, 3), torch.ones(12, 3)])
def test_numbers_have_no_balanced_partners(y: Tensor) -> None:
    with pytest.raises(ValueError, match="balanced partners are for labels"):
        Mixup(1.0, partners="balanced")(torch.randn(12, 4), y)


def test_balanced_means_of_soft_labels_are_those_of_their_classes() -> None:
    x, y = torch.randn(40, 3), torch.randint(3, (40,), generator=seeded())
    hard, soft = (DataMoments(3, by_class=True) for _ in range(2))
    hard.update(x, y)
    soft.update(x, functional.one_hot(y, 3).double())
    torch.testing.assert_close(hard.balanced_means(), soft.balanced_means())


class FocalLabels(nn.Module):
    """Not linear in its targets, so that mixing them and comparing twice are two things."""

    reduction = "mean"

    def forward(self, u: Tensor, y: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(u, y.to(u.dtype), reduction="none")
        each = (1 - (-each).exp()).square() * each
        return each if self.reduction == "none" else each.mean()


def test_several_labels_are_compared_once_in_every_type() -> None:
    y, u = torch.randint(2, (6, 4), generator=seeded()), torch.randn(6, 4)
    losses = [
        mixed_loss(FocalLabels())(u, Mixup(1.0, generator=seeded(1))(torch.randn(6, 3), given, parts=True)[1])
        for given in (y, y.bool(), y.float())
    ]
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(losses[0], losses[2])


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.HuberLoss(reduction="sum"), functional.l1_loss])
def test_integers_are_numbers_to_losses_of_regression(loss: Any) -> None:
    y, u = torch.randint(50, (6,), generator=seeded()), torch.randn(6)
    _, mixed = Mixup(1.0, generator=seeded(1))(torch.randn(6, 3), y, parts=True)
    expected = loss(u, torch.lerp(y.float(), mixed.y_partner.float(), mixed.share))
    torch.testing.assert_close(mixed_loss(loss)(u, mixed), expected)


def test_one_output_a_sample_takes_integer_labels() -> None:
    y, u = torch.randint(2, (6,), generator=seeded()), torch.randn(6)
    _, mixed = Mixup(1.0, generator=seeded(1))(torch.randn(6, 3), y, parts=True)
    expected = functional.binary_cross_entropy_with_logits(u, torch.lerp(*(t.float() for t in mixed)))
    torch.testing.assert_close(mixed_loss(nn.BCEWithLogitsLoss())(u, mixed), expected)


def test_wrong_outputs_get_a_sentence() -> None:
    mixed = MixedTargets(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.2, 0.3]))
    with pytest.raises(ValueError, match=r"needs outputs n × classes × …, got shape \(2,\)"):
        mixed_loss(nn.CrossEntropyLoss())(torch.randn(2), mixed)
    with pytest.raises(TypeError, match="got the class CrossEntropyLoss"):
        mixed_loss(nn.CrossEntropyLoss)
    with pytest.raises(TypeError, match="outputs are NoneType"):
        mixed_loss([nn.CrossEntropyLoss()])(None, [mixed])
    with pytest.raises(TypeError, match="outputs must be a tensor, one for each sample, got dict"):
        mixed_loss(nn.CrossEntropyLoss())({"logits": torch.randn(2, 3)}, mixed)


class Named(NamedTuple):
    emb: Tensor
    attention_mask: Tensor


def test_masks_are_joined_wherever_their_name_stands() -> None:
    mask = (torch.rand(6, 5, generator=seeded()) > 0.5).long()
    x = torch.randn(6, 4)

    def mixed(batch: Any) -> Any:
        return Mixup(1.0, 3, generator=seeded(2))(batch, torch.arange(6) % 3)[0]

    joined = mixed({"emb": x, "mask": mask})["mask"]
    assert not torch.equal(joined, mask)
    found = (
        mixed(Named(x, mask)).attention_mask,
        mixed({"emb": x, "mask": (mask, mask.clone())})["mask"][1],
        mixed({"emb": x, "mask": {"q": mask}})["mask"]["q"],
        mixed({"emb": x, "Mask": mask})["Mask"],
    )
    assert all(torch.equal(each, joined) for each in found)
    assert torch.equal(mixed({"emb": x, "masked_ids": mask})["masked_ids"], mask)


def test_rows_of_another_number_are_no_drawn_ones() -> None:
    x, y, net = torch.randn(6, 4), torch.arange(6) % 3, nn.Linear(4, 3)
    with pytest.raises(TypeError, match=r"RegMixup takes x and y, one \(x, y\) pair, or the 4 rows"):
        RegMixup(1.0, num_classes=3)(net, (x, y, y))
    with pytest.raises(TypeError, match=r"ManifoldMixup takes .* or the 5 rows that its collate_fn gives, got 4"):
        ManifoldMixup([""], 1.0, 3)(net, (x, y, y, x))
    with pytest.raises(TypeError, match=r"got a single Tensor$"):
        RegMixup(1.0, num_classes=3)(net, x)


def test_a_field_cannot_be_an_input_and_the_parts_of_a_target() -> None:
    batch = {"image": torch.randn(4, 3)}
    same = Mixup(1.0, inputs="image", targets="image", generator=seeded())(batch)["image"]
    assert not torch.equal(same, batch["image"])
    with pytest.raises(ValueError, match="'image' is an input and a target"):
        Mixup(1.0, inputs="image", targets="image")(batch, parts=True)


def test_hidden_parts_of_booleans_are_numbers() -> None:
    y = torch.rand(6, 3, generator=seeded()) > 0.5
    _, mixed = ManifoldMixup([""], 1.0, generator=seeded())(nn.Linear(4, 3), torch.randn(6, 4), y, parts=True)
    assert mixed.values().is_floating_point()


def test_a_choice_has_one_generator_and_one_ignored_label() -> None:
    with pytest.raises(ValueError, match="give generator= to Choice alone"):
        Choice([Mixup(1.0, 3, generator=seeded()), CutMix(1.0, 3)])
    with pytest.raises(ValueError, match="ignore the same label, or there is no one rule for them, got 255, None"):
        Choice([Mixup(1.0, 3, ignore_index=255), CutMix(1.0, 3)])


def test_regmixup_takes_masks() -> None:
    x, y, net = torch.rand(6, 1, 4, 4), torch.randint(3, (6, 4, 4)), nn.Conv2d(1, 3, 1)
    found = RegMixup(0.0, weight=0.5, num_classes=3)(net, x, y)
    torch.testing.assert_close(found, 1.5 * functional.cross_entropy(net(x), y))


def test_partial_mixup_reads_batches_by_their_fields() -> None:
    batch = {"image": torch.randn(4, 3), "label": torch.arange(4) % 2, "name": list("abcd")}
    found = PartialMixup("inputs", 1.0, 2, inputs="image", targets="label", generator=seeded())(batch)
    expected = PartialMixup("inputs", 1.0, 2, generator=seeded())(batch["image"], batch["label"])
    assert torch.equal(found["image"], expected[0])
    assert torch.equal(found["label"], expected[1])
    assert found["name"] == list("abcd")


@pytest.mark.parametrize("partners", ["uniform", "balanced"])
def test_an_empty_batch_stays_empty(partners: str) -> None:
    x, y = Mixup(1.0, 3, partners=partners)(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert x.shape == (0, 4)
    assert y.shape == (0, 3)


def test_a_callable_of_targets_alone_draws_no_partners() -> None:
    with pytest.raises(ValueError, match=r"or a callable\(y, generator\), got <function"):
        Mixup(1.0, partners=lambda y: y)
    Mixup(1.0, partners=lambda y, generator=None: torch.arange(len(y)))(torch.randn(3, 2), torch.randn(3))
