"""torchvision itself, where it is installed: its kinds of tensors, and its mixing beside ours."""

from __future__ import annotations

import pytest
import torch

from mixreg import Choice, CutMix, DataMoments, Mixup

# Where its compiled part does not fit PyTorch's, importing it raises a RuntimeError.
v2 = pytest.importorskip("torchvision.transforms.v2", exc_type=(ImportError, RuntimeError))
from torchvision import tv_tensors  # noqa: E402


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("make", [Mixup, CutMix])
def test_images_and_masks_keep_their_kind(make: type) -> None:
    images = tv_tensors.Image(torch.rand(6, 3, 8, 8, generator=seeded()))
    masks = tv_tensors.Mask(torch.randint(3, (6, 8, 8), generator=seeded(1)))
    mixed, parts = make(1.0, 3, generator=seeded(2))(images, masks, parts=True)
    assert isinstance(mixed, tv_tensors.Image)
    assert isinstance(parts.y, tv_tensors.Mask)
    assert isinstance(parts.y_partner, tv_tensors.Mask)
    plain, _ = make(1.0, 3, generator=seeded(2))(images.as_subclass(torch.Tensor), masks.as_subclass(torch.Tensor))
    assert torch.equal(mixed.as_subclass(torch.Tensor), plain)


def test_the_rule_is_the_mean_of_what_torchvisions_mixup_shows() -> None:
    x, y = torch.rand(6, 1, 4, 4, generator=seeded()), torch.arange(6)
    moments = DataMoments(6)
    moments.update(x, y)
    rule = Mixup(1.0, 6).rule(moments)
    torch.manual_seed(0)
    shown = []
    for _ in range(4000):
        # Its partner is the row before, its λ that of the row: in a random order any partner, named by its larger part.
        order = torch.randperm(6)
        mixed, soft = v2.MixUp(alpha=1.0, num_classes=6)(x[order], y[order])
        is_own = soft.gather(1, y[order].unsqueeze(1)).squeeze(1) >= 0.5
        shown.append((mixed, soft, torch.where(is_own, order, order.roll(1))))
    mixed, soft, name = (torch.cat(part) for part in zip(*shown, strict=True))
    # A partner is never the sample itself there: of six, x̄ of the other five.
    for values, found, share in ((x, mixed, rule.x_share), (torch.eye(6), soft, rule.y_share)):
        for i in range(6):
            others = values[torch.arange(6) != i].double().mean(0)
            rows = found[name == i].double()
            gap = rows.mean(0) - (others + share * (values[i].double() - others))
            error = rows.std(0) / len(rows) ** 0.5
            assert bool((gap.abs() <= 4 * error + 1e-9).all()), float((gap.abs() / error).max())


def test_it_stands_in_a_collate_function_beside_torchvisions() -> None:
    samples = [(tv_tensors.Image(torch.rand(3, 8, 8)), index % 3) for index in range(6)]
    loader = torch.utils.data.DataLoader(samples, 6, collate_fn=Choice([Mixup(0.2, 3), CutMix(1.0, 3)]).collate_fn)
    x, y = next(iter(loader))
    assert x.shape == (6, 3, 8, 8)
    torch.testing.assert_close(y.sum(1), torch.ones(6))
