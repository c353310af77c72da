"""Tables, several labels and regression: read, trained, evaluated and predicted."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import load_diabetes, load_iris

import mixreg
from mixreg.commands.main import main
from mixreg.data import DataError, load
from mixreg.data.tables import chunks_of

TRAIN = ["train", "--accelerator", "cpu", "--quiet", "--lr", "0.05", "--batch-size", "32"]


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def write_csv(path: Path, header: list[str], rows: list[list[object]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


@pytest.fixture
def iris(tmp_path: Path) -> Path:
    bunch = load_iris()
    names = [bunch.target_names[k] for k in bunch.target]
    rows = [[*x.tolist(), name] for x, name in zip(bunch.data, names, strict=True)]
    return write_csv(tmp_path / "iris.csv", ["a", "b", "c", "d", "species"], rows)


def test_a_table_of_text_classes(iris: Path, tmp_path: Path) -> None:
    dataset = load(str(iris), target="species")
    assert dataset.classes == ("setosa", "versicolor", "virginica")
    assert (dataset.task, dataset.num_classes, dataset.was_cut) == ("classes", 3, True)
    assert (len(dataset.train.y), len(dataset.test.y)) == (120, 30)
    bunch = load_iris()
    both = np.concatenate([dataset.train.x, dataset.test.x])
    assert np.array_equal(np.sort(both, 0), np.sort(bunch.data.astype(np.float32), 0))

    out = tmp_path / "run"
    arguments = [argument for argument in TRAIN if argument != "--quiet"]
    told = invoke(*arguments, "--data", iris, "--target", "species", "--epochs", "20", "--out", out)
    assert "30 samples were cut off for testing" in told
    assert f"Next: mixreg evaluate {out}" in told
    rows = {row["model"]: row for row in json.loads(invoke("evaluate", out, "--json"))}
    assert rows["plain"]["accuracy"] > 0.8
    # Standardised inside: what comes in is what the file holds.
    run = mixreg.load(out)
    assert run.classes == ["setosa", "versicolor", "virginica"]
    kept = dataset.train.x
    columns = run.trained.preparation.columns
    assert bool((columns.mean.numpy() > kept.min(0)).all())
    prepared = run.prepare(bunch.data)
    assert prepared.mean(0).abs().max() < 0.2
    torch.testing.assert_close(run.predict_proba(bunch.data).sum(1), torch.ones(150))
    assert (run.predict(bunch.data).numpy() == bunch.target).mean() > 0.8

    # Other columns may come in any order, or be more.
    table = [[name, 7, *x[::-1].tolist()] for x, name in zip(bunch.data, bunch.target_names[bunch.target], strict=True)]
    other = write_csv(tmp_path / "other.csv", ["species", "extra", "d", "c", "b", "a"], table, ";")
    shown = invoke("predict", out, other, "--probabilities", "--out", tmp_path / "p.csv")
    assert "150 rows" in shown
    with (tmp_path / "p.csv").open() as file:
        found = list(csv.DictReader(file))
    expected = run.predict_proba(bunch.data)
    for k, row in enumerate(found):
        assert row["input"] == str(k)
        assert row["class"] == run.classes[int(expected[k].argmax())]
        assert [float(row[f"p({name})"]) for name in run.classes] == pytest.approx(expected[k].tolist(), abs=1e-6)
    again = {row["model"]: row for row in json.loads(invoke("evaluate", out, "--data", other, "--json"))}
    assert again["plain"]["accuracy"] == pytest.approx(
        (run.with_rule("plain").predict(bunch.data).numpy() == bunch.target).mean()
    )
    unknown = write_csv(tmp_path / "unknown.csv", ["a", "b", "c", "d", "species"], [[1, 2, 3, 4, "rose"]])
    done = CliRunner().invoke(main, ["evaluate", str(out), "--data", str(unknown)])
    assert "'rose' in column 'species' is not one of the 3 classes" in done.output


def test_regression(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True)
    np.savez(tmp_path / "d.npz", x_train=x[:350], y_train=y[:350], x_test=x[350:], y_test=y[350:])
    out = tmp_path / "run"
    invoke(*TRAIN, "--data", tmp_path / "d.npz", "--epochs", "15", "--out", out)
    metrics = json.loads((out / "metrics.json").read_text())["plain"]
    run = mixreg.load(out, "plain")
    predicted = run.predict(x[350:].astype(np.float32))[:, 0].double().numpy()
    # In the units of the data, against NumPy.
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - y[350:]) ** 2)), rel=1e-4)
    assert metrics["mae"] == pytest.approx(np.mean(np.abs(predicted - y[350:])), rel=1e-4)
    spread = np.mean((y[350:] - y[350:].mean()) ** 2)
    assert metrics["r2"] == pytest.approx(1 - metrics["rmse"] ** 2 / spread, rel=1e-4)
    assert metrics["r2"] > 0.2
    rows = json.loads(invoke("evaluate", out, "--json"))
    assert [row["model"] for row in rows] == ["plain", "rescaled", "fitted"]
    with pytest.raises(ValueError, match="gives numbers, not probabilities"):
        run.predict_proba(x.astype(np.float32))
    np.savez(tmp_path / "new.npz", x=x[:5].astype(np.float32))
    invoke("predict", out, tmp_path / "new.npz", "--out", tmp_path / "p.json", "--rule", "plain")
    lines = [json.loads(line) for line in (tmp_path / "p.json").read_text().splitlines()]
    assert [line["0"] for line in lines] == pytest.approx(
        run.predict(x[:5].astype(np.float32))[:, 0].tolist(), rel=1e-5
    )


def test_several_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3)) + rng.normal(size=(400, 3)) > 0).astype(int)
    np.savez(tmp_path / "d.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    out = tmp_path / "run"
    invoke(*TRAIN, "--data", tmp_path / "d.npz", "--epochs", "15", "--out", out)
    metrics = json.loads((out / "metrics.json").read_text())["plain"]
    run = mixreg.load(out, "plain")
    p = run.predict_proba(x[300:]).double()
    labels = torch.from_numpy(y[300:]).double()
    assert metrics["accuracy"] == pytest.approx(((p > 0.5) == (labels == 1)).double().mean().item())
    expected = torch.nn.functional.binary_cross_entropy(p, labels).item()
    assert metrics["cross_entropy"] == pytest.approx(expected, rel=1e-4)
    assert metrics["brier"] == pytest.approx((p - labels).square().mean().item(), rel=1e-4)
    # Each label's ECE by hand.
    errors = []
    for k in range(3):
        place = np.clip(np.ceil(15 * p[:, k].numpy()).astype(int) - 1, 0, 14)
        gaps = [
            abs(labels[place == b, k].sum() - p[place == b, k].sum()).item() for b in range(15) if (place == b).any()
        ]
        errors.append(sum(gaps) / 100)
    assert metrics["ece"] == pytest.approx(np.mean(errors), rel=1e-4)
    rows = json.loads(invoke("evaluate", out, "--json"))
    assert [row["model"] for row in rows][-2:] == ["fitted", "fitted, tempered"]
    assert torch.equal(run.predict(x[300:]), (p > 0.5).long())


def test_what_targets_of_tables_look_like(tmp_path: Path) -> None:
    rows = [[k, k / 2, k % 2, (k + 1) % 2, k % 3] for k in range(20)]
    path = str(write_csv(tmp_path / "t.csv", ["a", "half", "p", "q", "y"], rows))
    assert load(path).num_classes == 3
    assert load(path, target="half").task == "numbers"
    both = load(path, target="p,q")
    assert (both.task, both.num_classes, both.classes) == ("labels", 2, ("p", "q"))
    assert load(path, target="a", task="numbers").task == "numbers"
    assert load(path, target="a", task="numbers").features == ("half", "p", "q", "y")
    assert load(path, target="half,a").task == "numbers"


def test_parquet_tables_and_folders_of_parts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"a": [1.5, 2.5, 3.5, 4.5, 5.5], "b": [1, 2, 3, 4, 5], "label": ["x", "y", "x", "y", "x"]})
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(table, folder / "train-0.parquet")
    pq.write_table(table.slice(1, 2), folder / "test-0.parquet")
    dataset = load(str(folder))
    assert (len(dataset.train.y), len(dataset.test.y), dataset.was_cut) == (5, 2, False)
    assert dataset.classes == ("x", "y")
    assert dataset.test.y.tolist() == [1, 0]
    assert dataset.train.x.tolist() == [[1.5, 1.0], [2.5, 2.0], [3.5, 3.0], [4.5, 4.0], [5.5, 5.0]]
    assert load(str(folder / "train-0.parquet")).was_cut
    with_hole = pa.table({"a": [1.0, None] * 5, "label": ["x", "y"] * 5})
    pq.write_table(with_hole, tmp_path / "hole.parquet")
    with pytest.raises(DataError, match=r"hole\.parquet: column 'a' is empty somewhere"):
        load(str(tmp_path / "hole.parquet"))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,y\n", {}, "holds no rows"),
        ("", {}, "must name every column"),
        ("a,,y\n1,2,3\n", {}, "must name every column"),
        ("a,a,y\n1,2,3\n", {}, "must name every column"),
        ("a,y\n1,2\n1\n", {}, "line 3 has 1 cells where its first line names 2 columns"),
        ("a,b\n1,2\n", {}, "say which column is the target"),
        ("a,y\n1,2\n", {"target": "z"}, "no column 'z' to be the target; it has a, y"),
        ("a,y\nred,0\n1,1\n2,0\n3,1\n4,0\n", {}, "column 'a' holds 'red', and numbers are expected"),
        ("a,y\n,0\n1,1\n2,0\n3,1\n4,0\n", {}, "column 'a' is empty somewhere"),
        ("a,y\nnan,0\n1,1\n2,0\n3,1\n4,0\n", {}, "column 'a' holds values that are not finite"),
        ("y\n1\n2\n", {}, "no column beside its target"),
        ("a,y\n1,0\n2,1\n", {}, "2 rows are too few to cut one off"),
        ("a,y\n1,\n2,b\n3,c\n4,d\n5,e\n", {}, "column 'y' is empty somewhere"),
    ],
)
def test_wrong_tables_get_a_sentence(content: str, options: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=message) as error:
        load(str(tmp_path / "t.csv"), **options)
    assert "t.csv" in str(error.value)


def test_a_long_table_is_read_in_chunks(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "long.csv", ["a", "b"], [[k, f"t{k}"] for k in range(25)])
    chunks = list(chunks_of(path, 10))
    assert [len(chunk["a"]) for chunk in chunks] == [10, 10, 5]
    assert chunks[2]["a"].tolist() == ["20", "21", "22", "23", "24"]
    assert chunks[1]["b"][0] == "t10"


def test_class_options_are_refused_for_other_targets(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x_train=np.zeros((20, 2)), y_train=np.linspace(0, 1, 20))
    for option, value in (("--label-smoothing", "0.1"), ("--class-weights", "balanced"), ("--label-noise", "0.1")):
        arguments = [*TRAIN, "--data", tmp_path / "d.npz", "--out", tmp_path / "run", option, value]
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert done.exit_code == 1
        assert "for classes, and the targets of" in done.output
    assert not (tmp_path / "run").exists()
