"""Finished runs: loaded, predicted with and exported; against the network itself and against ONNX Runtime."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from runs import carry_out

import mixreg
from mixreg.commands.main import main
from mixreg.data import DataError, digits, load
from mixreg.data.unlabelled import parts_of, sources
from mixreg.evaluation.export import export
from mixreg.training import Config
from mixreg.training.trained import load_trained

FEATURES = Config(epochs=8)
IMAGES = Config(data="digits-32", model="lenet", epochs=2, lr=0.02, augment="none", method="cutmix")


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("features") / "run"
    carry_out(FEATURES, out)
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("images") / "run"
    carry_out(IMAGES, out)
    return out


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code != 0
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


def rows_of(path: Path) -> list[dict]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_run_in_python(features: Path) -> None:
    run = mixreg.load(features)
    x, y = (torch.from_numpy(part) for part in digits().test)
    assert run.rule == "fitted"
    trained = load_trained(features)
    family = trained.fit.family
    mean, y_mean = run.moments.x_mean.float(), run.moments.y_mean.float()
    theta = 0.75
    share = 1 - family.strength * (1 - theta)
    u = trained.net(mean + share * (x - mean))
    logits = y_mean + (u - y_mean) / family.temperature
    torch.testing.assert_close(run.predict_proba(x), logits.softmax(1))
    torch.testing.assert_close(run.model(x), logits)
    assert torch.equal(run.predict(x), logits.argmax(1))
    assert torch.equal(run.predict_proba(x.numpy()), run.predict_proba(x))
    decided, p = run.decided_classes(run.outputs(x))
    assert torch.equal(torch.from_numpy(decided), run.predict(x))
    # Summed in another order.
    torch.testing.assert_close(torch.from_numpy(p), run.predict_proba(x).amax(1))
    # More than a batch is what its batches are.
    many = x.repeat(20, 1, 1, 1)
    torch.testing.assert_close(run.predict_proba(many), run.predict_proba(x).repeat(20, 1))
    assert torch.equal(run.predict(many), run.predict(x).repeat(20))
    plain = mixreg.load(features, "plain")
    torch.testing.assert_close(plain.predict_proba(x), trained.net(x).softmax(1))
    rescaled = y_mean + (trained.net(mean + theta * (x - mean)) - y_mean) / theta
    torch.testing.assert_close(run.with_rule("rescaled").predict_proba(x), rescaled.softmax(1))
    assert (run.predict(x) == y).double().mean() > 0.7
    assert len(run.classes) == 10
    assert "fitted" in repr(run)
    for wrong, message in (
        (x[:, :, :4], "takes features of shape"),
        (x.long(), "bytes or floating point"),
        ((x * 0).to(torch.uint8), "got images of bytes"),
        (x / 0, "not finite"),
    ):
        with pytest.raises(DataError, match=message):
            run.predict(wrong)
    with pytest.raises(ValueError, match="one of plain, rescaled, fitted, got 'best'"):
        mixreg.load(features, "best")
    assert run.predict_proba(x[:0]).shape == (0, 10)


def test_images_are_scaled_as_in_training(images: Path) -> None:
    run = mixreg.load(images, "rescaled")
    dataset = load("digits-32")
    x = dataset.test.x[:20]
    pixels = run.trained.pixels
    scaled = (torch.from_numpy(x).permute(0, 3, 1, 2) / 255 - pixels.mean.reshape(-1, 1, 1)) / pixels.std.reshape(
        -1, 1, 1
    )
    torch.testing.assert_close(run.outputs(x), run.model(scaled).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.outputs(x[..., 0]), run.outputs(x))
    torch.testing.assert_close(run.outputs(scaled), run.outputs(x), rtol=1e-4, atol=1e-5)


def test_predictions_of_an_npz(features: Path, tmp_path: Path) -> None:
    x = digits().test.x
    run = mixreg.load(features)
    p = run.predict_proba(x)
    for name, arrays in (("a.npz", {"x": x}), ("b.npz", {"x_test": x, "y_test": np.zeros(len(x))})):
        np.savez_compressed(tmp_path / name, **arrays)
        told = invoke("predict", features, tmp_path / name, "--out", tmp_path / "p.csv")
        assert "360 rows, fitted predictions" in told
        rows = rows_of(tmp_path / "p.csv")
        assert [row["input"] for row in rows] == [str(k) for k in range(360)]
        assert [int(row["class"]) for row in rows] == p.argmax(1).tolist()
        assert [float(row["probability"]) for row in rows] == pytest.approx(p.amax(1).tolist(), abs=1e-6)
    invoke("predict", features, tmp_path / "a.npz", "--out", tmp_path / "p.jsonl", "--probabilities", "--rule", "plain")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    expected = run.with_rule("plain").predict_proba(x)
    found = [[line[f"p({k})"] for k in range(10)] for line in lines]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    shown = invoke("predict", features, tmp_path / "a.npz")
    assert shown.splitlines()[0] == "input,class,probability"


def test_predictions_of_pictures(images: Path, tmp_path: Path) -> None:
    x = load("digits-32").test.x[:4, ..., 0]
    folder = tmp_path / "pictures" / "inner"
    folder.mkdir(parents=True)
    for k in range(4):
        Image.fromarray(x[k]).save(folder / f"{k}.png")
    # Twice as large, of another shape: scaled and cut to the middle.
    Image.fromarray(np.pad(x[0].repeat(2, 0).repeat(2, 1), ((0, 0), (10, 10)))).save(tmp_path / "large.png")
    run = mixreg.load(images)
    invoke("predict", images, tmp_path / "pictures", tmp_path / "large.png", "--out", tmp_path / "p.csv")
    rows = rows_of(tmp_path / "p.csv")
    assert [Path(row["input"]).name for row in rows] == ["0.png", "1.png", "2.png", "3.png", "large.png"]
    p = run.predict_proba(x)
    assert [float(row["probability"]) for row in rows[:4]] == pytest.approx(p.amax(1).tolist(), abs=1e-5)
    assert rows[4]["class"] == rows[0]["class"]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="tells a process's peak of memory")
def test_memory_does_not_grow_with_rows(features: Path, tmp_path: Path) -> None:
    """Parts are of bounded size, whatever the file's: from an archive, and from a table."""
    np.savez(tmp_path / "long.npz", x=np.zeros((25_000, 1, 8, 8), np.float64))
    parts = [part.x.shape for part in parts_of(sources([tmp_path / "long.npz"]), (1, 8, 8), False, ())]
    assert sum(shape[0] for shape in parts) == 25_000
    assert max(shape[0] for shape in parts) <= 20_000
    # In a process of its own, of which the peak begins anew, unlike that of `resource`: four times the rows, the same.
    script = (
        "import sys\nfrom mixreg.commands.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(peak.split()[1], file=sys.stderr)\n"
    )
    peaks = []
    for rows in (100_000, 400_000):
        np.savez(tmp_path / "x.npz", x=np.zeros((rows, 1, 8, 8), np.float32))
        arguments = ["predict", str(features), str(tmp_path / "x.npz"), "--out", str(tmp_path / "p.csv")]
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.split()[-1]))
    # 300,000 rows more are 77 MB of inputs.
    assert peaks[1] - peaks[0] < 30_000, peaks


