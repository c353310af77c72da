"""Any batch and any target: trees, named fields, masks and ids, ignored pixels, tokens, several labels."""

from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from mixreg import Choice, CutMix, DataMoments, ManifoldMixup, MixedTargets, Mixup, RegMixup, Rescaled, mixed_loss
from mixreg._support.random import seeded
from mixreg.methods.modified import ModifiedData

MARK = torch.arange(6, dtype=torch.float64)


def test_ids_stay_and_masks_are_joined() -> None:
    """Each sample is marked by a number: what is mixed shows whose partner it has."""
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    x = {
        "image": MARK.clone(),
        "ids": torch.arange(6),
        "mask": mask.bool(),
        "attention_mask": mask,
        "length": mask.sum(1),
    }
    mixed, parts = Mixup(1.0, probability=0.6, generator=seeded(2))(x, torch.arange(6), parts=True)
    assert torch.equal(mixed["ids"], x["ids"])
    assert torch.equal(mixed["length"], x["length"])
    has_share = parts.share > 0
    assert has_share.any()
    assert not has_share.all()
    expected = torch.where(has_share.unsqueeze(1), mask | mask[parts.y_partner], mask)
    assert torch.equal(mixed["attention_mask"], expected)
    assert mixed["attention_mask"].dtype == torch.long
    assert torch.equal(mixed["mask"], expected.bool())
    torch.testing.assert_close(mixed["image"], (1 - parts.share) * MARK + parts.share * MARK[parts.y_partner])
    assert torch.equal(x["attention_mask"], mask)  # the given one stays


def test_means_and_rules_pass_ids_on() -> None:
    x = {"image": torch.randn(50, 3, generator=seeded(0), dtype=torch.float64), "ids": torch.arange(50)}
    y = torch.randint(2, (50,), generator=seeded(1))
    moments = DataMoments(2, covariance=True)
    moments.update(x, y)
    torch.testing.assert_close(moments.x_mean["image"], x["image"].mean(0))
    assert moments.xx.shape == (3, 3)

    class Net(nn.Module):
        def forward(self, x: dict) -> torch.Tensor:
            assert torch.equal(x["ids"], torch.arange(50))
            return x["image"][:, :2]

    model = Rescaled(Net(), rule=Mixup(1.0, 2).rule(moments))
    shrunk = moments.x_mean["image"] + 0.75 * (x["image"] - moments.x_mean["image"])
    torch.testing.assert_close(model(x), moments.y_mean + (shrunk[:, :2] - moments.y_mean) / 0.75)


Named = namedtuple("Named", "pixels label name")


def test_batches_of_any_form_are_read_by_their_fields() -> None:
    x, y = torch.randn(6, 3, generator=seeded(0)), torch.arange(6)
    expected_x, expected_y = Mixup(1.0, 6, generator=seeded(1))(x, y)

    def mix(**fields) -> Mixup:
        return Mixup(1.0, 6, generator=seeded(1), **fields)

    three = mix(inputs=0, targets=1)((x, y, "index"))
    assert torch.equal(three[0], expected_x)
    assert torch.equal(three[1], expected_y)
    assert three[2] == "index"
    named = mix(inputs=0, targets=1)(Named(x, y, ["a"] * 6))
    assert isinstance(named, Named)
    assert torch.equal(named.pixels, expected_x)
    batch = {"image": x, "label": y, "name": list("abcdef")}
    found = mix(inputs="image", targets="label")(batch)
    assert torch.equal(found["image"], expected_x)
    assert torch.equal(found["label"], expected_y)
    assert found["name"] == list("abcdef")
    assert torch.equal(batch["label"], y)
    several = mix(inputs=("image", "other"), targets="label")({"image": x, "other": 2 * x, "label": y})
    torch.testing.assert_close(several["other"], 2 * several["image"])
    parts = mix(inputs="image", targets="label")(batch, parts=True)["label"]
    assert isinstance(parts, MixedTargets)
    samples = [{"image": a, "label": b} for a, b in zip(x, y, strict=True)]
    loaded = next(iter(DataLoader(samples, 6, collate_fn=mix(inputs="image", targets="label").collate_fn)))
    assert torch.equal(loaded["image"], expected_x)
    either = Choice([Mixup(1.0, 6), Mixup(1.0, 6)], generator=seeded(5), inputs="image", targets="label")(batch)
    assert either["label"].shape == (6, 6)
    with pytest.raises(KeyError, match=r"has nothing at 'pixels'"):
        mix(inputs="pixels", targets="label")(batch)
    with pytest.raises(
        TypeError, match="got a single dict; say where other batches hold them with inputs= and targets="
    ):
        mix()(batch)


