"""Data that changed, broke or was made to do harm: noticed, named, and never half-read."""

import gzip
import io
import struct
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import Interrupted, carry_out

from mixreg._support.tensor_files import load_tensors, save_tensors
from mixreg.data import DataError, Split, fingerprints, formats, limits, load
from mixreg.data.arrays import checked, checksum, save
from mixreg.data.fetch import Recipe, get
from mixreg.data.registry import RECIPES
from mixreg.evaluation.runs import evaluated
from mixreg.training import Config
from mixreg.training.checkpoint import CheckpointError
from mixreg.training.trained import load_trained


def folder_of_images(folder: Path, per_class: int = 6) -> Path:
    numbers = np.random.default_rng(0)
    for part in ("train", "val"):
        for label in ("a", "b"):
            place = folder / part / label
            place.mkdir(parents=True)
            for index in range(per_class):
                picture = numbers.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(picture).save(place / f"{index}.bmp")
    return folder


def test_a_picture_of_the_same_name_and_size_is_noticed(tmp_path: Path) -> None:
    data = folder_of_images(tmp_path / "data")
    config = Config(data=str(data), model="small-resnet", epochs=2, batch_size=4, image_size=16)
    with pytest.raises(Interrupted):
        carry_out(config, tmp_path / "half", stop_after=1)
    assert carry_out(config, tmp_path / "whole")
    for name in ("train/a/1.bmp", "val/b/2.bmp"):
        before = (data / name).read_bytes()
        content = bytearray(before)
        content[-1] ^= 255
        (data / name).write_bytes(bytes(content))
        with pytest.raises(CheckpointError, match="data has changed since"):
            carry_out(config, tmp_path / "half")
        with pytest.raises(DataError, match="has changed since the network was trained on it"):
            evaluated(load_trained(tmp_path / "whole"))
        (data / name).write_bytes(before)
    # Bytes count, not times: what is brought back is what it was.
    assert carry_out(config, tmp_path / "half")


def test_of_a_large_folder_a_part_is_read(tmp_path: Path, monkeypatch) -> None:
    data = folder_of_images(tmp_path / "data")
    paths = sorted((data / "train").rglob("*.bmp"))
    size = paths[0].stat().st_size
    monkeypatch.setattr(fingerprints, "READ_BYTES", 4 * size)
    before = fingerprints.of_folder(data, paths, [])
    noticed = 0
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        noticed += fingerprints.of_folder(data, paths, []) != before
        path.write_bytes(content)
    assert noticed == 4
    # Names and sizes of all count.
    paths[-1].write_bytes(paths[-1].read_bytes() + b"\0")
    assert fingerprints.of_folder(data, paths, []) != before


def test_changed_test_labels_are_noticed(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    config = Config(data=str(path), epochs=2, batch_size=20)
    with pytest.raises(Interrupted):
        carry_out(config, tmp_path / "half", stop_after=1)
    assert carry_out(config, tmp_path / "whole")
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=(y + 1) % 3)
    with pytest.raises(CheckpointError, match=r"mine\.npz has changed since"):
        carry_out(config, tmp_path / "half")
    with pytest.raises(DataError, match=r"mine\.npz has changed since the network was trained on it"):
        evaluated(load_trained(tmp_path / "whole"))


def test_runs_of_earlier_versions_are_still_known_by_what_they_kept(tmp_path: Path) -> None:
    """They kept the checksums of the training arrays."""
    x, y = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    config = Config(data=str(path), epochs=1, batch_size=20)
    assert carry_out(config, tmp_path / "run")
    model = tmp_path / "run" / "model.safetensors"
    tensors, record = load_tensors(model)
    save_tensors(model, tensors, record | {"data": checksum(x) + checksum(y.astype(np.int64))})
    evaluated(load_trained(tmp_path / "run"))
    save_tensors(model, tensors, record | {"data": checksum(x + 1) + checksum(y.astype(np.int64))})
    with pytest.raises(DataError, match="has changed"):
        evaluated(load_trained(tmp_path / "run"))
    assert not fingerprints.is_unchanged("", "abc")


