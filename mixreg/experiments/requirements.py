"""What must be at hand before networks can be trained."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mixreg._support.near_misses import unknown
from mixreg.data.arrays import cache_folder
from mixreg.data.registry import EMBEDDED, IMAGENET, RECIPES, imagenet_folder


def is_at_hand(name: str) -> bool:
    """Whether a dataset can be opened without fetching it."""
    if name == IMAGENET:
        return (imagenet_folder() / "train").is_dir()
    if name in RECIPES:
        return (cache_folder() / f"{name}.safetensors").exists()
    return name in EMBEDDED or Path(name).exists()


def missing_for_training(names: Sequence[str]) -> list[str]:
    """What is missing for training on these datasets, in sentences."""
    sentences = []
    if find_spec("lightning_fabric") is None:
        sentences.append("training needs Lightning Fabric: pip install 'mixreg[train]'")
    for name in names:
        if is_at_hand(name):
            continue
        if name == IMAGENET:
            place = "imagenet/ in the data folder (MIXREG_DATA)"
            sentences.append(f"ImageNet is not here: put or link its folders train/ and val/ into {place}")
        elif name in RECIPES:
            sentences.append(f"{name} is not here yet: run `mixreg data get {name}`")
        else:
            sentences.append(unknown("dataset", name, [*EMBEDDED, *RECIPES, IMAGENET]))
    return sentences