def test_targets_of_several_kinds_are_mixed_alike() -> None:
    x = MARK.reshape(6, 1, 1, 1).expand(6, 1, 4, 4).clone()
    y = {"label": torch.arange(6), "number": MARK.clone(), "mask": torch.arange(6).reshape(6, 1, 1).expand(6, 4, 4)}
    classes = {"label": 6, "number": None, "mask": 6}
    mixed, soft = Mixup(1.0, classes, generator=seeded(0))(x, y)
    torch.testing.assert_close(mixed[:, 0, 0, 0], soft["number"])
    torch.testing.assert_close(soft["label"] @ MARK, soft["number"])
    torch.testing.assert_close(torch.einsum("nchw,c->nhw", soft["mask"], MARK), mixed[:, 0])
    cut, soft = CutMix(1.0, classes, generator=seeded(0))(x, y)
    torch.testing.assert_close(torch.einsum("nchw,c->nhw", soft["mask"], MARK), cut[:, 0])
    torch.testing.assert_close(cut.mean((1, 2, 3)), soft["number"])
    _, as_tuple = Mixup(1.0, 6, generator=seeded(0))(x, (y["label"], y["number"]))
    assert as_tuple[0].shape == (6, 6)
    with pytest.raises(TypeError, match="does not have one entry for each of the targets"):
        Mixup(1.0, {"label": 6})(x, y)
    with pytest.raises(ValueError, match="x has 6 samples and y has 5"):
        Mixup(1.0, 6)(x, (y["label"], MARK[:5]))


@pytest.mark.parametrize("kind", [Mixup, CutMix])
@pytest.mark.parametrize("ignored", [255, -100])
def test_ignored_pixels_have_no_part_in_either_form(kind, ignored) -> None:
    x = torch.rand(5, 3, 6, 6, generator=seeded(0))
    masks = torch.randint(4, (5, 6, 6), generator=seeded(1))
    masks[torch.rand(masks.shape, generator=seeded(2)) < 0.3] = ignored
    _, soft = kind(1.0, 4, ignore_index=ignored, generator=seeded(3))(x, masks)
    _, parts = kind(1.0, generator=seeded(3))(x, masks, parts=True)
    logits = torch.randn(5, 4, 6, 6, generator=seeded(4), requires_grad=True)
    mass = soft.sum(1)
    assert bool((mass < 0.999).any())
    found = mixed_loss(nn.CrossEntropyLoss(ignore_index=ignored))(logits, parts)
    expected = F.cross_entropy(logits, soft, reduction="sum") / mass.sum()
    torch.testing.assert_close(found, expected)
    slope = torch.autograd.grad(found, logits)[0]
    assert bool((slope.abs().sum(1)[mass == 0] == 0).all())
    torch.testing.assert_close(slope, torch.autograd.grad(expected, logits)[0])
    with pytest.raises(ValueError, match="labels must lie in"):
        kind(1.0, 4)(x, masks)


def test_token_labels_are_compared_token_by_token() -> None:
    x, y = torch.randn(5, 7, 8, generator=seeded(0)), torch.randint(3, (5, 7), generator=seeded(1))
    y[:, 5:] = -100
    _, parts = Mixup(1.0, generator=seeded(2))(x, y, parts=True)
    logits = torch.randn(5, 3, 7, generator=seeded(3))
    each = [F.cross_entropy(logits[:, :, :5], label[:, :5], reduction="none") for label in parts[:2]]
    expected = torch.lerp(*each, parts.share.unsqueeze(1)).mean()
    torch.testing.assert_close(mixed_loss(nn.CrossEntropyLoss())(logits, parts), expected)
    with pytest.raises(ValueError, match="parts=True"):
        Mixup(1.0, 3)(x, y.clamp(min=0))


def test_losses_and_hidden_layers_take_pairs_and_collate() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    x, y = torch.randn(8, 3), torch.randint(4, (8,))
    samples = list(zip(x, y, strict=True))
    for make in (
        lambda: RegMixup(2.0, num_classes=4, generator=seeded(1)),
        lambda: ManifoldMixup(["", "2"], 1.0, 4, generator=seeded(1)),
    ):
        expected = make()(net, x, y)
        loader = DataLoader(samples, 8, collate_fn=make().collate_fn)
        for found in (make()(net, (x, y)), make()(net, next(iter(loader)))):
            for a, b in zip(
                *((part,) if isinstance(part, torch.Tensor) else part for part in (found, expected)), strict=True
            ):
                assert torch.equal(a, b)


class Picture(torch.Tensor):
    """A kind of tensor of somebody's own, as torchvision has them."""


def test_kinds_of_tensors_are_kept() -> None:
    x = torch.rand(4, 1, 3, 3, generator=seeded(0)).as_subclass(Picture)
    masks = torch.randint(3, (4, 3, 3), generator=seeded(1)).as_subclass(Picture)
    for method in (Mixup(1.0), CutMix(1.0)):
        mixed, parts = method(x, masks, parts=True)
        assert isinstance(mixed, Picture)
        assert isinstance(parts.y_partner, Picture)


def test_wrong_combinations_get_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"CutMix takes floating-point images n × … × height × width, got .* \(8, 3\)"):
        CutMix(1.0, 2)(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))
    with pytest.raises(TypeError, match=r"x\['ids'\] has dtype torch.int64; convert it to floating point first"):
        Mixup(1.0, 2)({"ids": torch.arange(8)}, torch.zeros(8, dtype=torch.long))
    with pytest.raises(ValueError, match="y holds no target"):
        Mixup(1.0, 2)(torch.randn(8, 3), {})
    with pytest.raises(ValueError, match="labels that are ignored are not smoothed"):
        Mixup(1.0, 2, label_smoothing=0.1, ignore_index=-100)(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))
    modified = ModifiedData(1.0, DataMoments.from_means(torch.zeros(3), torch.zeros(2), 2))
    with pytest.raises(TypeError, match="no pairs: it has no parts"):
        modified(torch.randn(8, 3), torch.zeros(8, dtype=torch.long), parts=True)
