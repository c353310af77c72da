"""Shifted test sets in their published layouts: against what the files say, read plainly."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import picture
from PIL import Image

from mixreg.data import DataError
from mixreg.data.corruptions import BENCHMARK, corrupt
from mixreg.data.shifted import open_shifted, subsets
from mixreg.data.videos import annotated
from mixreg.evaluation.shift import (
    ALEXNET_ERROR,
    corruption_errors,
    evaluate_shifted,
    hits,
    mean_corruption_error,
    merged,
    pm_k_accuracy,
)
from mixreg.methods.mixup import Mixup
from mixreg.theory.moments import DataMoments
from mixreg.training.batches import Pixels, Preparation
from mixreg.training.config import Config
from mixreg.training.held_out_fit import HeldOutFit
from mixreg.training.measures import measure
from mixreg.training.targets import Targets
from mixreg.training.trained import Trained


def imagenet_like(classes: int = 1000, size: int = 16) -> Trained:
    """An untrained network with many classes."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * size * size, classes))
    shape = (3, size, size)
    means = torch.zeros(shape), torch.full((classes,), 1 / classes)
    pixels = Pixels(torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))
    moments = DataMoments.from_means(*means, classes)
    config, how = Config(image_size=size), Preparation(pixels)
    return Trained(config, net.eval(), Mixup(1.0), moments, {}, Targets("classes", classes), how, Path())


def predictions(trained: Trained, paths: list[Path], border: int = 0) -> torch.Tensor:
    """Logits, straight from the files (16 × 16 already, so that cropping changes nothing but the scale)."""
    from mixreg.data.folders import centre_crop

    arrays = []
    for path in paths:
        image = Image.open(path).convert("RGB")
        image = image.crop((border, border, image.width - border, image.height - border))
        arrays.append(np.asarray(centre_crop(image, 16)))
    x = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    with torch.no_grad():
        return trained.net((x / 255 - 0.5) / 0.25)


