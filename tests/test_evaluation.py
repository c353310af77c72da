"""Evaluation: folders of images, published layouts of shifted sets, saved outputs, numbers against plain ones."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixreg import Theta
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
from mixreg.evaluation.table import of_run, saved_outputs, table, temperatures
from mixreg.rescaling import Rescaled
from mixreg.training.batches import Pixels
from mixreg.training.config import Config
from mixreg.training.measures import measure
from mixreg.training.run import Engine, Trained, load_trained, train


def mixreg(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mixreg", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def picture(label: int, seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """Noise around a colour that tells the class."""
    colour = np.array([(200, 40, 40), (40, 200, 40), (40, 40, 200)][label % 3])
    noise = np.random.default_rng(seed).integers(-30, 30, (size[1], size[0], 3))
    return Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8))


def image_folder(root: Path, count: int = 12) -> Path:
    for part, number in (("train", count), ("val", 6)):
        for label, name in enumerate(("blue", "green", "red")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for k in range(number):
                kind = "png" if k % 2 else "jpg"
                picture(2 - label, 100 * label + k).save(folder / f"{k}.{kind}")
    return root


class Nobody:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def step(self, *_) -> None:
        pass


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory) -> tuple[Path, Path]:
    """A run on a folder of class folders: the run and the folder."""
    root = tmp_path_factory.mktemp("images")
    data, out = image_folder(root / "data"), root / "run"
    config = Config(
        data=str(data), model="small-resnet", epochs=4, batch_size=9, lr=0.05, image_size=16, holdout=0.25, seed=1
    )
    assert train(config, out, Engine(accelerator="cpu", workers=1), lambda *_: Nobody(), 0.0)
    return out, data


def test_a_folder_of_class_folders(folder_run) -> None:
    out, _ = folder_run
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["plain"]["accuracy"] > 0.9
    trained = load_trained(out)
    assert trained.shape == (3, 16, 16)
    test, held = of_run(trained)
    assert held is not None
    assert len(held.labels) == 9
    assert measure(test.logits["rescaled"], test.labels)["ece"] == pytest.approx(metrics["rescaled"]["ece"], abs=1e-6)


def test_a_folder_resumes_bit_for_bit(folder_run, tmp_path: Path) -> None:
    """Going on in the middle of an epoch gives the same weights, with another number of workers too."""
    out, _ = folder_run
    config = load_trained(out).config

    class Stop(Nobody):
        steps = 0

        def step(self, *_) -> None:
            self.steps += 1
            if self.steps == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, Engine(accelerator="cpu", workers=0), lambda *_: Stop(), 0.0)
    train(config, tmp_path, Engine(accelerator="cpu", workers=0), lambda *_: Nobody(), 0.0)
    first, second = (load_trained(path).net.state_dict() for path in (out, tmp_path))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images_are_named(workers, tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data", 2)
    (data / "train" / "red" / "0.jpg").write_bytes(b"\xff\xd8 not really")
    config = Config(data=str(data), model="small-resnet", epochs=1, image_size=16, holdout=0.0)
    with pytest.raises(DataError, match=r"red/0\.jpg is broken") as error:
        train(config, tmp_path / "run", Engine(accelerator="cpu", workers=workers), lambda *_: Nobody(), 0.0)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="has no folder train; expected train/CLASS"):
        train(
            Config(data=str(data / "train"), model="mlp"),
            tmp_path / "other",
            Engine(accelerator="cpu"),
            lambda *_: Nobody(),
        )


def imagenet_like(classes: int = 1000, size: int = 16) -> Trained:
    """An untrained network with many classes."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * size * size, classes))
    shape = (3, size, size)
    rescaled = Rescaled(net, 1.0, torch.zeros(shape), torch.full((classes,), 1 / classes))
    pixels = Pixels(torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))
    return Trained(Config(image_size=size), net.eval(), rescaled.eval(), shape, classes, pixels)


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
    rows = evaluate_shifted(trained, open_shifted("cifar-c", tmp_path), {"plain": 2.0})
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
    rows = evaluate_shifted(trained, open_shifted(kind, folder, size=16, workers=0), {})
    return next(row for row in rows if row["model"] == "plain")


def test_imagenet_c(tmp_path: Path) -> None:
    for severity in range(1, 6):
        for k in range(1000):
            (tmp_path / "noise" / "gaussian_noise" / str(severity) / f"n{k:08d}").mkdir(parents=True)
        save_pictures(tmp_path / "noise" / "gaussian_noise" / str(severity) / "n00000007", 2)
    trained = imagenet_like()
    rows = evaluate_shifted(trained, open_shifted("imagenet-c", tmp_path, size=16, workers=0), {})
    assert len(rows) == 10
    logits = predictions(trained, sorted((tmp_path / "noise" / "gaussian_noise" / "2" / "n00000007").glob("*")))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([7, 7]))
    assert rows[2]["cross_entropy"] == pytest.approx(float(expected), rel=1e-4)
    (tmp_path / "noise" / "gaussian_noise" / "1" / "n00000999").rmdir()
    with pytest.raises(DataError, match="has 999 class folders, expected 1000"):
        evaluate_shifted(trained, open_shifted("imagenet-c", tmp_path, size=16, workers=0), {})


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


