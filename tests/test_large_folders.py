"""Large folders: what is remembered of them never hides a change, and images are read ahead, in order, to an end."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pictures import picture

from mixreg.data import DataError, fingerprints, listings
from mixreg.data.folders import images_in, labelled
from mixreg.data.paths import Paths


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    """The folder that listings are kept in; small ones are kept, too, and so is what changed a moment ago."""
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(listings, "SMALLEST", 1)
    monkeypatch.setattr(listings, "SETTLED_NS", -(10**12))
    return tmp_path / "cache" / "listings"


def many_files(folder: Path, classes: int = 20, each: int = 100) -> Path:
    for label in range(classes):
        place = folder / f"class-{label:02d}"
        place.mkdir(parents=True)
        for k in range(each):
            (place / f"{k}.jpg").write_bytes(bytes([label, k]))
    nested = folder / "class-00" / "10.below"
    nested.mkdir()
    (nested / "1.png").touch()
    (folder / "class-01" / "notes.txt").touch()
    (folder / "class-01" / ".hidden.png").touch()
    return folder


def walked(folder: Path) -> list[Path]:
    """All pictures, by another way."""
    found = [path for path in folder.glob("*/**/*") if path.suffix in (".jpg", ".png") and path.name[0] != "."]
    return sorted(path for path in found if path.is_file())


def scanned(monkeypatch, action: Callable[[], object]) -> tuple[object, list[str]]:
    """What an action gives, and the directories that it lists."""
    places, scandir = [], os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: places.append(Path(path).name) or scandir(path))
        return action(), [name for name in places if name != "listings"]


def wait_for_the_clock() -> None:
    """Times of files advance by some milliseconds."""
    time.sleep(0.02)


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "nothing": (lambda folder: None, set()),
    "added": (lambda folder: (folder / "class-07" / "new.jpg").touch(), {"class-07"}),
    "removed": (lambda folder: (folder / "class-05" / "3.jpg").unlink(), {"class-05"}),
    "renamed": (lambda folder: (folder / "class-05" / "4.jpg").rename(folder / "class-05" / "x.jpg"), {"class-05"}),
    "moved": (
        lambda folder: (folder / "class-05" / "5.jpg").rename(folder / "class-06" / "5a.jpg"),
        {"class-05", "class-06"},
    ),
    "below": (lambda folder: (folder / "class-00" / "10.below" / "2.png").touch(), {"10.below"}),
    "class added": (
        lambda folder: ((folder / "class-99").mkdir(), (folder / "class-99" / "1.jpg").touch()),
        {"class-99"},
    ),
    "class renamed": (lambda folder: (folder / "class-08").rename(folder / "a"), {"a"}),
    "class removed": (
        lambda folder: [*map(Path.unlink, (folder / "class-09").iterdir()), (folder / "class-09").rmdir()],
        set(),
    ),
    "classes exchanged": (
        lambda folder: [
            (folder / f"class-0{a}").rename(folder / f"class-0{b}") for a, b in ((1, "x"), (2, 1), ("x", 2))
        ],
        {"class-01", "class-02"},
    ),
}


def test_changes_are_noticed_and_nothing_else_is_listed(cache: Path, tmp_path: Path, monkeypatch) -> None:
    folder = many_files(tmp_path / "train")
    labelled(folder)
    for change, (alter, again) in CHANGES.items():
        wait_for_the_clock()
        alter(folder)
        (paths, labels, classes), places = scanned(monkeypatch, lambda: labelled(folder))
        assert list(paths) == walked(folder), change
        assert [classes[k] for k in labels.tolist()] == [path.relative_to(folder).parts[0] for path in paths], change
        assert sorted(places) == sorted({"train"} | again), change
        # What was found is known the next time.
        assert scanned(monkeypatch, lambda: labelled(folder))[1] == ["train"], change
    assert len(list(cache.iterdir())) == 1


def test_times_that_are_put_back_do_not_hide_a_change(cache: Path, tmp_path: Path) -> None:
    folder = many_files(tmp_path / "train", 2, 10)
    before = (folder / "class-01").stat()
    labelled(folder)
    wait_for_the_clock()
    (folder / "class-01" / "new.jpg").touch()
    os.utime(folder / "class-01", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert list(labelled(folder)[0]) == walked(folder)


def test_what_changed_a_moment_ago_is_not_relied_on(cache: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(listings, "SETTLED_NS", 2_000_000_000)
    folder = many_files(tmp_path / "train", 2, 10)
    for k in range(20):
        assert list(labelled(folder)[0]) == walked(folder)
        (folder / "class-01" / f"new-{k}.jpg").touch()
    assert not cache.exists()


def test_links_and_files_without_an_ending_are_looked_at_every_time(cache: Path, tmp_path: Path) -> None:
    folder = many_files(tmp_path / "train", 3, 10)
    picture(0, 0).save(tmp_path / "elsewhere.png")
    (folder / "class-00" / "link.png").symlink_to(tmp_path / "elsewhere.png")
    (folder / "class-01" / "LICENSE").write_text("no picture")
    before = labelled(folder)[0]
    wait_for_the_clock()
    (folder / "class-01" / "LICENSE").write_bytes((tmp_path / "elsewhere.png").read_bytes())
    after = labelled(folder)[0]
    assert set(after) - set(before) == {folder / "class-01" / "LICENSE"}
    (tmp_path / "elsewhere.png").unlink()
    with pytest.raises(DataError, match=r"link\.png is named like a picture and is no file"):
        labelled(folder)


def test_what_cannot_be_relied_on_is_replaced(cache: Path, tmp_path: Path, monkeypatch) -> None:
    folder, other = many_files(tmp_path / "train", 3, 10), many_files(tmp_path / "other", 2, 5)
    labelled(folder)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    labelled(other)
    (others,) = set(cache.iterdir()) - {kept}
    flipped = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    for broken in (b"", whole[:-1], flipped, b"\0" * 99, others.read_bytes()):
        kept.write_bytes(broken)
        assert list(labelled(folder)[0]) == walked(folder)
        assert kept.read_bytes() == whole
    # What a link leads to is somebody else's: neither believed nor written to.
    (tmp_path / "somebody's").write_bytes(whole)
    kept.unlink()
    kept.symlink_to(tmp_path / "somebody's")
    (folder / "class-01" / "new.jpg").touch()
    assert list(labelled(folder)[0]) == walked(folder)
    assert (tmp_path / "somebody's").read_bytes() == whole
    assert not kept.is_symlink()
    # Where nothing can be written, folders are listed as ever.
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", "~nosuchuser/x"):
        monkeypatch.setenv("MIXREG_DATA", str(place))
        assert list(labelled(folder)[0]) == walked(folder)


def test_little_is_remembered(cache: Path, tmp_path: Path, monkeypatch) -> None:
    """Small folders are not; of large ones, those of the last time."""
    monkeypatch.setattr(listings, "REMEMBERED", 3)
    for k in range(6):
        labelled(many_files(tmp_path / str(k), 4, 3))
        wait_for_the_clock()
    assert len(list(cache.iterdir())) == 3
    monkeypatch.setattr(listings, "SMALLEST", 10_000)
    kept = set(cache.iterdir())
    labelled(many_files(tmp_path / "small", 4, 3))
    assert set(cache.iterdir()) == kept


def test_times_of_fuse_mounts_are_not_believed(cache: Path, tmp_path: Path, monkeypatch) -> None:
    device = tmp_path.stat().st_dev
    mounts = (
        f"36 35 {os.major(device)}:{os.minor(device)} / /data rw,noatime master:1 - fuse.gcsfuse bucket rw\n"
        "37 35 0:99 / /proc rw - proc proc rw\n"
    )
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda p, **o: mounts if p.name == "mountinfo" else read(p, **o))
    train = labelled(many_files(tmp_path / "train", 4, 3))[0]
    fingerprints.of_folder(tmp_path, train, [])
    assert not cache.exists()


def test_paths_are_as_a_list_of_them(tmp_path: Path) -> None:
    names = ["a/1.png", "b/ü\udcff.png", "b/two\nlines.png"]
    paths, expected = Paths(tmp_path, names), [tmp_path / name for name in names]
    assert list(paths) == expected
    assert paths == expected
    assert paths != expected[:2]
    assert paths[1:] == expected[1:]
    assert paths[-1] == expected[-1]
    assert paths.chosen([2, 0, 2]) == [expected[2], expected[0], expected[2]]
    assert len(paths.chosen([])) == len(Paths(tmp_path, [])) == 0
    for folder in (tmp_path, tmp_path.parent):
        assert paths.names_below(folder) == [os.fsencode(path.relative_to(folder)) for path in expected]


def fingerprint_as_ever(folder: Path, train: list[Path], test: list[Path], most: int) -> str:
    """Names and sizes of both parts; then the bytes of files in the order of their names' checksums."""

    def checksum(lines: list[str]) -> str:
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    parts = [[f"{path.relative_to(folder)} {path.stat().st_size}" for path in part] for part in (train, test)]
    sums = []
    for path in sorted([*train, *test], key=lambda p: hashlib.sha256(str(p.relative_to(folder)).encode()).digest()):
        if most > 0:
            sums.append(hashlib.sha256(path.read_bytes()).hexdigest())
        most -= path.stat().st_size
    return checksum(parts[0]) + checksum(parts[1]) + checksum(sums)