def test_cifar_c(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(6) % 4
    for name in BENCHMARK[:2]:
        blocks = [corrupt(images, name, s, torch.Generator().manual_seed(s)) for s in range(1, 6)]
        np.save(tmp_path / f"{name}.npy", np.concatenate(blocks))
    np.save(tmp_path / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    trained = imagenet_like(4)
    rows = evaluate_shifted(trained, open_shifted("cifar-c", tmp_path), HeldOutFit(None, {"plain": 2.0}))
    assert len(rows) == 2 * 5 * 3
    x = torch.from_numpy(np.load(tmp_path / "shot_noise.npy")[12:18]).permute(0, 3, 1, 2)
    expected = measure(trained.net((x / 255 - 0.5) / 0.25).detach(), torch.from_numpy(labels))
    row = next(r for r in rows if r["part"] == "shot_noise" and r["severity"] == 3 and r["model"] == "plain")
    assert row["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-5)
    errors = corruption_errors(rows, "plain")
    assert mean_corruption_error(errors, errors) == pytest.approx(1)
    assert mean_corruption_error({"fog": 0.819324}, ALEXNET_ERROR) == pytest.approx(1)
    np.save(tmp_path / "labels.npy", np.arange(30))
    with pytest.raises(DataError, match=r"labels\.npy is broken.*5 equal blocks"):
        open_shifted("cifar-c", tmp_path)
    hostile = np.empty(1, dtype=object)
    hostile[0] = print
    np.save(tmp_path / "labels.npy", hostile, allow_pickle=True)
    with pytest.raises(DataError, match=r"labels\.npy is broken"):
        open_shifted("cifar-c", tmp_path)


def save_pictures(folder: Path, count: int, size: int = 16) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{k}.png" for k in range(count)]
    for k, path in enumerate(paths):
        picture(k, len(folder.name) + k, (size, size)).save(path)
    return paths


def only_row(trained: Trained, kind: str, folder: Path) -> dict:
    rows = evaluate_shifted(trained, open_shifted(kind, folder, size=16, workers=0))
    return next(row for row in rows if row["model"] == "plain")


def test_imagenet_c(tmp_path: Path) -> None:
    for severity in range(1, 6):
        for k in range(1000):
            (tmp_path / "noise" / "gaussian_noise" / str(severity) / f"n{k:08d}").mkdir(parents=True)
        save_pictures(tmp_path / "noise" / "gaussian_noise" / str(severity) / "n00000007", 2)
    trained = imagenet_like()
    rows = evaluate_shifted(trained, open_shifted("imagenet-c", tmp_path, size=16, workers=0))
    assert len(rows) == 10
    logits = predictions(trained, sorted((tmp_path / "noise" / "gaussian_noise" / "2" / "n00000007").glob("*")))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([7, 7]))
    assert rows[2]["cross_entropy"] == pytest.approx(float(expected), rel=1e-4)
    (tmp_path / "noise" / "gaussian_noise" / "1" / "n00000999").rmdir()
    with pytest.raises(DataError, match="has 999 class folders, expected 1000"):
        evaluate_shifted(trained, open_shifted("imagenet-c", tmp_path, size=16, workers=0))


def test_imagenet_a_chooses_among_its_classes(tmp_path: Path) -> None:
    members = subsets()["imagenet-a"]
    for k in range(200):
        (tmp_path / f"n{members[k]:08d}").mkdir()
    paths = save_pictures(tmp_path / f"n{members[3]:08d}", 3)
    trained = imagenet_like()
    logits = predictions(trained, paths)[:, members]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([3, 3, 3]))
    assert only_row(trained, "imagenet-a", tmp_path)["cross_entropy"] == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(ValueError, match="networks with ImageNet's 1,000 classes, the network has 10"):
        only_row(imagenet_like(10), "imagenet-a", tmp_path)


def test_imagenet_v2_takes_folder_names_for_numbers(tmp_path: Path) -> None:
    paths = save_pictures(tmp_path / "100", 2) + save_pictures(tmp_path / "2", 1)
    trained = imagenet_like()
    expected = torch.nn.functional.cross_entropy(predictions(trained, paths), torch.tensor([100, 100, 2]))
    assert only_row(trained, "imagenet-v2", tmp_path)["cross_entropy"] == pytest.approx(float(expected), rel=1e-4)
    (tmp_path / "n01440764").mkdir()
    with pytest.raises(DataError, match="folders are named 0 to 999"):
        open_shifted("imagenet-v2", tmp_path)


def test_objectnet_merges_classes_and_cuts_the_border(tmp_path: Path) -> None:
    names = subsets()["objectnet"]
    assert len(names) == 113
    paths = save_pictures(tmp_path / "images" / "chair", 3, size=20)
    save_pictures(tmp_path / "images" / "abacus", 2)
    trained = imagenet_like()
    probabilities = predictions(trained, paths, border=2).softmax(1)
    per_class = torch.stack([probabilities[:, group].sum(1) for group in names.values()], 1)
    chair = list(names).index("chair")
    expected = -torch.log(per_class[:, chair] / per_class.sum(1)).mean()
    assert only_row(trained, "objectnet", tmp_path)["cross_entropy"] == pytest.approx(float(expected), rel=1e-4)


def test_videos_and_their_neighbourhoods(tmp_path: Path) -> None:
    frames = save_pictures(tmp_path / "val" / "video", 5)
    keys = [f"val/video/{path.name}" for path in frames]
    trained = imagenet_like()
    scores = merged(predictions(trained, frames), list(subsets()["vid-robust"].values()))
    best = scores.argmax(1).tolist()
    other = [(label + 1) % 30 for label in best]
    # Anchor 0 is right with its neighbours, anchor 3 is right and its neighbour is not.
    labels = {keys[k]: [best[k]] for k in range(4)} | {keys[4]: [other[4]]}
    labels[keys[1]] = [other[1], best[1]]
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    (metadata / "pmsets.json").write_text(json.dumps({keys[0]: keys[1:3], keys[3]: [keys[4]]}))
    (metadata / "labels.json").write_text(json.dumps(labels))
    row = only_row(trained, "vid-robust", tmp_path)
    assert row["anchor_accuracy"] == 1.0
    assert row["pm_accuracy"] == 0.5
    (metadata / "pmsets.json").write_text(json.dumps({"../../../etc/passwd": []}))
    (metadata / "labels.json").write_text(json.dumps({"../../../etc/passwd": [0]}))
    with pytest.raises(DataError, match="lies outside of it"):
        open_shifted("vid-robust", tmp_path)


def test_annotations_of_ytbb(tmp_path: Path) -> None:
    words = ["good", "unsure", "bad", *subsets()["ytbb-robust"]]
    anchors = [
        {"key": "/long/path/abc_1000/frame-50.jpg", "labels": [0, words.index("dog")]},
        {"key": "xyz_2000/frame-9.jpg", "labels": [0, 2]},
        {"key": "car_3000/frame-20.jpg", "labels": [0]},
        {"key": "spoilt_4000/frame-20.jpg", "labels": [0]},
    ]
    pairs = [
        {"key": "abc_1000/frame-50.jpg,abc_1000/frame-51.jpg", "labels": [0]},
        {"key": "abc_1000/frame-50.jpg,abc_1000/frame-49.jpg", "labels": [0, 2]},
        {"key": "abc_1000/frame-50.jpg,abc_1000/frame-70.jpg", "labels": [0]},
        {"key": "spoilt_4000/frame-20.jpg,spoilt_4000/frame-21.jpg", "labels": [3]},
    ]
    (tmp_path / "anchor_labels.json").write_text(json.dumps({"annotations": anchors, "labels": words}))
    spoken = ["similar", "dissimilar", "blur-increase", "bad-anchor"]
    (tmp_path / "pmk_labels.json").write_text(json.dumps({"annotations": pairs, "labels": spoken}))
    (tmp_path / "ytbb_robustness_test_anchors_full.csv").write_text(
        "ytid,time_ms,label\nabc,1000,7\nxyz,2000,1\ncar,3000,22\nspoilt,4000,1\n"
    )
    neighbours, labels = annotated(tmp_path)
    assert neighbours == {"abc_1000/frame-50.jpg": ["abc_1000/frame-51.jpg"], "car_3000/frame-20.jpg": []}
    # cat (7) and the dog the annotator saw (19); the table's 22 is a car (23).
    assert labels == {"abc_1000/frame-50.jpg": [7, 19], "car_3000/frame-20.jpg": [23]}


def test_pm_k_and_sets_of_labels() -> None:
    logits = torch.eye(4)
    assert hits(logits, torch.zeros(4, dtype=torch.long), [[0], [0, 1], [0], [3]]).tolist() == [True, True, False, True]
    right = torch.tensor([True, False, True, True])
    assert pm_k_accuracy(right, [[0, 1], [2, 3], [1], [3]]) == (0.75, 0.5)


def test_errors_of_a_baseline_that_never_errs() -> None:
    assert np.isnan(mean_corruption_error({"fog": 0.1}, {"fog": 0.0}))
