"""Pictures from folders: every depth, kind and orientation as it was meant, and nothing left out without a word."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from mixreg.data import DataError
from mixreg.data.folders import ImageFiles, centre_crop, images_in, labelled
from mixreg.data.images import read_rgb
from mixreg.training import Config
from mixreg.training.folder_batches import FolderBatches

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bits_are_as_bright_as_eight(ending, tmp_path: Path) -> None:
    # 257 v is what v of 255 is of 65,535.
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / f"deep.{ending}")
    Image.fromarray(GREY).save(tmp_path / f"plain.{ending}")
    deep, plain = (np.asarray(read_rgb(tmp_path / f"{name}.{ending}")) for name in ("deep", "plain"))
    np.testing.assert_array_equal(deep, plain)
    np.testing.assert_array_equal(plain, np.repeat(GREY[..., None], 3, 2))


@pytest.mark.parametrize("array", [np.ones((4, 4), np.int32) * 70_000, np.ones((4, 4), np.float32)])
def test_pixels_of_unknown_range_are_refused(array, tmp_path: Path) -> None:
    Image.fromarray(array).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif.*its pixels are 32-bit numbers"):
        ImageFiles([tmp_path / "a.tif"], torch.tensor([0]), 4, None)[0, 0]


# What is to be done to the rows and columns of a picture that was noted with this orientation.
TURNS = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(np.swapaxes(a, 0, 1), 2),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_pictures_are_upright(ending, orientation, tmp_path: Path) -> None:
    picture = np.zeros((16, 32, 3), np.uint8)
    picture[:8, :16], picture[:8, 16:], picture[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(picture).save(tmp_path / f"a.{ending}", exif=exif)
    found = np.asarray(read_rgb(tmp_path / f"a.{ending}")).astype(int)
    expected = TURNS[orientation](picture).astype(int)
    assert found.shape == expected.shape
    # Away from the edges, where JPEG and WebP blur.
    assert np.abs(found - expected)[2:6, 2:6].max() < 20
    assert np.abs(found - expected)[-6:-2, -6:-2].max() < 20


def test_unreadable_notes_say_nothing(tmp_path: Path) -> None:
    Image.fromarray(np.repeat(GREY[..., None], 3, 2)).save(tmp_path / "a.png", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")
    np.testing.assert_array_equal(np.asarray(read_rgb(tmp_path / "a.png")), np.repeat(GREY[..., None], 3, 2))


def folder_with(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.repeat(GREY[..., None], 3, 2)).save(path)
    return folder


def test_all_kinds_count_and_none_is_left_out_without_a_word(tmp_path: Path) -> None:
    names = ["a/1.png", "a/2.TIF", "a/3.gif", "b/4.tiff", "b/5.webp", "b/6.bmp", "b/7.JPEG"]
    folder = folder_with(tmp_path / "train", *names)
    (folder / "a" / "notes.txt").write_text("no picture")
    (folder / "a" / ".DS_Store").write_text("no picture")
    paths, labels, classes = labelled(folder)
    assert [str(path.relative_to(folder)) for path in paths] == names
    assert labels.tolist() == [0] * 3 + [1] * 4
    files = ImageFiles(paths, labels, 16, None)
    for index in range(len(names)):
        assert files[0, index][0].shape == (3, 16, 16)
    (folder / "c").mkdir()
    with pytest.raises(DataError, match="c holds no images: a class needs some"):
        labelled(folder)
    # Of a test set nobody demands that it has every class.
    assert labelled(folder, [*classes, "c"])[0] == paths
    (folder / "c" / "8.HEIC").write_bytes(b"a phone's")
    with pytest.raises(DataError, match=r"8\.HEIC is a picture of a kind that is not read; BMP, GIF"):
        images_in(folder)


def test_an_empty_class_is_refused_before_training(tmp_path: Path) -> None:
    folder_with(tmp_path, "train/a/1.png", "train/b/2.png", "val/a/1.png")
    (tmp_path / "train" / "c").mkdir()
    with pytest.raises(DataError, match="c holds no images"):
        FolderBatches(tmp_path, Config(data=str(tmp_path), holdout=0.0, image_size=16))


def test_no_interpreter_is_started(tmp_path: Path, monkeypatch) -> None:
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **options: started.append(given))
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(%pipe%touch owned) (w) file\n%%EOF\n"
    )
    with pytest.raises(DataError, match=r"a\.png is broken or not what it should be"):
        ImageFiles([tmp_path / "a.png"], torch.tensor([0]), 8, None)[0, 0]
    assert started == []


def halves(width: int, height: int) -> Image.Image:
    """White before the middle of the longer side, black after it."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[(slice(height // 2), slice(None)) if height > width else (slice(None), slice(width // 2))] = 255
    return Image.fromarray(picture)


@pytest.mark.parametrize(
    ("size", "shorter"), [((1, 30_000), (1, 20)), ((30_000, 1), (20, 1)), ((3, 400), (3, 30)), ((400, 6), (150, 6))]
)
def test_long_pictures_are_cut_before_they_are_scaled(size, shorter, monkeypatch) -> None:
    """The middle of a long picture is that of a shorter one, which is scaled as a whole (to whole pixels)."""
    expected = np.asarray(centre_crop(halves(*shorter), 224)).astype(int)
    scaled, resize = [], Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda *a, **o: scaled.append(resize(*a, **o)) or scaled[-1])
    found = np.asarray(centre_crop(halves(*size), 224)).astype(int)
    assert found.shape == (224, 224, 3)
    assert np.abs(found - expected).max() <= 1
    assert found[0, 0, 0] > 200
    assert found[-1, -1, 0] < 50
    assert scaled[0].size[0] * scaled[0].size[1] < 3_000_000


def test_usual_pictures_are_cropped_as_before() -> None:
    """Scaled as a whole, then cut: results of earlier runs depend on every bit."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 100, 3), dtype=np.uint8))
    scaled = picture.resize((round(100 * 256 / 60), 256), Image.Resampling.BILINEAR)
    left = (scaled.size[0] - 224) // 2
    assert centre_crop(picture, 224).tobytes() == scaled.crop((left, 16, left + 224, 240)).tobytes()


def test_huge_pictures_are_refused(tmp_path: Path) -> None:
    """Those of 400 megapixels by Pillow, and those of 100 of which it only warns."""
    for side in (10_000, 20_000):
        content = io.BytesIO()
        Image.new("1", (side, side)).save(content, "PNG")
        (tmp_path / f"{side}.png").write_bytes(content.getvalue())
        code = (
            "import sys, torch\nfrom pathlib import Path\nfrom mixreg.data.folders import ImageFiles\n"
            "ImageFiles([Path(sys.argv[1])], torch.tensor([0]), 8, None)[0, 0]\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / f"{side}.png")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert f"{side}.png is broken or not what it should be: Image size ({side**2} pixels)" in done.stderr