@pytest.mark.parametrize("kind", ["onnx", "pt2", "safetensors"])
@pytest.mark.parametrize("rule", ["plain", "rescaled", "fitted"])
def test_exported_files_give_what_the_run_gives(kind: str, rule: str, features: Path, tmp_path: Path) -> None:
    if kind == "onnx" and rule != "fitted":
        pytest.importorskip("onnxruntime")
    x = digits().test.x
    out = tmp_path / f"model.{kind}"
    told = invoke("export", features, "--rule", rule, "--out", out)
    assert f"{rule} predictions" in told
    np.savez(tmp_path / "x.npz", x=x)
    invoke("predict", features, tmp_path / "x.npz", "--rule", rule, "--probabilities", "--out", tmp_path / "p.csv")
    expected = np.array([[float(row[f"p({k})"]) for k in range(10)] for row in rows_of(tmp_path / "p.csv")])
    assert np.abs(_answer(kind, out, x) - expected).max() < 1e-5
    assert np.abs(_answer(kind, out, x[:1]) - expected[:1]).max() < 1e-5


def _answer(kind: str, out: Path, x: np.ndarray) -> np.ndarray:
    if kind == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
        assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == [str(k) for k in range(10)]
        return session.run(None, {"x": x})[0]
    if kind == "pt2":
        with torch.no_grad():
            return torch.export.load(out).module()(torch.from_numpy(x)).numpy()
    return mixreg.load(out).predict_proba(x).numpy()


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_graphs_of_images_take_bytes(kind: str, images: Path, tmp_path: Path) -> None:
    out = tmp_path / f"model.{kind}"
    invoke("export", images, "--out", out)
    x = load("digits-32").test.x[:7]
    assert np.abs(_answer_of_images(kind, out, x) - mixreg.load(images).predict_proba(x).numpy()).max() < 1e-5


