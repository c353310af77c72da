"""The examples: that they run, and that what each shows is right."""

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mixreg import CutMix, DataMoments, Mixup, SimilarTargets, mixed_loss
from mixreg._support.random import seeded, stream
from mixreg.losses.targets import to_values


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_segmentation_cuts_masks_with_images_and_ignores_what_is_not_labelled(monkeypatch) -> None:
    module = example("segmentation", monkeypatch)
    x, masks = module.shapes(20, seed=3)
    # Images that are their masks: what is shown of both must agree, pixel by pixel.
    cut, parts = CutMix(1.0, generator=seeded(0))(masks.double().unsqueeze(1), masks, parts=True)
    shown = torch.where(parts.share == 1, parts.y_partner, parts.y)
    assert torch.equal(cut[:, 0], shown.double())
    assert not torch.equal(shown, masks)
    mixed_x, parts = Mixup(0.4, generator=seeded(0))(x, masks, parts=True)
    logits = module.network()(mixed_x).detach().requires_grad_()
    mixed_loss(nn.CrossEntropyLoss(ignore_index=255))(logits, parts).backward()
    is_free = (parts.y == 255) & (parts.y_partner == 255)
    assert is_free.any()
    assert bool((logits.grad.abs().sum(1)[is_free] == 0).all())
    assert bool((logits.grad.abs().sum(1)[~is_free] > 0).all())
    # Far better than to call everything background.
    _, new = module.shapes(128, seed=1)
    background = float((new == 0).sum() / (new != 255).sum())
    assert module.main(5) > background + 0.5 * (1 - background)


def test_text_is_mixed_after_the_embedding_with_masks_joined(monkeypatch) -> None:
    module = example("text", monkeypatch)
    torch.manual_seed(0)
    net, (ids, _) = module.Reader().double(), module.texts(30, seed=5)
    embedded, mask = net.embed(ids)
    (mixed, joined), parts = Mixup(0.5, generator=seeded(1))((embedded, mask), torch.arange(30), parts=True)
    share = parts.share.reshape(-1, 1, 1)
    other = parts.y_partner
    torch.testing.assert_close(mixed, (1 - share) * embedded + share * embedded[other])
    assert torch.equal(joined, mask | mask[other] & (parts.share > 0).unsqueeze(1))
    assert (joined.sum(1) > mask.sum(1)).any()
    assert bool((mixed[~joined] == 0).all())
    # A text reads the same however much it is padded, and its gradient reaches both texts' words.
    wide = torch.cat([ids, torch.zeros(30, 3, dtype=torch.long)], 1)
    torch.testing.assert_close(net(wide), net(ids))
    pair = (1, int(other[1]))
    net.read(mixed, joined)[1].sum().backward()
    touched = net.embedding.weight.grad.abs().sum(1) > 0
    assert set(touched.nonzero().flatten().tolist()) == {int(word) for i in pair for word in ids[i] if word != 0}
    assert module.main(4) > 0.7


def test_categories_are_mixed_where_they_are_embedded_and_the_rule_is_the_mean(monkeypatch) -> None:
    module = example("tabular", monkeypatch)
    torch.manual_seed(0)
    net, mix = module.Table().double(), Mixup(0.5, 2)
    numbers, colour, y = module.table(12, seed=0)
    embedded = net.embed(numbers.double(), colour).detach()
    model = module.rescaled_head(net, mix, numbers.double(), colour, y)
    moments = DataMoments(2)
    moments.update(embedded, y)
    rule, draws, generator = mix.rule(moments), 6000, stream("tabular")
    drawn = [mix.draw(embedded, y, generator) for _ in range(draws)]
    values = to_values(y, 2, torch.float64)
    expected = rule.shrink(embedded), rule.y_mean + rule.y_share * (values - rule.y_mean)
    for found, mean in zip((torch.stack(part) for part in zip(*drawn, strict=True)), expected, strict=True):
        error = found.std(0) / math.sqrt(draws)
        assert bool(((found.mean(0) - mean).abs() <= 4 * error + 1e-12).all())
    torch.testing.assert_close(model(embedded), rule.stretch(net.head(rule.shrink(embedded))))
    found = module.main(8)
    assert min(found.values()) > 0.8


