"""Which pictures a folder holds: a directory is listed once, and again when its times say that it has changed.

Whoever adds, removes or renames an entry changes the times of its directory. So a directory with the device, inode,
modification and change time that it had holds what it held: one `stat` for each directory is all that a second start
needs. What was found is kept in the cache of datasets, for folders that are large. Listed every time is

- a directory that changed within two seconds before it was listed: it may change again and keep its time;
- one with links or with files without an ending: whether they are pictures does not show in its times;
- one on a FUSE mount, of an object store for example: its times may be made up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixreg._support.files import remove_leftovers
from mixreg._support.tensor_files import TensorFileError, load_tensors, save_tensors
from mixreg.data.arrays import cache_folder
from mixreg.data.errors import DataError
from mixreg.data.images import ENDINGS, FORMATS, OTHER_ENDINGS, begins_like_a_picture

# Smaller folders are listed in no time.
SMALLEST = 10_000
# What is younger than this when it is looked at may change once more without a change of its times.
SETTLED_NS = 2_000_000_000
# How many files are kept about folders; those written longest ago are deleted.
REMEMBERED = 64
# Devices and inodes as numbers of 63 bits, whatever a file system counts with.
BITS = (1 << 63) - 1
_FORMAT = "listing 1"
# Names are sorted as `Path`s are.
_ORDER = os.path.normcase if os.name == "nt" else None

# Device, inode, modification and change time of a directory.
Mark = tuple[int, int, int, int]


class Directory(NamedTuple):
    """What a directory holds: names of pictures and of folders, both sorted, and its mark when it was listed."""

    mark: Mark
    pictures: list[str]
    folders: list[str]


class Listing:
    """The pictures of a folder by name.

    Args:
        folder: which one.
        is_kept: whether to use what was found before, and to keep what is found.
    """

    def __init__(self, folder: Path, is_kept: bool) -> None:
        self.folder = folder
        self._place = remembered(folder, ".safetensors") if is_kept else None
        self._known = {} if self._place is None else _load(self._place, folder)
        self._settled: dict[str, Directory] = {}
        self._fuse = fuse_devices() if is_kept else frozenset[int]()

    def names(self, below: str = "") -> list[str]:
        """The pictures below a subfolder as paths relative to the folder, sorted by their parts; hidden ones left out.

        An error names a picture that could not be read: to leave it out without a word would be to train on other
        data.
        """
        return self._walk(below, set())

    def _walk(self, relative: str, seen: set[tuple[int, int]]) -> list[str]:
        path = os.path.join(self.folder, relative)
        now = time.time_ns()
        try:
            mark = _mark(path)
            if mark[:2] in seen:
                return []  # a link that leads back
            seen.add(mark[:2])
            known = self._known.get(relative)
            directory, is_lasting = (known, True) if known and known.mark == mark else _listed(path, mark)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        if is_lasting and max(mark[2:]) < now - SETTLED_NS and mark[0] not in self._fuse:
            self._settled[relative] = directory
        prefix = relative and relative + os.sep
        if not directory.folders:
            return [prefix + name for name in directory.pictures]
        found, folders = [], set(directory.folders)
        for name in sorted([*directory.pictures, *directory.folders], key=_ORDER):
            found += self._walk(prefix + name, seen) if name in folders else [prefix + name]
        return found

    def keep(self) -> None:
        """Keep what was found since, if it is much and not what was known; where nothing can be written, nothing is."""
        is_large = sum(len(directory.pictures) for directory in self._settled.values()) >= SMALLEST
        if self._place is not None and is_large and self._settled != self._known:
            with contextlib.suppress(OSError):
                _save(self._place, self.folder, self._settled)
                forget_oldest(self._place.parent)


def _mark(path: str) -> Mark:
    found = os.stat(path)
    return found.st_dev & BITS, found.st_ino & BITS, found.st_mtime_ns, found.st_ctime_ns


def _listed(path: str, mark: Mark) -> tuple[Directory, bool]:
    """What a directory holds, and whether that lasts as long as its mark."""
    pictures, folders, is_lasting = [], [], True
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name[0] == ".":
                continue
            # Almost all entries end here, without a call of the system: a directory knows the kinds of its entries.
            if name[name.rfind(".") :].lower() in ENDINGS and entry.is_file(follow_symlinks=False):
                pictures.append(name)
                continue
            is_lasting = is_lasting and not entry.is_symlink()
            if entry.is_dir():
                folders.append(name)
                continue
            is_lasting = is_lasting and ending_of(name) != ""
            if is_picture(Path(entry.path), entry.is_file()):
                pictures.append(name)
    return Directory(mark, sorted(pictures, key=_ORDER), sorted(folders, key=_ORDER)), is_lasting


def ending_of(name: str) -> str:
    """The ending of a file's name with its dot, in small letters; "" if there is none."""
    dot = name.rfind(".")
    return name[dot:].lower() if 0 < dot < len(name) - 1 else ""


