"""Datasets of one's own in an .npz: x_train, y_train and, unless a part is to be cut off for testing, x_test, y_test.

Or x and y; what they may be stands in `mixreg.data.arrays`. Nothing in such a file is run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mixreg.data.arrays import Dataset, Split, checked, cut
from mixreg.data.errors import DataError
from mixreg.data.limits import require_bounded


def load_npz(path: Path) -> Dataset:
    """A dataset of one's own: an .npz with x_train, y_train, and x_test, y_test unless they are to be cut off."""
    content = read_npz(path, ())
    if "x" in content and "y" in content:
        if "x_train" in content or "y_train" in content:
            raise DataError(f"{path} holds two kinds of training data: {', '.join(content)}")
        content |= {"x_train": content["x"], "y_train": content["y"]}
    require_arrays(path, content, ("x_train", "y_train"))
    train = Split(content["x_train"], content["y_train"])
    if "x_test" in content or "y_test" in content:
        if not ("x_test" in content and "y_test" in content):
            raise DataError(f"{path} holds only one of x_test and y_test; give both, or neither to have a part cut off")
        return checked(path.stem, train, Split(content["x_test"], content["y_test"]))
    return cut(checked(path.stem, train, train))


def read_npz(path: Path, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    """All arrays of an .npz, which must hold the needed ones; nothing in it is run."""
    try:
        with path.open("rb") as file:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
            require_bounded(path, unpacked, path.stat().st_size)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                content = {key: arrays[key] for key in arrays.files}
    except DataError:
        raise
    except Exception as error:
        # Broken archives raise almost anything.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is not an .npz with plain arrays {', '.join(needed)}: {reason}") from error
    require_arrays(path, content, needed)
    return content


def require_arrays(path: Path, content: Mapping[str, np.ndarray], needed: tuple[str, ...]) -> None:
    """An error that says what a file holds, unless all needed arrays are among it."""
    if any(key not in content for key in needed):
        held = ", ".join(content) or "nothing"
        raise DataError(f"{path} is not an .npz with plain arrays {', '.join(needed)}: it holds {held}")
