"""Batches, methods and schedules: what a run trains on."""

import numpy as np
import pytest
import torch

from mixreg._support.random import stream
from mixreg.data import Dataset, Split
from mixreg.losses import cross_entropy
from mixreg.theory.moments import DataMoments
from mixreg.training import Config, preset
from mixreg.training.array_batches import ArrayBatches, crop_and_flip, mean_crop_and_flip
from mixreg.training.batches import Pixels, count_steps, noisy_labels, own_rows, split_holdout
from mixreg.training.build import build_method


def pictures(n: int = 40, side: int = 16, channels: int = 3) -> Dataset:
    generator = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = generator.integers(0, 120, (n, side, side, channels), dtype=np.uint8) + (100 * y[:, None, None, None]).astype(
        np.uint8
    )
    return Dataset("pictures", Split(x, y), Split(x[:10], y[:10]), 2)


def test_the_mean_over_crops_and_flips_is_exact() -> None:
    batches = ArrayBatches(pictures(), Config(holdout=0.0))
    images = batches.x[:1].expand(20_000, -1, -1, -1)
    sampled = crop_and_flip(images, stream("test")).double()
    exact = mean_crop_and_flip(images[0].double())
    standard_error = sampled.std(0) / 20_000**0.5
    assert ((sampled.mean(0) - exact).abs() <= 5 * standard_error + 1e-9).all()


def test_crops_and_flips_are_windows_of_the_padded_image() -> None:
    images = torch.randint(1, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=stream("images"))
    padded = torch.nn.functional.pad(images, [4] * 4)
    for image, result in zip(padded, crop_and_flip(images, stream("crops")), strict=True):
        windows = [image[:, r : r + 8, c : c + 8] for r in range(9) for c in range(9)]
        assert any(torch.equal(result, w) or torch.equal(result, w.flip(2)) for w in windows)


def test_pixels_are_standardised() -> None:
    dataset = pictures()
    pixels = Pixels.of(dataset.train.x)
    scaled = pixels.scaled(torch.from_numpy(dataset.train.x).permute(0, 3, 1, 2)).double()
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-5)


def test_pixels_do_not_depend_on_their_order_in_memory() -> None:
    dataset = pictures(side=9)
    pixels = Pixels.of(dataset.train.x)
    last = torch.from_numpy(dataset.train.x).permute(0, 3, 1, 2)
    scaled = pixels.scaled(last)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(scaled, pixels.scaled(last.contiguous()))
    assert torch.equal(scaled[:1], pixels.scaled(last[:1]))
    assert torch.equal(pixels.scaled(last[::3]), scaled[::3])
    exact = (last.double() / 255 - pixels.mean.double().reshape(-1, 1, 1)) / pixels.std.double().reshape(-1, 1, 1)
    torch.testing.assert_close(scaled.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("augment", ["none", "standard"])
def test_batches_of_bytes_know_their_mean(augment: str) -> None:
    batches = ArrayBatches(pictures(n=300, side=9), Config(holdout=0.0, augment=augment, batch_size=64))
    by_mean, by_samples = DataMoments(2, by_class=False), DataMoments(2, by_class=False)
    for batch in batches.epoch(0):
        assert batch.x_mean is not None
        # x itself was rounded to float32 after it was scaled.
        torch.testing.assert_close(batch.x_mean, batch.x.double().mean(0), rtol=0, atol=1e-6)
        batch.add_to(by_mean)
        by_samples.update(batch.x, batch.y)
    assert by_mean.count == by_samples.count == 300
    torch.testing.assert_close(by_mean.x_mean, by_samples.x_mean, rtol=0, atol=1e-6)
    assert torch.equal(by_mean.y_mean, by_samples.y_mean)
    if augment == "none":
        exact = (batches.x.double().mean(0) / 255 - batches.preparation.pixels.mean.double().reshape(-1, 1, 1)) / (
            batches.preparation.pixels.std.double().reshape(-1, 1, 1)
        )
        torch.testing.assert_close(by_mean.x_mean, exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [0, 200, 255])
def test_a_channel_that_never_varies_has_the_mean_that_the_network_sees(value: int) -> None:
    images = torch.randint(0, 256, (50, 4, 5, 7), dtype=torch.uint8, generator=stream("alpha"))
    images[:, 3] = value
    pixels = Pixels.of(images.permute(0, 2, 3, 1).numpy())
    seen, mean = pixels.scaled_with_mean(images)
    torch.testing.assert_close(mean, seen.double().mean(0), rtol=1e-6, atol=1e-6)


def test_class_means_are_kept_where_they_are_asked_for() -> None:
    batches = ArrayBatches(pictures(n=100), Config(holdout=0.0, augment="none", batch_size=50))
    asked = DataMoments(2, by_class=True)
    for batch in batches.epoch(0):
        batch.add_to(asked)
    x = batches.scaled(batches.x).double()
    means = torch.stack([x[batches.y == k].mean(0) for k in range(2)])
    torch.testing.assert_close(asked.balanced_means()[0], means.mean(0), rtol=0, atol=1e-6)


def test_label_noise_and_held_out_data() -> None:
    labels = torch.arange(1000) % 7
    config = Config(label_noise=0.25, holdout=0.2)
    noisy = noisy_labels(labels, 7, config)
    assert int((noisy != labels).sum()) == 250
    assert int(noisy.min()) >= 0
    assert int(noisy.max()) <= 6
    kept, held = split_holdout(labels, config)
    assert len(held) == 200
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(1000))


