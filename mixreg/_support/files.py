"""Files that are either whole or not there.

A file is written beside its place under a temporary name, flushed to the disk and moved over the old one in one step:
whoever is killed, runs out of disk or lacks permission leaves the previous file as it was.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_TEMPORARY = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends well."""
    # Named before it is made: whatever interrupts from here on finds it.
    name = path.parent / f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(name, "xb", opener=_privately) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # Temporary files are private; this one becomes as readable as any other.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise _explained(error, path) from error
        raise


def _privately(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors inside say that `path` could not be written."""
    try:
        yield
    except OSError as error:
        raise _explained(error, path) from error


def _explained(error: OSError, path: Path) -> OSError:
    kept = "; the previous file is untouched" if path.exists() else ""
    return type(error)(error.errno, f"cannot write {path}: {error.strerror or error}{kept}")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`."""
    with replacing(path) as file:
        file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by JSON that a person can read."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


class HeldLock:
    """A lock file that is held: still the one that was taken, or moved away with its folder."""

    def __init__(self, path: Path) -> None:
        self.path, self._taken = path, _identity(path)

    def require_in_place(self) -> None:
        """An error if the lock's folder is no longer where it was: whatever is there now is somebody else's."""
        if self._taken is None or _identity(self.path) != self._taken:
            raise LockedError(f"{self.path.parent} was moved or removed meanwhile; nothing more is written there")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def locked(path: Path, waits: bool = True) -> Iterator[HeldLock]:
    """One process at a time; the others wait, or get a `LockedError`.

    The lock, an empty file that stays, dies with its holder. Nothing is ever written to it, and a link is refused:
    what it leads to is somebody else's.
    """
    from filelock import FileLock, Timeout

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Older versions of filelock follow links and empty what they open.
        if path.is_symlink() or (path.is_file() and path.stat().st_nlink > 1):
            raise FileExistsError(errno.EEXIST, "it is a link to another file, expected a lock or nothing")
        lock = FileLock(path)
        try:
            lock.acquire(blocking=waits)
        except Timeout as error:
            raise LockedError(f"another process holds {path}") from error
    try:
        yield HeldLock(path)
    finally:
        lock.release()


class LockedError(ValueError):
    """A lock that another process holds."""


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Delete what killed writers of the files `names` left in `folder`, and nothing else."""
    for name in names:
        for leftover in folder.glob(f".{glob.escape(name)}.????????{_TEMPORARY}"):
            if leftover.is_file() and not leftover.is_symlink():
                leftover.unlink(missing_ok=True)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, as hexadecimal."""
    with path.open("rb") as file:
        return (
            hashlib.file_digest(file, algorithm).hexdigest()
            if hasattr(hashlib, "file_digest")
            else _plain(file, algorithm)
        )


def _plain(file: BinaryIO, algorithm: str) -> str:
    # Python 3.10 has no file_digest.
    total = hashlib.new(algorithm)
    while block := file.read(1 << 20):
        total.update(block)
    return total.hexdigest()
