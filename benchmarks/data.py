"""Folders of images: how many a second reach the network, and how long a large folder takes before the first one.

    python benchmarks/data.py --files 1000000 --json FILE

Images: an epoch of `FolderBatches` (normalised batches of 224 × 224) beside torchvision's `ImageFolder` with a
`DataLoader`, if torchvision is installed, and beside what that does, written out with Pillow in a `Dataset` of ten
lines. Start: the listing of a folder of many files and its fingerprint, new and remembered, beside `ImageFolder`'s
listing. All in one run, in turns; medians.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mixing import importable
from PIL import Image
from rich.console import Console
from rich.table import Table
from timing import medians
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mixreg.data import fingerprints
from mixreg.data.folders import PIXEL_MEAN, PIXEL_STD, labelled
from mixreg.training import Config
from mixreg.training.folder_batches import FolderBatches

SIZE, BATCH = 224, 32
# ImageNet's mean size, and that of a small photograph.
KINDS = {"500 × 375": (500, 375, 384), "2,000 × 1,500": (2000, 1500, 96)}
CROPS = ("random window", "centre")
PLAIN, TORCHVISION, MIXREG = "Pillow in a DataLoader", "torchvision ImageFolder", "mixreg"
MEAN, STD = torch.tensor(PIXEL_MEAN).reshape(3, 1, 1), torch.tensor(PIXEL_STD).reshape(3, 1, 1)


def photograph(width: int, height: int, seed: int) -> Image.Image:
    """Noise of every size, with as much of each as pictures have."""
    rng, total = np.random.default_rng(seed), np.zeros((height, width, 3))
    for level in range(1, 9):
        noise = rng.normal(size=(max(1, height >> level), max(1, width >> level), 3)) * 8 * 1.4**level
        for channel in range(3):
            layer = Image.fromarray(noise[..., channel].astype(np.float32))
            total[..., channel] += np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray(np.clip(128 + total, 0, 255).astype(np.uint8))


def make_folder(folder: Path, sources: list[Path], files: int, classes: int) -> Path:
    """DIR/train/CLASS/* with links to a few files, and one picture for each class in DIR/val."""
    for label in range(classes):
        (folder / "train" / f"n{label:08d}").mkdir(parents=True)
        (folder / "val" / f"n{label:08d}").mkdir(parents=True)
        os.link(sources[0], folder / "val" / f"n{label:08d}" / "0.JPEG")
    for k in range(files):
        os.link(sources[k % len(sources)], folder / "train" / f"n{k % classes:08d}" / f"n{k % classes:08d}_{k}.JPEG")
    return folder


def make_sources(folder: Path, width: int, height: int, count: int) -> list[Path]:
    """Photographs to link to."""
    folder.mkdir(parents=True)
    paths = [folder / f"{k}.jpg" for k in range(count)]
    for k, path in enumerate(paths):
        photograph(width, height, k).save(path, quality=90)
    return paths


class PlainImages(Dataset[tuple[Tensor, int]]):
    """Images as `ImageFolder` reads them: decoded whole, cropped, as numbers, normalised."""

    def __init__(self, samples: list[tuple[str, int]], is_random: bool) -> None:
        self.samples, self.is_random = samples, is_random

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One image and its label."""
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        image = random_resized_crop(image) if self.is_random else resized_centre(image)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        return x.sub_(MEAN).div_(STD), label


def random_resized_crop(image: Image.Image) -> Image.Image:
    """torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`."""
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            image = image.crop((left, top, left + w, top + h))
            break
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def resized_centre(image: Image.Image) -> Image.Image:
    """torchvision's `Resize(256)` and `CenterCrop(224)`."""
    width, height = image.size
    scale = 256 / min(width, height)
    image = image.resize((int(width * scale), int(height * scale)), Image.Resampling.BILINEAR)
    left, top = round((image.width - SIZE) / 2), round((image.height - SIZE) / 2)
    return image.crop((left, top, left + SIZE, top + SIZE))


def image_folder_listing(folder: Path) -> list[tuple[str, int]]:
    """`ImageFolder`'s `make_dataset`, written out."""
    endings = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
    samples = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())):
        for root, _, names in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
            samples += [(os.path.join(root, n), label) for n in sorted(names) if n.lower().endswith(endings)]
    return samples


def torchvision_images(folder: Path, is_random: bool) -> Dataset[tuple[Tensor, int]]:
    """The real one."""
    from torchvision import datasets, transforms

    crops = (
        [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
        if is_random
        else [transforms.Resize(256), transforms.CenterCrop(SIZE)]
    )
    last = [transforms.ToTensor(), transforms.Normalize(PIXEL_MEAN, PIXEL_STD)]
    found: Dataset[tuple[Tensor, int]] = datasets.ImageFolder(str(folder), transforms.Compose([*crops, *last]))
    return found


def loaders(folder: Path, crop: str, workers: int) -> dict[str, Callable[[], Iterator[Any]]]:
    """What gives the batches of an epoch, by name."""
    is_random = crop == CROPS[0]
    config = Config(
        data=str(folder), batch_size=BATCH, image_size=SIZE, holdout=0.0, augment="standard" if is_random else "none"
    )
    batches = FolderBatches(folder, config, workers=workers)

    def loading(dataset: Dataset[tuple[Tensor, int]]) -> Callable[[], Iterator[Any]]:
        return lambda: iter(DataLoader(dataset, BATCH, shuffle=True, num_workers=workers))

    found = {PLAIN: loading(PlainImages(image_folder_listing(folder / "train"), is_random))}
    if importable("torchvision"):
        found[TORCHVISION] = loading(torchvision_images(folder / "train", is_random))
    return found | {MIXREG: lambda: batches.epoch(0)}


def images_per_second(folder: Path, count: int, crop: str, workers: int, rounds: int) -> dict[str, float]:
    """By name of what reads them."""

    def reading(batches: Callable[[], Iterator[Any]]) -> Callable[[], object]:
        return lambda: sum(len(batch[0]) for batch in batches())

    found = {name: reading(batches) for name, batches in loaders(folder, crop, workers).items()}
    return {name: count / seconds for name, seconds in medians(found, rounds).items()}


def start_seconds(folder: Path, cache: Path, rounds: int) -> dict[str, float]:
    """Medians of listings and fingerprints, new and remembered."""
    train = folder / "train"

    def anew() -> None:
        shutil.rmtree(cache, ignore_errors=True)

    def fingerprint() -> str:
        return fingerprints.of_folder(folder, paths, test)

    paths, test = labelled(train)[0], labelled(folder / "val")[0]
    contestants: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "ImageFolder's listing": (anew, lambda: image_folder_listing(train)),
        "mixreg's listing, new": (anew, lambda: labelled(train)),
        "mixreg's listing, remembered": (lambda: labelled(train), lambda: labelled(train)),
        "fingerprint, new": (anew, fingerprint),
        "fingerprint, remembered": (fingerprint, fingerprint),
    }
    if importable("torchvision"):
        contestants["torchvision's ImageFolder"] = (anew, lambda: torchvision_images(train, True))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (before, action) in random.sample(list(contestants.items()), len(contestants)):
            before()
            begun = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - begun)
    return {name: float(np.median(values)) for name, values in times.items()}


def show(title: str, unit: str, measured: dict[str, float], baseline: str) -> None:
    """A table of numbers and of their ratios to the baseline's."""
    table = Table("what", unit, f"÷ {baseline}", title=title)
    for name, value in measured.items():
        table.add_row(name, f"{value:,.2f}", f"{value / measured[baseline]:.2f}")
    if not importable("torchvision"):
        table.add_row("torchvision's own", "not measured: not installed", "")
    Console(width=120).print(table)


def main() -> None:
    """Print the tables, and write their numbers if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=200_000, help="of the folder that is listed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"torch": torch.__version__, "torchvision": importable("torchvision"), "images": []}
    with tempfile.TemporaryDirectory(prefix="mixreg-data-") as name:
        cache = Path(name) / "cache"
        os.environ["MIXREG_DATA"] = str(cache)
        for kind, (width, height, count) in KINDS.items():
            sources = make_sources(Path(name) / f"sources {kind}", width, height, 12)
            folder = make_folder(Path(name) / kind, sources, count, 4)
            for crop in CROPS:
                for workers in (1, 2):
                    rates = images_per_second(folder, count, crop, workers, given.rounds)
                    title = f"JPEGs of {kind}, {crop} of {SIZE} × {SIZE}, {workers} workers"
                    show(title, "images / s", rates, PLAIN)
                    found["images"].append({"pictures": kind, "crop": crop, "workers": workers, "rates": rates})
        # A file may have 65,000 names on some file systems.
        few = make_sources(Path(name) / "sources", 500, 375, 1 + given.files // 50_000)
        folder = make_folder(Path(name) / "large", few, given.files, 1000)
        # What changed a moment ago is not remembered.
        time.sleep(3)
        found["files"], found["start"] = given.files, start_seconds(folder, cache, given.rounds)
        show(f"a folder of {given.files:,} files", "seconds", found["start"], "ImageFolder's listing")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
