"""What stands in the place of timm's Mixup: its distribution, its rule, its place in a train script."""

import inspect
import math

import numpy as np
import pytest
import torch
from timm_mixup import documented_mixup, installed_mixup
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from mixreg import DataMoments, Rescaled, Rule, Theta
from mixreg._support.random import stream
from mixreg.adapters.timm import FastCollateMixup, Mixup

OPTIONS = [
    {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "prob": 0.5, "switch_prob": 0.3},
    {"mixup_alpha": 0.4, "label_smoothing": 0.0, "mode": "pair"},
    {"mixup_alpha": 0.0, "cutmix_alpha": 0.6, "mode": "elem"},
    {"mixup_alpha": 0.3, "cutmix_minmax": (0.3, 0.9), "prob": 0.9, "mode": "elem"},
]
DRAWS, SAMPLES = 1_000, 7


def data() -> tuple[torch.Tensor, torch.Tensor, DataMoments]:
    """Small images far from zero, and unbalanced labels."""
    x = 2 + torch.randn(SAMPLES, 1, 6, 5, generator=stream("timm"), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 2, 1, 0, 1])
    moments = DataMoments(3)
    moments.update(x, y)
    return x, y, moments


def smoothed(y: torch.Tensor, options: dict) -> torch.Tensor:
    epsilon = options.get("label_smoothing", 0.1)
    return (1 - epsilon) * torch.nn.functional.one_hot(y, 3).double() + epsilon / 3


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_shown_of_a_sample_is_on_average_what_the_rule_says(options: dict) -> None:
    x, y, moments = data()
    mixup, order = Mixup(num_classes=3, generator=stream("shown"), **options), stream("order")
    rule = mixup.rule(moments)
    targets = smoothed(y, options)
    expected = rule.shrink(x), rule.y_mean + rule.y_share * (targets - rule.y_mean)
    found: list[list[torch.Tensor]] = []
    for _ in range(DRAWS):
        # Drawn with replacement: a partner is any sample, also itself.
        own = torch.randint(SAMPLES, (40,), generator=order)
        shown = mixup(x[own], y[own])
        gaps = (part.double() - mean[own] for part, mean in zip(shown, expected, strict=True))
        found.append([torch.zeros_like(m).index_add_(0, own, gap) for m, gap in zip(expected, gaps, strict=True)])
    for parts in zip(*found, strict=True):
        gaps = torch.stack(parts)
        error = gaps.std(0) / math.sqrt(DRAWS)
        # Of 231 numbers; the generators are fixed.
        assert bool((gaps.mean(0).abs() <= 4 * error + 1e-12).all()), float((gaps.mean(0).abs() / error).max())