def _answer_of_images(kind: str, out: Path, x: np.ndarray) -> np.ndarray:
    if kind == "pt2":
        with torch.no_grad():
            return torch.export.load(out).module()(torch.from_numpy(x)).numpy()
    import onnxruntime

    return onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_a_graph_that_differs_is_not_written(features: Path, tmp_path: Path, monkeypatch) -> None:
    run = mixreg.load(features)
    monkeypatch.setattr("mixreg.evaluation.export._pt2", lambda run: (b"", lambda x: run.predict_proba(x) + 1e-3))
    with pytest.raises(ValueError, match=r"differs from the run by 0\.001.*nothing was written"):
        export(run, tmp_path / "m.pt2", "pt2")
    assert list(tmp_path.iterdir()) == []


def test_wrong_files_get_a_sentence_and_leave_no_output(features: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    np.savez(tmp_path / "other.npz", z=np.zeros((3, 1, 8, 8), np.float32))
    np.savez(tmp_path / "shape.npz", x=np.zeros((3, 5), np.float32))
    np.savez(tmp_path / "late.npz", x=np.r_[np.zeros((12_000, 1, 8, 8)), np.full((1, 1, 8, 8), np.nan)])
    np.savez(tmp_path / "object.npz", x=np.array([{}, {}]))
    np.savez(tmp_path / "fortran.npz", x=np.asfortranarray(np.zeros((3, 64), np.float32)))
    (tmp_path / "broken.npz").write_bytes(b"PK not really")
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "picture.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "picture.png").read_bytes()[:30])
    for name, message in (
        ("other.npz", "must hold an array x or x_test, it holds z"),
        ("shape.npz", "shape.npz: the network takes features of shape (1, 8, 8), got samples of shape (5,)"),
        ("late.npz", "not finite"),
        ("object.npz", "object"),
        ("fortran.npz", "Fortran's order"),
        ("broken.npz", "broken.npz is broken"),
        ("text.txt", "is no picture, no .npz and no table"),
        ("empty", "holds no pictures"),
        ("picture.png", "is a picture, and the network takes inputs of shape (1, 8, 8)"),
    ):
        assert message in refused("predict", features, tmp_path / name, "--out", out), name
        assert not out.exists()
    assert "cut.png is broken" in refused("predict", images, tmp_path / "cut.png", "--out", out)
    assert "must end with .csv, .json" in refused(
        "predict", features, tmp_path / "shape.npz", "--out", tmp_path / "p.x"
    )
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    assert "is one of the files to read" in refused(
        "predict", features, tmp_path / "x.npz", "--out", tmp_path / "x.npz"
    )
    assert not [path for path in tmp_path.iterdir() if ".part" in path.name]
    assert "Give --format" in refused("export", features, "--out", tmp_path / "m.bin")


def test_a_run_that_held_nothing_out_is_fitted_on_data_that_is_given(tmp_path: Path) -> None:
    out = tmp_path / "run"
    carry_out(Config(epochs=3, lr=0.05, holdout=0.0), out)
    assert mixreg.load(out).rule == "rescaled"
    with pytest.raises(ValueError, match="nothing was held out to fit a rule on"):
        mixreg.load(out, "fitted")
    dataset = digits()
    np.savez(tmp_path / "held.npz", x=dataset.test.x[:180], y=dataset.test.y[:180])
    np.savez(tmp_path / "new.npz", x=dataset.test.x[180:], y=dataset.test.y[180:])
    rows = json.loads(
        invoke("evaluate", out, "--data", tmp_path / "new.npz", "--held-out", tmp_path / "held.npz", "--json")
    )
    assert [row["model"] for row in rows][::2] == ["plain", "rescaled", "fitted"]
    told = invoke(
        "predict", out, tmp_path / "new.npz", "--held-out", tmp_path / "held.npz", "--out", tmp_path / "p.csv"
    )
    assert "fitted predictions" in told
    x = torch.from_numpy(dataset.test.x[180:])
    fitted = next(row for row in rows if row["model"] == "fitted")
    predicted = [int(row["class"]) for row in rows_of(tmp_path / "p.csv")]
    assert np.mean(np.array(predicted) == dataset.test.y[180:]) == pytest.approx(fitted["accuracy"])
    assert len(x) == len(predicted)


def test_other_data_is_evaluated_where_the_training_set_is_gone(tmp_path: Path) -> None:
    dataset = digits()
    data = tmp_path / "mine.npz"
    np.savez(data, x_train=dataset.train.x, y_train=dataset.train.y, x_test=dataset.test.x, y_test=dataset.test.y)
    out = tmp_path / "run"
    carry_out(Config(data=str(data), epochs=3, lr=0.05), out)
    before = json.loads(invoke("evaluate", out, "--json"))
    data.rename(tmp_path / "moved.npz")
    assert json.loads(invoke("evaluate", out, "--data", tmp_path / "moved.npz", "--json")) == before
    assert "mine.npz is not a file" in refused("evaluate", out)