def test_temperature_is_fitted_on_held_out_data_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (400,))
    logits = 3 * torch.nn.functional.one_hot(labels, 5) + 2 * torch.randn(400, 5)
    content = {"logits": logits[:200], "labels": labels[:200], "logits_shrunk": logits[:200] * 0.7}
    held = {"holdout_logits": logits[200:], "holdout_labels": labels[200:], "holdout_logits_shrunk": logits[200:] * 0.7}
    np.savez(tmp_path / "a.npz", **{k: v.numpy() for k, v in (content | held).items()}, y_mean=np.full(5, 0.2))
    test, held_out = saved_outputs(tmp_path / "a.npz", 1.0)
    fitted = temperatures(held_out)
    rows = {row["model"]: row for row in table(test, fitted)}
    from scipy.optimize import minimize_scalar

    def loss(temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits[200:].double() / temperature, labels[200:]))

    assert rows["plain, tempered"]["temperature"] == pytest.approx(
        minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-9}).x, rel=1e-4
    )
    stretched = 0.2 + (0.7 * logits[:200] - 0.2) / Theta(1.0).mean
    expected = torch.nn.functional.cross_entropy(stretched, labels[:200])
    assert rows["rescaled"]["cross_entropy"] == pytest.approx(float(expected), rel=1e-5)


def test_the_command(tmp_path: Path, folder_run) -> None:
    out, _ = folder_run
    done = mixreg("evaluate", str(out), "--figures", str(tmp_path / "figures"), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 4
    with Image.open(tmp_path / "figures" / "calibration.png") as figure:
        assert figure.size[0] > 800
    assert (tmp_path / "figures" / "calibration.pdf").read_bytes().startswith(b"%PDF")
    shown = mixreg("evaluate", str(out))
    assert "rescaled, tempered" in shown.stdout
    logits = np.random.default_rng(0).normal(size=(50, 3))
    np.savez(tmp_path / "outputs.npz", logits=logits, labels=np.arange(50) % 3)
    saved = mixreg("evaluate", "--logits", str(tmp_path / "outputs.npz"), "--alpha", "1.0")
    assert saved.returncode == 0, saved.stderr
    assert "outputs stretched" in saved.stdout
    assert "nothing was held out" in saved.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give a run's folder, or --logits with --alpha"),
        (["RUN", "--logits", "FILE"], "Give a run's folder, or --logits with --alpha"),
        (["--logits", "FILE"], "--logits and --alpha belong together"),
        (["--logits", "FILE", "--alpha", "-1"], "alpha must lie in [0, inf]"),
        (["RUN", "--data", "digits"], "the network takes images of shape (3, 16, 16), the data holds features"),
        (["RUN", "--shifted", "imagenet-z:."], "unknown layout 'imagenet-z'; known are cifar-c"),
        (["RUN", "--shifted", "cifar-c:nowhere"], "nowhere is not a folder"),
        (["EMPTY"], "model.safetensors is not there"),
    ],
)
def test_one_line_errors(arguments, message, tmp_path: Path, folder_run) -> None:
    np.savez(tmp_path / "outputs.npz", logits=np.zeros((3, 2)), labels=np.zeros(3, dtype=int))
    (tmp_path / "empty").mkdir()
    places = {"RUN": str(folder_run[0]), "FILE": str(tmp_path / "outputs.npz"), "EMPTY": str(tmp_path / "empty")}
    done = mixreg("evaluate", *(places.get(a, a) for a in arguments))
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_classes_are_matched_by_name(folder_run, tmp_path: Path) -> None:
    """A folder without one of the classes, and one with another: the network's own numbers, or an error."""
    out, data = folder_run
    import shutil

    shutil.copytree(data, tmp_path / "fewer")
    for part in ("train", "val"):
        shutil.rmtree(tmp_path / "fewer" / part / "blue")
    test, _ = of_run(load_trained(out), data=str(tmp_path / "fewer"))
    assert set(test.labels.tolist()) == {1, 2}
    assert measure(test.logits["plain"], test.labels)["accuracy"] > 0.9
    (tmp_path / "fewer" / "val" / "purple").mkdir()
    with pytest.raises(DataError, match="purple is not one of the 3 classes"):
        of_run(load_trained(out), data=str(tmp_path / "fewer"))


def test_files_never_choose_code(folder_run, tmp_path: Path, monkeypatch) -> None:
    from mixreg.training.checkpoint import load_tensors, save_tensors

    tensors, record = load_tensors(folder_run[0] / "model.safetensors")
    record["config"]["model"] = "payload:make"
    save_tensors(tmp_path / "model.safetensors", tensors, record)
    (tmp_path / "payload.py").write_text("open('ran', 'w')\ndef make(num_classes): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="give it with --model payload:make"):
        load_trained(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(3)}, "labels must be 3 class indices, got torch.float64"),
        ({"logits": np.zeros(3)}, "logits must be n × c numbers"),
        ({"y_mean": np.array([5.0, -4.0])}, "y_mean must be 2 probabilities"),
        ({"logits_shrunk": np.zeros((3, 2)), "holdout_logits": np.zeros((3, 2))}, "holdout_labels must be 3 class"),
    ],
)
def test_wrong_saved_outputs(change, message, tmp_path: Path) -> None:
    arrays = {"logits": np.zeros((3, 2)), "labels": np.zeros(3, dtype=int)}
    np.savez(tmp_path / "a.npz", **(arrays | change))
    with pytest.raises(DataError, match=message):
        saved_outputs(tmp_path / "a.npz", 1.0)


def test_errors_of_a_baseline_that_never_errs() -> None:
    assert np.isnan(mean_corruption_error({"fog": 0.1}, {"fog": 0.0}))
