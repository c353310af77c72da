"""Corruptions: severity grows, chance is reproducible, and simple ones against closed forms and other libraries."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_images

from mixreg.data import DataError, Split
from mixreg.data.corruptions import BENCHMARK, CORRUPTIONS, corrupt, corrupted_splits
from mixreg.data.corruptions.blurs import moved_along, zoom_matrix
from mixreg.data.corruptions.weather import plasma


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Pieces of two photographs, 32 × 32."""
    pieces = []
    for photograph in load_sample_images().images:
        small = np.asarray(Image.fromarray(photograph).resize((160, 128)))
        pieces += [small[r : r + 32, c : c + 32] for r in range(0, 128, 32) for c in range(0, 160, 32)]
    return np.stack(pieces)


def damage(images: np.ndarray, corrupted: np.ndarray) -> float:
    return float(np.sqrt(((corrupted.astype(float) - images) ** 2).mean()))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_severity_is_monotone(name, images: np.ndarray) -> None:
    found = [
        damage(images, corrupt(images, name, severity, torch.Generator().manual_seed(0))) for severity in range(1, 6)
    ]
    assert all(a < b for a, b in itertools.pairwise(found)), found
    assert found[0] > 0.5
    assert found[-1] < 110


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_reproducible_and_shaped(name, images: np.ndarray) -> None:
    first, second = (corrupt(images[:4], name, 3, torch.Generator().manual_seed(5)) for _ in range(2))
    assert np.array_equal(first, second)
    assert first.shape == images[:4].shape
    assert first.dtype == np.uint8
    grey = corrupt(images[:3, :28, :28, :1], name, 2, torch.Generator().manual_seed(5))
    assert grey.shape == (3, 28, 28, 1)


def test_all_parts_of_a_set(images: np.ndarray) -> None:
    parts = list(corrupted_splits(Split(images[:2], np.array([0, 1]))))
    assert len(parts) == 95
    assert len(BENCHMARK) == 15
    assert len({(name, severity) for name, severity, _ in parts}) == 95


def test_against_other_libraries(images: np.ndarray) -> None:
    expected = np.stack([gaussian_filter(image / 255, (0.7, 0.7, 0), mode="nearest") * 255 for image in images])
    assert np.abs(corrupt(images, "gaussian_blur", 3).astype(float) - np.floor(expected)).max() <= 1
    encoded = io.BytesIO()
    Image.fromarray(images[0]).save(encoded, "JPEG", quality=50)
    assert np.array_equal(corrupt(images[:1], "jpeg_compression", 4)[0], np.asarray(Image.open(encoded)))
    small = Image.fromarray(images[0]).resize((24, 24), Image.Resampling.BOX)
    pixelated = np.asarray(small.resize((32, 32), Image.Resampling.BOX))
    assert np.abs(corrupt(images[:1], "pixelate", 4)[0].astype(int) - pixelated).max() <= 1


def test_against_closed_forms(images: np.ndarray) -> None:
    scaled = images / 255
    mean = scaled.mean((1, 2), keepdims=True)
    contrast = np.clip(mean + 0.4 * (scaled - mean), 0, 1) * 255
    assert np.abs(corrupt(images, "contrast", 3) - contrast).max() <= 1
    import colorsys

    pixels = corrupt(images[:1], "brightness", 2)[0].reshape(-1, 3)
    for before, after in zip(images[0].reshape(-1, 3)[:50], pixels[:50], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255))
        expected = np.array(colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.1))) * 255
        assert np.abs(after - expected).max() <= 1
    pixels = corrupt(images[:1], "saturate", 5)[0].reshape(-1, 3)
    for before, after in zip(images[0].reshape(-1, 3)[:50], pixels[:50], strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255))
        expected = np.array(colorsys.hsv_to_rgb(hue, min(1, 3 * saturation + 0.3), value)) * 255
        assert np.abs(after - expected).max() <= 1


def test_noise_has_the_right_moments() -> None:
    grey = np.full((200, 32, 32, 3), 128, dtype=np.uint8)
    x = 128 / 255
    for name, variance in (
        ("gaussian_noise", 0.08**2),
        ("shot_noise", x / 100),
        ("speckle_noise", (0.12 * x) ** 2),
        ("impulse_noise", 0.03 * ((1 - x) ** 2 + x**2) / 2),
    ):
        noise = corrupt(grey, name, 3, torch.Generator().manual_seed(0)) / 255 - x
        assert noise.var() == pytest.approx(variance, rel=0.03), name


def test_movement_zoom_and_clouds() -> None:
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 16, 16] = 1
    moved = moved_along(point, 4, 2.0, torch.tensor([0.0]))
    weights = torch.exp(-0.5 * (torch.arange(9) / 2.0) ** 2)
    torch.testing.assert_close(moved[0, 0, 16, 8:17], (weights / weights.sum()).flip(0))
    assert moved.sum() == pytest.approx(1, abs=1e-6)
    for factor in (1.0, 1.1, 1.25, 2.25):
        matrix = zoom_matrix(32, factor)
        assert matrix.shape == (32, 32)
        torch.testing.assert_close(matrix.sum(1), torch.ones(32))
    torch.testing.assert_close(zoom_matrix(32, 1.0), torch.eye(32))
    clouds = plasma(3, 28, 2.0, torch.Generator().manual_seed(0))
    assert clouds.shape == (3, 1, 28, 28)
    assert 0 <= clouds.min() < clouds.max() <= 1


def test_wrong_input(images: np.ndarray) -> None:
    with pytest.raises(ValueError, match="unknown corruption 'rain'; known are gaussian_noise"):
        corrupt(images, "rain", 1)
    with pytest.raises(ValueError, match="severity must be 1, 2, 3, 4 or 5, got 6"):
        corrupt(images, "fog", 6)
    with pytest.raises(DataError, match="corruptions take square images"):
        corrupt(images.astype(float), "fog", 1)