def test_time_series_end_with_the_weights_of_the_plain_loop(monkeypatch) -> None:
    module = example("time_series", monkeypatch)
    trained = module.train(2, seed=4)
    net, mix = module.network(), Mixup(0.3, 3, generator=seeded(4))
    loader = DataLoader(TensorDataset(*module.series(384, seed=0)), 48, shuffle=True, generator=seeded(4))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(2):
        for x, y in loader:
            mixed_x, mixed_y = mix(x, y)
            optimizer.zero_grad()
            F.cross_entropy(net(mixed_x), mixed_y).backward()
            optimizer.step()
    for a, b in zip(trained.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert module.main(8) > 0.8


def test_balanced_partners_find_more_of_rare_classes(monkeypatch) -> None:
    module = example("imbalanced", monkeypatch)
    x, y = module.points(2000, seed=0)
    _, mixed = Mixup(1.0, partners="balanced", generator=seeded(0))(x, y, parts=True)
    shares = torch.bincount(mixed.y_partner, minlength=3) / 2000
    assert bool(((shares - 1 / 3).abs() < 4 * math.sqrt(2 / 9 / 2000)).all())
    found = module.main(15)
    assert sum(found["balanced partners"]) > sum(found["uniform partners"])
    assert found["balanced partners"][2] > found["uniform partners"][2]


def test_c_mixup_mixes_neighbours_and_does_better_on_a_curve(monkeypatch) -> None:
    module = example("regression", monkeypatch)
    x, y = module.curve(200, seed=0)
    mix = Mixup(1.0, partners=SimilarTargets(0.2), generator=seeded(0))
    _, mixed = mix(x, y, parts=True)
    assert float((mixed.y - mixed.y_partner).abs().mean()) < 0.25
    moments = DataMoments()
    moments.update(x, y)
    assert mix.rule(moments) is None
    found = module.main(40)
    assert found["similar partners"] < found["any partners"]


def test_several_labels_are_mixed_as_numbers(monkeypatch) -> None:
    module = example("multilabel", monkeypatch)
    x, y = module.tagged(40, seed=2)
    mixed_x, parts = Mixup(0.5, generator=seeded(0))(x, y, parts=True)
    again, soft = Mixup(0.5, generator=seeded(0))(x, y)
    assert torch.equal(mixed_x, again)
    u, rarity = torch.randn(40, 4, generator=seeded(1)), torch.tensor([1.0, 2.0, 3.0, 3.0])
    criterion = nn.BCEWithLogitsLoss(pos_weight=rarity)
    torch.testing.assert_close(mixed_loss(criterion)(u, parts), criterion(u, soft))
    assert module.main(10) > 0.85


# How sure so few held-out texts are of the strength depends on rounding.
@pytest.mark.filterwarnings("ignore:.*held-out samples cannot tell strength")
def test_text_in_the_trainer_is_mixed_at_the_embedding_and_held_out_texts_fit_the_rule(monkeypatch, tmp_path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    module = example("huggingface_text", monkeypatch)
    samples = module.texts(20, seed=5)
    batch = module.padded(samples)
    assert batch["attention_mask"].sum(1).tolist() == [len(sample["input_ids"]) for sample in samples]
    found = module.main(6, str(tmp_path))
    # Above chance, and no worse than both named points, on texts that nothing was fitted on.
    assert min(accuracy for accuracy, _ in found.values()) > 0.6
    assert found["fitted"][1] < min(found["plain"][1], found["rescaled"][1]) + 0.02
    assert found["rescaled"] != found["plain"]
