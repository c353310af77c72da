"""Evaluation: folders of images, published layouts of shifted sets, saved outputs, numbers against plain ones."""

import json
import subprocess
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch
from pictures import picture
from PIL import Image
from runs import Interrupted, Interrupting

from mixreg import Theta
from mixreg.data import DataError
from mixreg.evaluation.runs import evaluated
from mixreg.evaluation.table import saved_outputs, table
from mixreg.training.config import Config
from mixreg.training.engine import Engine
from mixreg.training.measures import measure
from mixreg.training.run import train
from mixreg.training.trained import load_trained


def mixreg(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return preloaded.run(["-m", "mixreg", *arguments], cwd)


def image_folder(root: Path, count: int = 12) -> Path:
    for part, number in (("train", count), ("val", 6)):
        for label, name in enumerate(("blue", "green", "red")):
            folder = root / part / name
            folder.mkdir(parents=True)
            for k in range(number):
                kind = "png" if k % 2 else "jpg"
                picture(2 - label, 100 * label + k).save(folder / f"{k}.{kind}")
    return root


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory) -> tuple[Path, Path]:
    """A run on a folder of class folders: the run and the folder."""
    root = tmp_path_factory.mktemp("images")
    data, out = image_folder(root / "data"), root / "run"
    config = Config(
        data=str(data), model="small-resnet", epochs=4, batch_size=9, lr=0.05, image_size=16, holdout=0.25, seed=1
    )
    assert train(config, out, Engine(accelerator="cpu", workers=1), checkpoint_seconds=0.0)
    return out, data


def test_a_folder_of_class_folders(folder_run) -> None:
    out, _ = folder_run
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["plain"]["accuracy"] > 0.9
    trained = load_trained(out)
    assert trained.shape == (3, 16, 16)
    test, held = evaluated(trained)
    assert held is not None
    assert held.family.samples == 9
    found = measure(test.predictions["rescaled"], test.y)["ece"]
    assert found == pytest.approx(metrics["rescaled"]["ece"], abs=1e-6)


def test_a_folder_resumes_bit_for_bit(folder_run, tmp_path: Path) -> None:
    """Going on in the middle of an epoch gives the same weights, with another number of workers too."""
    out, _ = folder_run
    config = load_trained(out).config

    with pytest.raises(Interrupted):
        train(config, tmp_path, Engine(accelerator="cpu", workers=0), Interrupting(2), 0.0)
    train(config, tmp_path, Engine(accelerator="cpu", workers=0), checkpoint_seconds=0.0)
    first, second = (load_trained(path).net.state_dict() for path in (out, tmp_path))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images_are_named(workers, tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data", 2)
    (data / "train" / "red" / "0.jpg").write_bytes(b"\xff\xd8 not really")
    config = Config(data=str(data), model="small-resnet", epochs=1, image_size=16, holdout=0.0)
    with pytest.raises(DataError, match=r"red/0\.jpg is broken") as error:
        train(config, tmp_path / "run", Engine(accelerator="cpu", workers=workers), checkpoint_seconds=0.0)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="has no folder train; expected train/CLASS"):
        train(
            Config(data=str(data / "train"), model="mlp"),
            tmp_path / "other",
            Engine(accelerator="cpu"),
        )


def test_temperature_is_fitted_on_held_out_data_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (400,))
    logits = 3 * torch.nn.functional.one_hot(labels, 5) + 2 * torch.randn(400, 5)
    content = {"logits": logits[:200], "labels": labels[:200], "logits_shrunk": logits[:200] * 0.7}
    held = {"holdout_logits": logits[200:], "holdout_labels": labels[200:], "holdout_logits_shrunk": logits[200:] * 0.7}
    np.savez(tmp_path / "a.npz", **{k: v.numpy() for k, v in (content | held).items()}, y_mean=np.full(5, 0.2))
    rows = {row["model"]: row for row in table(saved_outputs(tmp_path / "a.npz", 1.0))}
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
    assert [row["model"] for row in json.loads(done.stdout)] == [
        name + suffix for name in ("plain", "rescaled", "fitted") for suffix in ("", ", tempered")
    ]
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
        (["RUN", "--data", "digits"], "the network takes images of shape (3, 16, 16), digits holds features"),
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
    test, _ = evaluated(load_trained(out), data=str(tmp_path / "fewer"))
    assert set(test.y.tolist()) == {1, 2}
    assert measure(test.predictions["plain"], test.y)["accuracy"] > 0.9
    (tmp_path / "fewer" / "val" / "purple").mkdir()
    with pytest.raises(DataError, match="purple is not one of the 3 classes"):
        evaluated(load_trained(out), data=str(tmp_path / "fewer"))


def test_files_never_choose_code(folder_run, tmp_path: Path, monkeypatch) -> None:
    from mixreg._support.tensor_files import load_tensors, save_tensors

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