def statistics(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What does not depend on which row a mixture stands in: moments up to the second of pixels, labels and both."""
    z = torch.cat([x.double().flatten(1), y.double()], 1)
    products = (z.T @ z / len(z)).flatten()
    spread = y.double().amax(1)
    return torch.cat([z.mean(0), products, torch.stack([spread.mean(), spread.square().mean()])])


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_shown_has_timms_distribution(options: dict) -> None:
    x, y, _ = data()
    np.random.seed(0)  # noqa: NPY002 (timm draws from there)
    theirs = (installed_mixup() or documented_mixup)(num_classes=3, **options)
    ours, order = Mixup(num_classes=3, generator=stream("ours"), **options), stream("order of both")
    found: list[torch.Tensor] = []
    for mixup in (ours, theirs):
        values = []
        for _ in range(DRAWS):
            own = torch.randint(SAMPLES, (10,), generator=order)
            values.append(statistics(*mixup(x[own].clone(), y[own])))
        found.append(torch.stack(values))
    gap = (found[0].mean(0) - found[1].mean(0)).abs()
    error = sum(part.var(0) / DRAWS for part in found).sqrt()
    # Of more than a thousand numbers at once; the generators are fixed.
    assert bool((gap <= 4.5 * error + 1e-12).all()), float((gap / error.clamp(min=1e-12)).max())
    assert float((gap <= 2 * error + 1e-12).double().mean()) > 0.8


def test_the_signature_is_timms() -> None:
    given = inspect.signature(Mixup).parameters
    assert list(given)[:10] == [
        "mixup_alpha", "cutmix_alpha", "cutmix_minmax", "prob", "switch_prob", "mode", "correct_lam",
        "label_smoothing", "num_classes", "multi_label",
    ]  # fmt: skip
    installed = installed_mixup()
    if installed is not None:
        theirs = inspect.signature(installed).parameters
        assert {name: parameter.default for name, parameter in theirs.items()} == {
            name: given[name].default for name in theirs
        }


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_modes_share_a_lambda_as_timms_do_and_batches_may_be_odd(mode: str) -> None:
    x, y = torch.randn(7, 2, 8, 8, generator=stream("odd")), torch.arange(7)
    before = x.clone()
    options = {"mixup_alpha": 1.0, "mode": mode, "label_smoothing": 0.0, "num_classes": 7}
    mixed, soft = Mixup(**options, generator=stream(mode))(x, y)
    again = Mixup(**options, generator=stream(mode))(x, y)
    assert torch.equal(mixed, again[0])
    assert torch.equal(soft, again[1])
    assert torch.equal(x, before)
    own = soft.gather(1, y[:, None])[:, 0]
    assert bool((own >= 0.5).all())
    # The one in the middle is its own partner.
    assert float(own[3]) == pytest.approx(1)
    torch.testing.assert_close(mixed, torch.einsum("ij,jchw->ichw", soft, x))
    others = own[[0, 1, 2, 4, 5, 6]]
    if mode == "pair":
        torch.testing.assert_close(own, own.flip(0))
    assert len(set(others.tolist())) == {"batch": 1, "pair": 3, "elem": 6}[mode]
    # Its parts are those labels.
    _, parts = Mixup(**options, generator=stream(mode))(x, y, parts=True)
    torch.testing.assert_close(parts.soft(7), soft)


def test_labels_by_lambda_where_areas_are_not_corrected() -> None:
    mixup = Mixup(
        0.0, 0.7, mode="elem", correct_lam=False, label_smoothing=0.0, num_classes=2, generator=stream("uncorrected")
    )
    x, y = torch.zeros(20_000, 1, 4, 4), torch.arange(20_000) % 2
    _, soft = mixup(x, y)
    # Partners are of the other class: row i and row n − 1 − i.
    own = soft.gather(1, y[:, None])[:, 0].double()
    assert float((own.mean() - Theta(0.7).mean).abs()) < 4 * float(own.std()) / math.sqrt(len(own))


def test_a_train_script_with_mixing_that_ends() -> None:
    """timm's loop: mixup_fn(input, target), and mixup_enabled = False from an epoch on."""
    x, y, _ = data()
    x = x.float()
    mixup_fn = Mixup(0.8, 1.0, num_classes=3, generator=stream("script"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    moments = DataMoments(3)
    for epoch in range(3):
        if epoch == 2:
            mixup_fn.mixup_enabled = False
        for inputs, target in DataLoader(TensorDataset(x, y), batch_size=4):
            moments.update(inputs, target)
            mixed, soft = mixup_fn(inputs, target)
            assert mixup_fn.mixup_enabled != torch.equal(mixed, inputs)
            if epoch == 2:
                torch.testing.assert_close(soft.double(), smoothed(target, {}), check_dtype=False)
            optimizer.zero_grad()
            cross_entropy(net(mixed), soft).backward()
            optimizer.step()
    assert mixup_fn.rule(moments).x_share == 1
    mixup_fn.mixup_enabled = True
    rule = mixup_fn.rule(moments).to("cpu", torch.float32)
    torch.testing.assert_close(Rescaled(net, rule=rule)(x), rule.stretch(net(rule.shrink(x))))


def test_images_of_bytes_are_collated_and_mixed() -> None:
    rng = np.random.default_rng(0)
    samples = [(rng.integers(0, 256, (3, 8, 8), dtype=np.uint8), i % 3) for i in range(6)]
    options = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "num_classes": 3, "mode": "elem"}
    x, soft = FastCollateMixup(**options, generator=stream("bytes"))(samples)
    images, labels = torch.stack([torch.from_numpy(image) for image, _ in samples]), torch.arange(6) % 3
    expected, targets = Mixup(**options, generator=stream("bytes"))(images.float(), labels)
    assert x.dtype == torch.uint8
    assert torch.equal(x, expected.round().to(torch.uint8))
    assert torch.equal(soft, targets)
    loader = DataLoader(samples, batch_size=3, collate_fn=FastCollateMixup(**options, generator=stream("loader")))
    assert [len(batch) for batch, _ in loader] == [3, 3]


def test_what_timm_would_not_take_gets_a_sentence() -> None:
    for wrong, sentence in (
        ({"mode": "half"}, "mode is one of batch, pair, elem"),
        ({"prob": 2.0}, "prob must lie in"),
        ({"mixup_alpha": 0.0}, "one of mixup_alpha, cutmix_alpha and cutmix_minmax must be on"),
        ({"cutmix_minmax": (0.1, 0.5, 0.9)}, "two fractions of an image's sides"),
        ({"num_classes": 0}, "num_classes"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Mixup(**wrong)
    with pytest.raises(TypeError, match="CutMix takes images"):
        Mixup(0.0, 1.0, num_classes=3)(torch.randn(4, 5), torch.arange(4) % 3)
    moments = data()[2]
    with pytest.raises(ValueError, match="no such rule"):
        Mixup(0.0, 1.0, correct_lam=False, num_classes=3).rule(moments)


def test_several_labels_are_mixed_as_timm_mixes_them() -> None:
    x, _, _ = data()
    y = (torch.rand(SAMPLES, 3, generator=stream("labels")) > 0.5).double()
    moments = DataMoments()
    moments.update(x, y)
    options = {"mixup_alpha": 0.8, "label_smoothing": 0.2, "num_classes": 3, "multi_label": True, "mode": "elem"}
    ours, order = Mixup(**options, generator=stream("several")), stream("order")
    rule = ours.rule(moments)
    smooth = 0.8 * y + 0.1
    torch.testing.assert_close(rule.y_mean, smooth.mean(0))
    gaps = []
    for _ in range(DRAWS):
        own = torch.randint(SAMPLES, (40,), generator=order)
        _, shown = ours(x[own], y[own])
        expected = rule.y_mean + rule.y_share * (smooth - rule.y_mean)
        gaps.append(torch.zeros_like(y).index_add_(0, own, shown - expected[own]))
    found = torch.stack(gaps)
    assert bool((found.mean(0).abs() <= 4 * found.std(0) / math.sqrt(DRAWS)).all())
    with pytest.raises(ValueError, match=r"targets are n × 3 labels, got shape \(7,\)"):
        ours(x, torch.zeros(SAMPLES, dtype=torch.long))
    with pytest.raises(ValueError, match="needs y_mean"):
        Rule.from_timm(x_mean=moments.x_mean, num_classes=3, multi_label=True)
    installed = installed_mixup()
    if installed is not None:
        np.random.seed(0)  # noqa: NPY002 (timm draws from there)
        theirs = torch.cat([installed(**options)(x[:6].clone(), y[:6])[1].double() for _ in range(4000)])
        mine = torch.cat([ours(x[:6], y[:6])[1] for _ in range(4000)])
        error = (theirs.var(0) / len(theirs) + mine.var(0) / len(mine)).sqrt()
        assert bool(((theirs.mean(0) - mine.mean(0)).abs() <= 4 * error).all())
