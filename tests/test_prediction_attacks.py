"""Fitting, tables and predictions where they were broken once: few samples, odd labels, constants, interruptions."""

import csv
import json
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from processes import run_processes
from runs import carry_out, environment
from torch import nn

import mixreg
from mixreg import Rescaled, Rule
from mixreg._support.files import write_bytes
from mixreg.commands.main import main
from mixreg.data import DataError, load
from mixreg.evaluation.labelled import labelled_batches
from mixreg.prediction.family_fit import FamilyFit
from mixreg.training import Config
from mixreg.training.measures import measure
from mixreg.training.targets import Targets
from mixreg.training.trained import load_trained

TRAIN = ["train", "--accelerator", "cpu", "--quiet", "--lr", "0.05", "--batch-size", "32"]


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def rule(classes: int = 3) -> Rule:
    return Rule(0.75, 0.75, torch.zeros(classes), torch.full((classes,), 1 / classes))


@pytest.mark.parametrize("count", [1, 12])
def test_held_out_data_that_is_all_right_determines_no_temperature(count: int) -> None:
    """The loss falls for ever as the temperature does: the network would become certain of everything."""
    x = torch.eye(3)[torch.arange(count) % 3] * 4
    model = Rescaled(nn.Identity(), rule=rule())
    with pytest.warns(UserWarning, match="determine no temperature"):
        model.fit(x, torch.arange(count) % 3)
    assert (model.strength, model.temperature) in ((0.0, 1.0), (1.0, 0.75))
    assert FamilyFit.from_json(json.loads(json.dumps(model.fitted.to_json(), allow_nan=False))) == model.fitted
    assert model(x).softmax(1).max() < 0.999


def test_a_run_with_few_samples_held_out_is_not_certain_of_everything(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.normal(size=(120, 4)) + 6 * np.eye(3, 4)[y]
    path = write_csv(tmp_path / "easy.csv", ["a", "b", "c", "d", "label"], [[*r, k] for r, k in zip(x, y, strict=True)])
    invoke(*TRAIN, "--data", path, "--epochs", "20", "--out", tmp_path / "run")
    rows = {row["model"]: row for row in json.loads(invoke("evaluate", tmp_path / "run", "--json"))}
    assert rows["fitted"]["cross_entropy"] <= 1.5 * rows["plain"]["cross_entropy"]
    assert all(row["temperature"] > 0.02 for row in rows.values())


def test_boolean_labels_are_fitted() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    y = torch.rand(200, 3) < (1.5 * x).sigmoid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        one, other = (Rescaled(nn.Identity(), rule=rule()).fit(x, t, loss="logistic") for t in (y, y.float()))
    assert one.temperature == other.temperature


def _one_process_has_nothing(rank: int) -> tuple[float, float]:
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    y = (x + 0.8 * torch.randn(60, 3)).argmax(1)
    mine = slice(None) if rank == 0 else slice(0, 0)
    warnings.simplefilter("ignore")
    model = Rescaled(nn.Identity(), rule=rule()).fit(x[mine], y[mine], across_processes=True)
    return model.strength, model.temperature


def test_a_process_may_have_no_share(tmp_path: Path) -> None:
    first, second = run_processes(_one_process_has_nothing, 2, tmp_path)
    assert first == second


def test_labels_keep_all_their_digits(tmp_path: Path) -> None:
    labels = [1234561, 1234562, 1234563, 2000000]
    rows = [[k, labels[k % 4]] for k in range(40)]
    assert load(str(write_csv(tmp_path / "ids.csv", ["a", "y"], rows))).classes == tuple(map(str, labels))
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    large = [9007199254740992, 9007199254740993] * 10
    pq.write_table(pa.table({"a": list(range(20)), "y": large}), tmp_path / "ids.parquet")
    assert load(str(tmp_path / "ids.parquet")).classes == ("9007199254740992", "9007199254740993")


def test_a_label_is_the_same_in_every_chunk(tmp_path: Path) -> None:
    names = ["007", "01", "12"]
    rows = [[k, names[k % 3] if k < 10_300 else "other"] for k in range(10_400)]
    assert load(str(write_csv(tmp_path / "late.csv", ["a", "y"], rows))).classes == ("007", "01", "12", "other")
    # All of them numbers: one class however it is written.
    rows = [[k, ["1", "01", "1.0", "2"][k % 4]] for k in range(20)]
    assert load(str(write_csv(tmp_path / "ways.csv", ["a", "y"], rows))).classes == ("1", "2")


def test_a_table_is_judged_by_the_classes_of_a_run_on_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 3)).astype(np.float32), np.arange(100) % 4
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y)
    carry_out(Config(data=str(tmp_path / "d.npz"), epochs=1), tmp_path / "run")
    some = [[*row, k] for row, k in zip(x.tolist(), y.tolist(), strict=True) if k > 0]
    path = write_csv(tmp_path / "some.csv", ["a", "b", "c", "y"], some)
    batches = list(labelled_batches(load_trained(tmp_path / "run"), str(path)))
    assert torch.cat([labels for _, labels in batches]).tolist() == [k for k in y.tolist() if k > 0]


