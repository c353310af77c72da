"""Datasets from wherever they are: known by name, or in files of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mixreg._support.near_misses import unknown
from mixreg.data import formats
from mixreg.data.archives import load_npz
from mixreg.data.arrays import Dataset, as_task, checked
from mixreg.data.errors import DataError
from mixreg.data.registry import EMBEDDED, IMAGENET, RECIPES, load_known
from mixreg.data.tables import ENDINGS, Columns, joined, load_table, read_columns


def table_parts(path: Path) -> dict[str, list[Path]]:
    """The files of a folder's two parts, train* and test*, CSV or parquet; empty if it is no such folder."""
    if not path.is_dir():
        return {}
    for ending in ENDINGS:
        parts = {part: sorted(path.glob(f"{part}*{ending}")) for part in ("train", "test")}
        if parts["train"]:
            return parts
    return {}


def load(name: str, target: str = "", task: str = "", classes: Sequence[str] = ()) -> Dataset:
    """A dataset by name, or from files: an .npz, a table (CSV or parquet), or a folder of train* and test* of them.

    Args:
        name: of the dataset, or a path.
        target: the target columns of a table, with commas.
        task: what targets are, if not what they look like; see `mixreg._support.tasks`.
        classes: the names of classes, if they are known already; of tables.

    Raises:
        DataError: it is not known, or known and not here yet.
    """
    if not name:
        raise DataError("a dataset is named, got ''")
    path = Path(name)
    if name in EMBEDDED or name in RECIPES or name == IMAGENET:
        dataset = load_known(name)
    elif parts := table_parts(path):
        if _holds_images(parts["train"][0]):
            if not parts["test"]:
                raise DataError(f"{path} has no test*.parquet beside its train*.parquet")
            train, test = (formats.parquet(parts[part]) for part in ("train", "test"))
            return checked(path.resolve().name, train, test)
        return load_table(name, *read_table(path), target, task, classes)
    elif path.suffix.lower() in (".npz", *ENDINGS):
        if not path.is_file():
            raise DataError(f"{path} is not a file")
        if path.suffix.lower() != ".npz":
            return load_table(name, *read_table(path), target, task, classes)
        dataset = load_npz(path)
    else:
        others = (
            "an .npz, .csv or .parquet file, a folder of class folders, or of train* and test* files of these kinds"
        )
        raise DataError(unknown("dataset", name, [*EMBEDDED, *RECIPES], others))
    if target:
        raise DataError(f"{name} is no table, and has no column {target!r} to be the target")
    return as_task(dataset, task) if task else dataset


def _holds_images(path: Path) -> bool:
    """Whether a parquet file is one of Hugging Face's with pictures."""
    return path.suffix == ".parquet" and formats.image_column(path) is not None


def is_table(path: Path) -> bool:
    """Whether a path is a table: a CSV or parquet file of columns, or a folder of such files."""
    if path.is_file():
        return path.suffix.lower() in ENDINGS
    parts = table_parts(path)
    return bool(parts) and not _holds_images(parts["train"][0])


def read_table(path: Path) -> tuple[Columns, Columns | None]:
    """The training and the test part of a table; of a single file, all of it and None."""
    if path.is_file():
        return read_columns(path), None
    train, test = ([read_columns(file) for file in table_parts(path)[part]] for part in ("train", "test"))
    return _stacked(str(path), train), _stacked(str(path), test) if test else None


def _stacked(name: str, parts: list[Columns]) -> Columns:
    """The rows of several files."""
    for part in parts:
        if part.keys() != parts[0].keys():
            raise DataError(f"the files of {name} have different columns: {', '.join(parts[0])} and {', '.join(part)}")
    return {key: joined([part[key] for part in parts]) for key in parts[0]}
