"""Files of data: the same images through every format, and broken, wrong and hostile files."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixreg.data import DataError, Split, load
from mixreg.data.archives import load_npz
from mixreg.data.formats import cifar_binary, cifar_npm, idx, in_canonical_order, parquet


def png(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(array).save(content, "PNG")
    return content.getvalue()


def test_formats_agree(tmp_path: Path) -> None:
    """The same images through every format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    train = Split(random.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 10)
    archive = tmp_path / "npm.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in {
            "package/a.png": png(train.x.reshape(20, 1024, 3)),
            "package/labels.json": json.dumps(train.y.tolist()).encode(),
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    through_npm = cifar_npm(archive, ["package/a.png"], "package/labels.json")
    table = pa.table(
        {
            "img": [{"bytes": png(image), "path": None} for image in train.x],
            "fine_label": train.y,
            "coarse_label": train.y // 5,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    through_parquet = parquet([tmp_path / "a.parquet"])
    for found in (through_npm, through_parquet):
        assert np.array_equal(found.x, train.x)
        assert np.array_equal(found.y, train.y)
    shuffled = np.random.default_rng(0).permutation(20)
    first, second = (in_canonical_order(s) for s in (train, Split(train.x[shuffled], train.y[shuffled])))
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.y, second.y)


def test_idx(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    for name, content in (
        ("images.gz", struct.pack(">4I", 0x803, 2, 3, 4) + images.tobytes()),
        ("labels.gz", struct.pack(">2I", 0x801, 2) + bytes([7, 1])),
        ("wrong.gz", struct.pack(">2I", 0x805, 2) + bytes([7, 1])),
    ):
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(content)
    found = idx(tmp_path / "images.gz", tmp_path / "labels.gz")
    assert np.array_equal(found.x, images)
    assert found.y.tolist() == [7, 1]
    with pytest.raises(DataError, match=r"wrong\.gz is broken.*expected 0x801"):
        idx(tmp_path / "images.gz", tmp_path / "wrong.gz")


def test_broken_files_are_named_whatever_they_are(tmp_path: Path) -> None:
    for content in (b"", b"PAR1 no parquet PAR1", b"\x80\x04\x95 a pickle", os.urandom(200)):
        path = tmp_path / "broken"
        path.write_bytes(content)
        for read in (
            lambda p: parquet([p]),
            lambda p: idx(p, p),
            lambda p: cifar_binary(p, ["a"], 1),
            lambda p: cifar_npm(p, ["a"], "b"),
            load_npz,
        ):
            with pytest.raises(DataError, match=r"broken|is not an \.npz") as error:
                read(path)
            assert "\n" not in str(error.value).strip()


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("mixreg-trap",))


def test_no_pickle_is_opened(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = np.empty(1, dtype=object)
    hostile[0] = Trap()
    np.savez(tmp_path / "hostile.npz", x_train=hostile, y_train=hostile, x_test=hostile, y_test=hostile)
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("hostile.npz", "plain.npz"):
        with pytest.raises(DataError, match=f"{name} is not an .npz with plain arrays"):
            load_npz(tmp_path / name)
    assert not (tmp_path / "mixreg-trap").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.array(["a"] * 4)}, "y_train must be a vector of class indices"),
        ({"y_train": np.array([0.5] * 4)}, r"training targets are numbers of shape \(1,\), test targets classes"),
        ({"y_train": np.full((4, 2), 2)}, "y_train: a matrix of integers holds zeros and ones"),
        ({"x_train": np.zeros((4, 3, 8, 8), np.uint8)}, "looks like channels first"),
        ({"y_train": np.array([0, 1])}, "x_train has 4 samples and y_train has 2"),
        ({"y_test": np.array([-1] * 4)}, "labels lie in 0..99999, y_test holds -1 to -1"),
        ({"x_test": np.full((4, 3), np.nan)}, "not finite"),
        ({"x_test": np.zeros((4, 5))}, "training inputs are"),
        ({"x_train": np.array(["a"] * 4)}, "must be uint8 images or floating point"),
    ],
)
def test_wrong_arrays(change, message, tmp_path: Path) -> None:
    arrays = {f"{k}_{part}": np.arange(4) if k == "y" else np.zeros((4, 3)) for k in "xy" for part in ("train", "test")}
    np.savez(tmp_path / "mine.npz", **(arrays | change))
    with pytest.raises(DataError, match=f"mine.*{message}"):
        load(str(tmp_path / "mine.npz"))