def test_targets_that_do_not_vary_have_no_r2(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "const.csv", ["a", "y"], [[k, 2.5] for k in range(60)])
    invoke(*TRAIN, "--data", path, "--epochs", "1", "--out", tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(metrics["plain"]) == {"rmse", "mae"}
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text())["epoch"] == 1
    assert json.loads(invoke("evaluate", tmp_path / "run", "--json"))[0]["r2"] is None


def test_r2_of_several_targets_is_the_mean_of_theirs() -> None:
    from sklearn.metrics import r2_score

    rng = np.random.default_rng(0)
    y = rng.normal(size=(500, 2)) + np.array([1000, 0])
    u = y + rng.normal(size=(500, 2)) * [1, 0.5]
    found = measure(torch.from_numpy(u), torch.from_numpy(y), Targets("numbers", 2))
    assert found["r2"] == pytest.approx(r2_score(y, u), rel=1e-9)


def test_labels_that_are_no_labels_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "lab.csv", ["a", "u", "v"], [[k, k % 3, k % 2] for k in range(30)])
    with pytest.raises(DataError, match="labels are columns of zeros and ones"):
        load(str(path), target="u,v", task="labels")


def test_the_index_of_a_frame_is_no_feature(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"a": [1.0] * 10, "y": [0, 1] * 5, "__index_level_0__": list(range(10))})
    note = json.dumps({"index_columns": ["__index_level_0__"], "columns": [], "column_indexes": []})
    pq.write_table(table.replace_schema_metadata({"pandas": note}), tmp_path / "frame.parquet")
    assert load(str(tmp_path / "frame.parquet")).features == ("a",)


def test_delimiters_in_quotes_separate_nothing(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('"x,1,1";"b";label\n' + "".join(f"{k};{k};{k % 2}\n" for k in range(10)))
    assert load(str(tmp_path / "q.csv")).features == ("x,1,1", "b")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    carry_out(Config(epochs=3), out)
    return out


def test_inputs_that_are_too_large_or_none_get_a_sentence(run: Path) -> None:
    found = mixreg.load(run)
    for wrong, message in (
        (np.full((1, 1, 8, 8), 1e39), "not finite"),
        (None, "an array or a tensor, got NoneType"),
        ("digits", "an array or a tensor, got str"),
        (np.array([["a"]]), "bytes or floating point"),
    ):
        with pytest.raises(DataError, match=message):
            found.predict_proba(wrong)
    x = np.random.default_rng(0).random((5, 1, 8, 8)).astype(np.float32)
    assert torch.equal(found.predict_proba(x.astype(">f4")), found.predict_proba(x))


def test_columns_far_from_zero_are_exported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [[100_000 + int(v), rng.normal(), k % 2] for k, v in enumerate(rng.integers(0, 100, 80))]
    path = write_csv(tmp_path / "big.csv", ["t", "b", "y"], rows)
    invoke(*TRAIN, "--data", path, "--epochs", "2", "--out", tmp_path / "run")
    for kind in ("pt2", "onnx"):
        invoke("export", tmp_path / "run", "--out", tmp_path / f"m.{kind}")


def test_a_run_that_stopped_before_its_method_was_switched_off_has_a_rule(tmp_path: Path) -> None:
    carry_out(Config(epochs=40, until=39, patience=1, lr=2.0, samples=200), tmp_path)
    trained = load_trained(tmp_path)
    assert trained.last_epoch < 39
    assert not trained.is_switched_off
    trained.with_rule("rescaled")


def test_rows_keep_their_names_beside_a_target_called_input(tmp_path: Path) -> None:
    rows = [[k / 7, k % 2, (k + 1) % 2] for k in range(40)]
    path = write_csv(tmp_path / "inp.csv", ["a", "input", "z"], rows)
    invoke(*TRAIN, "--data", path, "--target", "input,z", "--epochs", "1", "--out", tmp_path / "run")
    invoke("predict", tmp_path / "run", path, "--out", tmp_path / "p.json")
    lines = [json.loads(line) for line in (tmp_path / "p.json").read_text().splitlines()]
    assert [line["row"] for line in lines] == [str(k) for k in range(40)]
    assert all(line["input"] in (0, 1) for line in lines)


def test_names_with_new_lines_are_quoted_and_rows_counted(tmp_path: Path) -> None:
    rows = [[k, ["one\nline", 'two, "quoted"'][k % 2]] for k in range(30)]
    path = write_csv(tmp_path / "n.csv", ["a", "y"], rows)
    invoke(*TRAIN, "--data", path, "--epochs", "1", "--out", tmp_path / "run")
    assert "30 rows" in invoke("predict", tmp_path / "run", path, "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 30
    assert {row["class"] for row in found} <= {"one\nline", 'two, "quoted"'}


def test_predictions_that_are_ended_leave_nothing(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((600_000, 1, 8, 8), np.float32))
    out = tmp_path / "out"
    out.mkdir()
    command = ["-m", "mixreg", "predict", str(run), str(tmp_path / "x.npz"), "--out", str(out / "p.csv")]
    process = preloaded.start(command, env=environment())
    deadline = time.monotonic() + 60
    while not list(out.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode != 0
    assert list(out.iterdir()) == []


def test_an_interrupt_at_the_moment_a_file_is_made_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    make = os.open

    def interrupted(*args, **kwargs):
        os.close(make(*args, **kwargs))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "p.csv", b"")
    assert list(tmp_path.iterdir()) == []


def test_capital_endings(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 1, 8, 8), np.float32))
    (tmp_path / "x.npz").rename(tmp_path / "X.NPZ")
    assert "3 rows" in invoke("predict", run, tmp_path / "X.NPZ", "--out", tmp_path / "p.csv")