def test_shares_of_a_batch() -> None:
    rows = [own_rows(10, rank, 3) for rank in range(3)]
    assert [list(range(10))[r] for r in rows] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    for world in (1, 2, 5):
        assert count_steps(100, 30, world) == 3
        assert count_steps(118, 51, world) == 3
        assert count_steps(10, 50, world) == 1
    with pytest.raises(ValueError, match="batches of 1 samples cannot be shared by 2 processes"):
        count_steps(100, 1, 2)


def test_methods_are_their_definitions() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(50, 4), torch.arange(50) % 3
    means = x.mean(0), torch.bincount(y) / 50
    net = torch.nn.Linear(4, 3)
    one_hot = torch.eye(3)[y]

    def value(name: str) -> torch.Tensor:
        method = build_method(Config(method=name), net, 3, lambda: DataMoments.from_means(*means, 3))
        return method.losses(net, method.draw(x, one_hot, stream("method"))).mean()

    def shrunk(t: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return mean + 0.75 * (t - mean)

    torch.testing.assert_close(value("erm"), torch.nn.functional.cross_entropy(net(x), y))
    expected = cross_entropy(shrunk(one_hot, means[1]), net(shrunk(x, means[0]))).mean()
    torch.testing.assert_close(value("modified"), expected)
    torch.testing.assert_close(value("smoothing"), cross_entropy(shrunk(one_hot, means[1]), net(x)).mean())


def test_the_papers_schedules() -> None:
    resnet, lenet, imagenet = preset("cifar-resnet34"), preset("cifar-lenet"), preset("imagenet-resnet50", data="x")
    for config, drops in ((resnet, (60, 120, 160)), (lenet, (100,)), (imagenet, (66, 133, 177))):
        rates = [config.lr_at(epoch) for epoch in range(200)]
        assert [e for e in range(1, 200) if rates[e] != rates[e - 1]] == list(drops)
        assert rates[-1] == pytest.approx(config.lr * 0.1 ** len(drops))
    assert [preset("cifar-lenet", epochs=10).lr_at(e) for e in (4, 5)] == pytest.approx([0.01, 0.001])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; known are adaptive, approximate, choice, cutmix, erm"),
        ({"alpha": -1.0}, r"alpha must lie in \[0, inf\]"),
        ({"epochs": 0}, "epochs must be a number of at least 1, got 0"),
        ({"lr": float("nan")}, "lr must be a number of at least 0"),
        ({"holdout": 1.0}, r"holdout must lie in \[0, 1\)"),
        ({"drops": (1.5,)}, "fractions of the epochs"),
    ],
)
def test_wrong_settings(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**change)
