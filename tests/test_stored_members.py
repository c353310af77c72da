"""Arrays read straight from an archive: as NumPy reads them, and never where their checksum disagrees."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from mixreg.data import DataError
from mixreg.data.unlabelled import parts_of, sources


def read(path: Path) -> np.ndarray:
    parts = list(parts_of(sources([path]), (5,), False, ()))
    assert [name for part in parts for name in part.names] == list(range(sum(len(part.x) for part in parts)))
    return np.concatenate([part.x for part in parts])


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_array_is_what_numpy_reads(dtype: str, save, tmp_path: Path) -> None:
    # More than two parts; another member comes first.
    x = np.random.default_rng(0).normal(size=(20_000, 5)).astype(dtype)
    save(tmp_path / "x.npz", other=np.zeros(7), x=x)
    with np.load(tmp_path / "x.npz") as expected:
        np.testing.assert_array_equal(read(tmp_path / "x.npz"), expected["x"].astype(np.float32))


def test_an_archive_behind_something_else_is_read_too(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    (tmp_path / "behind.npz").write_bytes(b"#!/bin/sh\n" + (tmp_path / "x.npz").read_bytes())
    np.testing.assert_array_equal(read(tmp_path / "behind.npz"), x)


def test_what_does_not_agree_with_its_checksum_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((20_000, 5), np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        start = archive.getinfo("x.npy").header_offset
    content = bytearray((tmp_path / "x.npz").read_bytes())
    # A bit of the first row, long before the end of the array is reached.
    content[start + 400] ^= 1
    (tmp_path / "changed.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"changed\.npz is broken.*: Bad CRC-32 for file 'x\.npy'"):
        read(tmp_path / "changed.npz")


def test_an_array_that_is_shorter_than_its_header_says_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((20_000, 5), np.float32))
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes()[:-4])
    with pytest.raises(DataError, match="it ends after 16384 of 20000 rows"):
        read(tmp_path / "short.npz")
