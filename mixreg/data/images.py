"""One picture from a file of somebody else's: red, green and blue bytes, upright, whatever it was kept as.

Only the formats named here are decoded, all of them by Pillow itself: among its others is one that starts a PostScript
interpreter. Of 16 bits the upper 8 are taken (as Pillow does with colours); of several frames or pages, the first.

Where only a crop is wanted, a JPEG is decoded at the scale of 1/d, d ∈ {1, 2, 4, 8}, that serves it: pixel i of what is
decoded covers the pixels d i … d i + d − 1 of a row. The last of a row may reach beyond the picture, and is the first
when the picture is turned upright by a reflection of that axis.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from mixreg.data.crops import Chooser

FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
ENDINGS = frozenset(ending for endings in FORMATS.values() for ending in endings)
# Pictures that are not read. To leave them out without a word would be to train on other data.
_OTHERS = (
    "apng arw avif cr2 cr3 dcm dib dng eps exr fits hdr heic heif ico j2k jif jp2 jpx jxl mpo nef nii orf pbm pcx pgm "
    "pjpeg pnm ppm psd qoi raf rw2 svg tga xpm"
)
# How the files of the formats above begin.
_BEGINNINGS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF")
OTHER_ENDINGS = frozenset(f".{name}" for name in _OTHERS.split(" "))
# What a camera notes in a picture's orientation, and what undoes it.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Orientations that exchange width and height, and those whose undoing reverses rows or columns.
_ON_ITS_SIDE, _REVERSES_X, _REVERSES_Y = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)


def begins_like_a_picture(path: Path) -> bool:
    """Whether a file without an ending is a picture, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(8).startswith(_BEGINNINGS)
    except OSError:
        return False


def read_rgb(source: Path | bytes, formats: Sequence[str] = tuple(FORMATS)) -> Image.Image:
    """The picture of a file, or of a file's content. Decoders raise almost anything for files that are broken."""
    with _opened(source, formats) as opened:
        opened.load()
        image = _upright(opened)
        return image.copy() if image is opened else image


def read_crop(source: Path | bytes, choose: Chooser, formats: Sequence[str] = tuple(FORMATS)) -> Image.Image:
    """A crop of a picture; `choose` is asked once, with the width and height of the upright picture."""
    with _opened(source, formats) as opened:
        # Elsewhere the orientation may stand behind the pixels, and there is only one scale.
        if opened.format != "JPEG":
            opened.load()
            image = _upright(opened)
            return choose(*image.size).of(image)
        orientation = _orientation(opened)
        width, height = opened.size[::-1] if orientation in _ON_ITS_SIDE else opened.size
        crop = choose(width, height)
        divisor = _draft(opened, crop.divisor)
        image = _upright(opened)
        if divisor > 1:
            x = image.width - width / divisor if orientation in _REVERSES_X else 0
            y = image.height - height / divisor if orientation in _REVERSES_Y else 0
            crop = crop.of_reduced(divisor, x, y)
        return crop.of(image)


def _opened(source: Path | bytes, formats: Sequence[str]) -> Image.Image:
    with warnings.catch_warnings():
        # From 89 million pixels on Pillow warns, from 179 million on it refuses.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=list(formats))


def _draft(opened: Image.Image, divisor: int) -> int:
    """Let the sides of a JPEG be divided by `divisor`; by how much they are."""
    width, height = opened.size
    drafted = opened.draft("RGB", (width // divisor, height // divisor)) if divisor > 1 else None
    return 1 if drafted is None else round(width / drafted[1][2])


def _upright(opened: Image.Image) -> Image.Image:
    """Red, green and blue, upright; the picture itself, not a copy, if it is so already."""
    turn = _UPRIGHT.get(_orientation(opened))
    image = _eight_bits(opened)
    image = image if image.mode == "RGB" else image.convert("RGB")
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image.Image) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return int(image.getexif().get(ExifTags.Base.Orientation, 1))
        except Exception:
            # Notes that cannot be read say nothing; the picture is whole.
            return 1


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 bits as bytes; Pillow itself would make all but the darkest white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels are 32-bit numbers, expected 8 or 16 bits")
    return image