def test_the_cache_is_checked_against_what_was_published(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path))
    random = np.random.default_rng(0)
    train, test = (Split(random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), np.arange(n) % 10) for n in (20, 10))
    arrays = (train.x, train.y.astype(np.uint8), test.x, test.y.astype(np.uint8))
    recipe = Recipe("little", "a test", (), tuple(checksum(array) for array in arrays))  # type: ignore[arg-type]
    monkeypatch.setitem(RECIPES, "little", recipe)
    path = tmp_path / "little.safetensors"
    save(path, checked("little", train, test), {})
    assert np.array_equal(load("little").train.x, train.x)
    # Whole files with checksums of their own, of other labels: one changed, and one that is the same modulo 256.
    for change in (1, 256):
        other = test.y.copy()
        other[3] += change
        save(path, checked("little", train, Split(test.x, other)), {})
        for read in (lambda: load("little"), lambda: get(recipe, lambda *_: None)):
            with pytest.raises(DataError, match=r"little\.safetensors is broken \(y_test does not match its checksum"):
                read()


@pytest.fixture
def low_limit(monkeypatch) -> int:
    """A limit that small files exceed; the rule is the same."""
    monkeypatch.setattr(limits, "ALWAYS_BYTES", 1 << 20)
    return 1 << 20


REFUSED = r"would unpack from .* to .* MB or more: above 1 MB, files that unpack to more than 100 times"


def test_arrays_that_unpack_to_far_more_are_refused(low_limit, tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    zeros, labels = np.zeros((40_000, 100)), np.arange(40_000) % 2
    np.savez_compressed(path, x_train=zeros, y_train=labels, x_test=zeros, y_test=labels)
    assert path.stat().st_size < zeros.nbytes / 100
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"bomb\.npz {REFUSED}"):
        load(str(path))
    assert tracemalloc.get_traced_memory()[1] < zeros.nbytes / 4
    tracemalloc.stop()
    # What packs as data does is read, however large; and what is small, however well it packs.
    numbers = np.random.default_rng(0).normal(size=(4_000, 100))
    np.savez_compressed(path, x_train=numbers, y_train=labels[:4_000], x_test=numbers, y_test=labels[:4_000])
    assert len(load(str(path)).train.y) == 4_000
    np.savez_compressed(path, x_train=zeros[:50], y_train=labels[:50], x_test=zeros[:50], y_test=labels[:50])
    assert len(load(str(path)).train.y) == 50


def picture(side: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


def parquet_of(path: Path, contents: list[bytes], labels: object, **options: object) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pictures = [{"bytes": content, "path": None} for content in contents]
    pq.write_table(pa.table({"image": pictures, "label": labels}), path, **options)


def test_parquet_files_that_unpack_to_far_more_are_refused(low_limit, tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    # Pictures of one colour; the same picture many times, which a dictionary keeps once; and a column of zeros.
    for contents, options in (
        ([picture(2000)], {}),
        ([picture(8)] * 200_000, {}),
        ([b"\0" * 20_000_000], {"compression": "zstd", "use_dictionary": False}),
    ):
        parquet_of(path, contents, [0] * len(contents), **options)
        with pytest.raises(DataError, match=rf"bomb\.parquet {REFUSED}"):
            formats.parquet([path])
    parquet_of(path, [picture(8)] * 100, list(range(100)))
    assert formats.parquet([path]).y.tolist() == list(range(100))


def test_gzipped_files_that_unpack_to_far_more_are_refused(low_limit, tmp_path: Path) -> None:
    labels = tmp_path / "labels.gz"
    labels.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 2) + bytes(2)))
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 2000, 100, 100) + bytes(20_000_000)))
    with pytest.raises(DataError, match=rf"bomb\.gz {REFUSED}"):
        formats.idx(path, labels)
    # More than the header says is not read to its end.
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 2, 3, 4) + bytes(20_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb\.gz is broken"):
        formats.idx(path, labels)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    archive = tmp_path / "bomb.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("data.bin")
        member.size = 20_000_000
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(DataError, match=rf"bomb\.tar\.gz {REFUSED}"):
        formats.cifar_binary(archive, ["data.bin"], 1)
    with pytest.raises(DataError, match=rf"bomb\.tar\.gz {REFUSED}"):
        formats.cifar_npm(archive, ["data.bin"], "data.bin")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 1.5], "label must hold class indices, got double"),
        ([0, None], "holds no class index"),
        (["0", "1"], "label must hold class indices, got string"),
        ([True, False], "class indices, got bool"),
    ],
)
def test_labels_of_parquet_files_are_whole_numbers(labels, message, tmp_path: Path) -> None:
    parquet_of(tmp_path / "a.parquet", [picture(8)] * 2, labels)
    with pytest.raises(DataError, match=rf"a\.parquet.*{message}"):
        formats.parquet([tmp_path / "a.parquet"])