def is_picture(path: Path, is_file: bool) -> bool:
    """Whether a path is a picture that is read; an error where it is one that is not."""
    ending = ending_of(path.name)
    if ending in OTHER_ENDINGS:
        raise DataError(f"{path} is a picture of a kind that is not read; {', '.join(FORMATS)} are")
    if ending in ENDINGS and not is_file:
        raise DataError(f"{path} is named like a picture and is no file, or a link to nothing")
    return ending in ENDINGS or (not ending and is_file and begins_like_a_picture(path))


def fuse_devices() -> frozenset[int]:
    """The devices of FUSE mounts."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    numbers = [line.split()[2].split(":") for line in mounts if line.partition(" - ")[2].startswith("fuse")]
    return frozenset(os.makedev(int(major), int(minor)) for major, minor in numbers)


def remembered(folder: Path, ending: str) -> Path | None:
    """Where something about a folder is kept, if there is a place."""
    try:
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        return cache_folder() / "listings" / f"{name}{ending}"
    except (OSError, RuntimeError, DataError):
        return None


def forget_oldest(place: Path) -> None:
    """Delete what was kept longest ago, so that folders that are gone leave nothing behind for ever."""
    kept = sorted((path for path in place.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-REMEMBERED]:
        path.unlink(missing_ok=True)


def _save(path: Path, folder: Path, found: dict[str, Directory]) -> None:
    remove_leftovers(path.parent, [path.name])
    directories = found.values()
    tensors = {
        "directories": _joined(list(found)),
        "pictures": _joined([name for directory in directories for name in directory.pictures]),
        "folders": _joined([name for directory in directories for name in directory.folders]),
        "marks": torch.tensor([directory.mark for directory in directories]),
        "counts": torch.tensor([(len(directory.pictures), len(directory.folders)) for directory in directories]),
    }
    save_tensors(path, tensors, {"format": _FORMAT, "folder": str(folder.resolve())})


def _load(path: Path, folder: Path) -> dict[str, Directory]:
    """What was kept; nothing, if that cannot be read or is of another folder."""
    try:
        if path.is_symlink() or not path.is_file():
            return {}
        tensors, record = load_tensors(path)
        if record != {"format": _FORMAT, "folder": str(folder.resolve())}:
            return {}
        pictures, folders = (iter(_split(tensors[key])) for key in ("pictures", "folders"))
        return {
            name: Directory((*mark,), list(islice(pictures, counts[0])), list(islice(folders, counts[1])))
            for name, mark, counts in zip(
                _split(tensors["directories"]), tensors["marks"].tolist(), tensors["counts"].tolist(), strict=True
            )
        }
    except (TensorFileError, OSError, LookupError, TypeError, ValueError):
        return {}


def _joined(names: Sequence[str]) -> Tensor:
    """Names as bytes, each with a zero after it."""
    content = os.fsencode("\0".join([*names, ""]))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)


def _split(content: Tensor) -> list[str]:
    return os.fsdecode(content.numpy().tobytes()).split("\0")[:-1]