def test_fingerprints_are_remembered_while_no_file_is_written_to(cache: Path, tmp_path: Path, monkeypatch) -> None:
    folder, read = tmp_path, []
    train, test = (labelled(many_files(folder / part, 3, 10))[0] for part in ("train", "val"))
    digest = fingerprints.digest
    monkeypatch.setattr(fingerprints, "digest", lambda path: read.append(path) or digest(path))

    def found() -> str:
        read.clear()
        return fingerprints.of_folder(folder, train, test)

    for most in (1 << 30, 25):
        monkeypatch.setattr(fingerprints, "READ_BYTES", most)
        expected = fingerprint_as_ever(folder, list(train), list(test), most)
        assert found() == expected
        assert len(read) == (len(train) + len(test) if most > 25 else 13)
        assert found() == expected
        assert read == []
        wait_for_the_clock()
        # Other bytes, the same size and time.
        path = next(p for p in sorted(train) if p.stat().st_size == 2)
        content, times = path.read_bytes(), path.stat()
        path.write_bytes(content[::-1] if content[0] != content[1] else b"zz")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert found() == fingerprint_as_ever(folder, list(train), list(test), most)
        assert read
        # Bytes count, not times: what is brought back is what it was.
        wait_for_the_clock()
        path.write_bytes(content)
        assert found() == expected
        (kept,) = cache.glob("*.json")
        for broken in (b"", b"{", b"[]", b'{"stamp": 1}', kept.read_bytes().replace(expected.encode(), b"x" * 192)):
            kept.write_bytes(broken)
            assert found() == expected
            assert read
            assert found() == expected
            assert not read


def test_files_that_were_just_written_are_read_again(cache: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(listings, "SETTLED_NS", 2_000_000_000)
    train = labelled(many_files(tmp_path / "train", 2, 10))[0]
    for k in range(20):
        assert fingerprints.of_folder(tmp_path, train, []) == fingerprint_as_ever(tmp_path, list(train), [], 1 << 30)
        train[3].write_bytes(bytes([k, 99]))
    assert not cache.exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    paths = images_in(many_files(tmp_path / "train", 2, 3))
    (tmp_path / "train" / "class-00" / "2.jpg").unlink()
    with pytest.raises(DataError, match=r"class-00/2\.jpg cannot be read: No such file"):
        fingerprints.of_folder(tmp_path, paths, [])
