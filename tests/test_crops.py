"""JPEGs that are decoded at the scale a crop needs show what they show as a whole; all others do so bit for bit."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, JpegImagePlugin

from mixreg._support.random import stream
from mixreg.data import DataError
from mixreg.data.crops import Crop, centre, fitting, random_window
from mixreg.data.folders import ImageFiles
from mixreg.data.images import read_crop, read_rgb


def waves(width: int, height: int, period: float) -> Image.Image:
    """Waves of two directions: what is moved by a sixtieth of a period differs by 4 grey levels on average."""
    y, x = np.mgrid[:height, :width] * 2 * math.pi / period
    planes = [np.sin(x + 0.3 * y), np.sin(y - 0.2 * x), np.sin(x + y)]
    return Image.fromarray((127.5 + 100 * np.stack(planes, -1)).astype(np.uint8))


def jpeg(image: Image.Image, orientation: int = 1, **options) -> bytes:
    exif, content = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(content, "JPEG", quality=95, exif=exif, **options)
    return content.getvalue()


def compare(content: bytes, choose, monkeypatch) -> tuple[float, int]:
    """How far a crop is from that of the whole picture in the mean, and by how much the decoded sides were divided."""
    whole = read_rgb(content)
    expected = np.asarray(choose(*whole.size).of(whole)).astype(int)
    decoded, of = [], Crop.of
    monkeypatch.setattr(Crop, "of", lambda crop, image: decoded.append(image.size) or of(crop, image))
    found = np.asarray(read_crop(content, choose)).astype(int)
    monkeypatch.undo()
    assert found.shape == expected.shape
    (width, height), divisor = decoded[0], round(whole.width / decoded[0][0])
    assert (width, height) == (math.ceil(whole.width / divisor), math.ceil(whole.height / divisor))
    return float(np.abs(found - expected).mean()), divisor


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_scale_and_orientation(orientation, monkeypatch) -> None:
    """Sides that are no multiple of 8, whose last decoded pixels reach beyond the picture."""
    content = jpeg(waves(1003, 757, 64), orientation)
    seen = set()
    for size in (200, 150, 100, 64, 40):
        middle, divisor = compare(content, lambda w, h, size=size: centre(w, h, size), monkeypatch)
        assert middle < 3
        seen.add(divisor)
        for k in range(3):

            def window(width: int, height: int, k=k, size=size) -> Crop:
                return random_window(width, height, size, stream(k, "window", size))

            distance, divisor = compare(content, window, monkeypatch)
            assert distance < 3
            seen.add(divisor)
    assert seen == {1, 2, 4, 8}


def test_a_shift_of_a_pixel_would_be_seen(monkeypatch) -> None:
    """The bound above is one that a crop with its box at the wrong place does not keep."""
    content = jpeg(waves(1003, 757, 64))
    reduced = Crop.of_reduced
    monkeypatch.setattr(Crop, "of_reduced", lambda crop, d, x, y: reduced(crop, d, x + 1 / d, y + 1 / d))
    whole = read_rgb(content)
    crop = Crop((0, 0, 900, 700), (100, 100), (100, 100))
    moved = np.asarray(read_crop(content, lambda w, h: crop)).astype(int)
    assert np.abs(moved - np.asarray(crop.of(whole))).mean() > 3


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300), st.integers(0, 2**31))
def test_the_decoded_part_is_as_large_as_what_it_is_scaled_to(width, height, size, seed) -> None:
    crops = [random_window(width, height, size, torch.Generator().manual_seed(seed)), centre(width, height, size)]
    for crop in (*crops, fitting(width, height, (size, 2 * size))):
        left, top, right, bottom = crop.box
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        shorter, needed = min(right - left, bottom - top), min(crop.scaled)
        assert crop.divisor == 1 or shorter / crop.divisor >= needed
        assert crop.divisor == 8 or shorter / (2 * crop.divisor) < needed


@pytest.mark.parametrize("mode", ["L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_other_kinds_of_jpeg(mode, options, monkeypatch) -> None:
    content = jpeg(waves(800, 600, 64).convert(mode), **options)
    distance, divisor = compare(content, lambda w, h: centre(w, h, 100), monkeypatch)
    assert (distance < 3, divisor) == (True, 4)


def test_broken_and_huge_jpegs_are_refused_at_any_scale(tmp_path: Path) -> None:
    content = jpeg(waves(800, 600, 64))
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    header = content.index((600).to_bytes(2, "big") + (800).to_bytes(2, "big"))
    huge = content[:header] + (10_000).to_bytes(2, "big") * 2 + content[header + 4 :]
    (tmp_path / "huge.jpg").write_bytes(huge)
    for name, reason in (("cut", "truncated"), ("huge", r"Image size \(100000000 pixels\)")):
        with pytest.raises(DataError, match=rf"{name}\.jpg is broken or not what it should be: .*{reason}"):
            ImageFiles([tmp_path / f"{name}.jpg"], torch.tensor([0]), 64, None)[0, 0]


def window_as_ever(image: Image.Image, size: int, generator: torch.Generator) -> Image.Image:
    """ImageNet's random window, written out."""
    width, height = image.size
    mirrored = float(torch.rand((), generator=generator)) < 0.5
    while True:
        area, aspect, across, down = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        area, aspect = width * height * (0.08 + 0.92 * area), math.exp(math.log(3 / 4) + aspect * math.log(16 / 9))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
            image = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + w, top + h))
            return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image


def test_pictures_that_need_all_their_pixels_are_read_as_before(tmp_path: Path, monkeypatch) -> None:
    """Results of earlier runs depend on every bit."""
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "draft", lambda *given: pytest.fail("decoded at another scale"))
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    for name in ("a.jpg", "a.png"):
        noise.save(tmp_path / name)
        files = ImageFiles([tmp_path / name], torch.tensor([0]), 32, seed=5)
        for epoch in range(20):
            expected = window_as_ever(read_rgb(tmp_path / name), 32, stream(5, "augment", epoch, 0))
            np.testing.assert_array_equal(files[epoch, 0][0].permute(1, 2, 0).numpy(), np.asarray(expected))


def test_pictures_of_any_size_fit() -> None:
    """55 pixels, made 224 and back, were 55.00000000000001: more than there are."""
    for side in range(1, 300):
        for size in ((side, side), (side, side + 1), (2 * side + 3, side)):
            assert fitting(*size, (224, 224)).of(Image.new("L", size)).size == (224, 224)
