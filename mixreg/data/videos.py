"""Frames of videos with their neighbours: ImageNet-Vid-Robust and YTBB-Robust (Shankar et al., 2021).

Every anchor frame comes with frames up to 10 steps before and after it that show the same. pm-10 accuracy counts an
anchor as right only if all of them are.

    VID   metadata/pmsets.json {anchor: [frame, …]}, metadata/labels.json {frame: [class, …]}, val/VIDEO/FRAME.JPEG
    YTBB  ytbb_videos/ID_TIME/frame-N.jpg; metadata/ with the annotators' files, or pmsets.json and labels.json as above
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixreg.data.arrays import DataError
from mixreg.data.formats import naming
from mixreg.data.shifted import Part, ShiftedSet, file_batches, subsets

DISTANCE = 10
# What disqualifies a neighbour, in the annotators' words.
_UNLIKE = {
    "dissimilar",
    "problematic",
    "incorrect",
    "dont know",
    "deformation",
    "background-change",
    "occlusion-increased",
    "blur-increase",
    "bad-anchor",
}


def _json(path: Path) -> Any:
    with naming(path):
        return json.loads(path.read_text(encoding="utf-8"))


def vid_robust(folder: Path, size: int, workers: int) -> ShiftedSet:
    """ImageNet-Vid-Robust: 30 classes; every frame is judged by its own labels."""
    neighbours, labels = _json(folder / "metadata" / "pmsets.json"), _json(folder / "metadata" / "labels.json")
    return _frames("vid-robust", folder, neighbours, lambda anchor, frame: labels.get(frame), size, workers)


def ytbb_robust(folder: Path, size: int, workers: int) -> ShiftedSet:
    """YTBB-Robust: 24 classes; every frame is judged by its anchor's labels."""
    metadata = folder / "metadata"
    if (metadata / "pmsets.json").is_file():
        neighbours, labels = _json(metadata / "pmsets.json"), _json(metadata / "labels.json")
    else:
        neighbours, labels = annotated(metadata)
    videos = folder / "ytbb_videos" if (folder / "ytbb_videos").is_dir() else folder
    return _frames("ytbb-robust", videos, neighbours, lambda anchor, frame: labels.get(anchor), size, workers)


def _frames(
    kind: str,
    root: Path,
    neighbours: dict[str, list[str]],
    classes_of: Callable[[str, str], list[int] | None],
    size: int,
    workers: int,
) -> ShiftedSet:
    """The set of these anchors and neighbours; `classes_of` gives the right classes of an anchor's frame."""
    names: dict[str, list[int]] = subsets()[kind]
    # A frame that is judged in two ways counts as two.
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    neighbourhoods = []
    for anchor, frames in neighbours.items():
        group = []
        for frame in (anchor, *frames):
            classes = classes_of(anchor, frame)
            if not classes or not all(0 <= label < len(names) for label in classes):
                raise DataError(f"{root}: frame {frame} has labels {classes}, expected some of 0 to {len(names) - 1}")
            group.append(numbers.setdefault((frame, tuple(classes)), len(numbers)))
        neighbourhoods.append(group)
    base = root.resolve()
    paths = [root / frame for frame, _ in numbers]
    for path in paths:
        if not path.resolve().is_relative_to(base):
            raise DataError(f"{root}: frame {path} lies outside of it")
        if not path.is_file():
            raise DataError(f"{path} is not there")
    allowed = [list(classes) for _, classes in numbers]
    batches = file_batches(paths, [classes[0] for classes in allowed], size, workers)
    parts = Part(kind, 0, batches)
    return ShiftedSet(kind, lambda: iter([parts]), list(names.values()), allowed, neighbourhoods)


def annotated(metadata: Path) -> tuple[dict[str, list[str]], dict[str, list[int]]]:
    """Neighbours and labels from the annotators' files of YTBB-Robust.

    Anchors count if they were called good, and neither bad nor unsure; neighbours if they were called similar, and
    nothing that would make them unlike the anchor. An anchor's classes are its own and those annotators saw in it.
    """
    classes = list(subsets()["ytbb-robust"])
    anchors = _annotations(metadata / "anchor_labels.json")
    pairs = _annotations(metadata / "pmk_labels.json")
    own: dict[str, int] = {}
    path = metadata / "ytbb_robustness_test_anchors_full.csv"
    with naming(path), path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            # The table's own numbers for "none" and "car" are the other way round.
            label = {22: 23, 23: 22}.get(int(row["label"]), int(row["label"]))
            own[f"{row['ytid']}_{row['time_ms']}"] = label
    bad = {key.split(",")[0] for key, said in pairs.items() if "bad-anchor" in said}
    neighbours: dict[str, list[str]] = {}
    labels: dict[str, list[int]] = {}
    for key, said in anchors.items():
        video = key.split("/")[0]
        if "good" not in said or said & {"bad", "unsure"} or key in bad or video not in own:
            continue
        labels[key] = sorted({own[video]} | {classes.index(word) for word in said if word in classes})
        number = int(Path(key).stem.removeprefix("frame-"))
        near = [f"{video}/frame-{number + i}.jpg" for i in range(-DISTANCE, DISTANCE + 1) if i != 0]
        neighbours[key] = [frame for frame in near if _is_alike(pairs.get(f"{key},{frame}", set()))]
    if not neighbours:
        raise DataError(f"{metadata} names no good anchor frame")
    return neighbours, labels


def _is_alike(said: set[str]) -> bool:
    return "similar" in said and not said & _UNLIKE


def _annotations(path: Path) -> dict[str, set[str]]:
    """What was said of every frame, or pair of frames, as words; the last word counts."""
    content = _json(path)
    with naming(path):
        words = content["labels"]
        return {_short(entry["key"]): {words[k] for k in entry["labels"]} for entry in content["annotations"]}


def _short(key: str) -> str:
    """Paths may be long and absolute: the last folder and the name say which frame it is."""
    return ",".join("/".join(Path(part).parts[-2:]) for part in key.split(","))