def test_statistics_are_as_they_were_where_refreshing_fails() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)).train()
    net[2].eval()
    model = Rescaled(net, rule=rule())
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}

    def broken():
        yield torch.randn(8, 3), None
        raise OSError("the disk is gone")

    for loader, error in (([], ValueError), (broken(), OSError), ([torch.randn(8, 4)], ValueError)):
        with pytest.raises(error):
            model.refresh_statistics(loader)
        assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
        assert (net.training, net[1].training, net[2].training, net[1].momentum) == (True, True, False, 0.1)
    model.refresh_statistics([torch.randn(8, 3)])
    assert not torch.equal(net[1].running_mean, before["1.running_mean"])
    assert not net[2].training


def test_a_network_that_knows_less_than_chance_is_flattened() -> None:
    """Certain of wrong classes: no temperature is as good as the largest."""
    y = torch.arange(30) % 3
    x = torch.eye(3)[(y + 1) % 3] * 20
    model = Rescaled(nn.Identity(), rule=rule())
    with pytest.warns(UserWarning, match="with its own temperature"):
        model.fit(x[:1], y[:1])  # one wrong sample is no network that knows nothing
    with pytest.warns(UserWarning, match="with the largest temperature is used"):
        model.fit(x, y)
    assert model.temperature == 100
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(x), y))
        assert loss <= min(point.loss for point in model.fitted.points) + 1e-6
        assert loss < float(torch.nn.functional.cross_entropy(x, y)) - 10


def test_class_weights_keep_their_digits(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(" ".join(["1.23456789", "0.1", *["1"] * 8]))
    out = tmp_path / "run"
    invoke(*TRAIN, "--epochs", "1", "--class-weights", tmp_path / "w.txt", "--out", out)
    assert json.loads((out / "config.json").read_text())["class_weights"].startswith("1.23456789,0.1,1,")


def test_few_samples_fall_back_where_one_cannot_tell() -> None:
    """One sample has no standard error: whatever it says of the strength, it cannot tell."""
    x = torch.tensor([[1.0, 0.2, 0.1]])
    model = Rescaled(nn.Linear(3, 3, bias=False), rule=rule())
    with torch.no_grad():
        model.net.weight.copy_(torch.eye(3))
    with pytest.warns(UserWarning, match="determine no temperature|cannot tell"):
        model.fit(x, torch.tensor([0]))
    assert model.strength in (0.0, 1.0)
    assert F.cross_entropy(model(x), torch.tensor([0])) < 2
