"""One picture from a file of somebody else's: red, green and blue bytes, upright, whatever it was kept as.

Only the formats named here are decoded, all of them by Pillow itself: among its others is one that starts a PostScript
interpreter. Of 16 bits the upper 8 are taken (as Pillow does with colours); of several frames or pages, the first.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

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


def begins_like_a_picture(path: Path) -> bool:
    """Whether a file without an ending is a picture, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(8).startswith(_BEGINNINGS)
    except OSError:
        return False


def read_rgb(source: Path | bytes, formats: Sequence[str] = tuple(FORMATS)) -> Image.Image:
    """The picture of a file, or of a file's content. Decoders raise almost anything for files that are broken."""
    with warnings.catch_warnings():
        # From 89 million pixels on Pillow warns, from 179 million on it refuses.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=list(formats))
    with opened:
        opened.load()
        turn = _UPRIGHT.get(_orientation(opened))
        image = _eight_bits(opened).convert("RGB")
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
