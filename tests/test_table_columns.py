"""Tables and arrays as people have them: digits that 32 bits lose, names that collide, labels that are merged."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from mixreg.commands.main import main
from mixreg.data import DataError, load
from mixreg.data.precision import require_resolved


def written(path: Path, head: str, rows: list[str]) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def run(*words: object) -> str:
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.output


def refused(*words: object) -> str:
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code != 0
    return " ".join(found.output.split())


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


def test_labels_with_an_underscore_are_not_numbers(tmp_path: Path) -> None:
    """Python reads 1_1 as eleven."""
    rows = [f"{x:.3f},{'1_1' if x > 0 else '11'}" for x in numbers(40)]
    dataset = load(str(written(tmp_path / "d.csv", "x,label", rows)))
    assert dataset.classes == ("11", "1_1")
    assert 0 < dataset.train.y.mean() < 1
    with pytest.raises(DataError, match="column 'x' holds '1_000'"):
        load(str(written(tmp_path / "e.csv", "x,label", [*rows, "1_000,11"])))
    weights = tmp_path / "weights.txt"
    weights.write_text("1_0 2")
    assert "must hold a number for each class" in refused(
        "train", "--data", tmp_path / "d.csv", "--class-weights", weights, "--out", tmp_path / "run"
    )


@pytest.mark.parametrize("column", ["x", "y"])
def test_numbers_that_32_bits_cannot_tell_apart_are_refused(column: str, tmp_path: Path) -> None:
    far = {"x": 1.7e9, "y": 1e9}[column]
    rows = [f"{far * (column == 'x') + 1000 * a:.4f},{far * (column == 'y') + a + 0.25:.4f}" for a in numbers(40)]
    with pytest.raises(DataError, match=rf"column '{column}' varies by .* cannot tell apart: subtract a constant"):
        load(str(written(tmp_path / "far.csv", "x,y", rows)))


def test_what_32_bits_lose_by_brute_force() -> None:
    """Refused is what loses more than a thousandth of its spread; a constant loses nothing."""
    rng = np.random.default_rng(1)
    for offset in (0.0, 1e3, 1e6, 1e8, 1e9):
        for spread in (1e-3, 1.0, 1e3, 1e6):
            values = offset + spread * rng.random((200, 1))
            lost = np.abs(values - values.astype(np.float32)).max() / np.ptp(values)
            if lost > 1e-3:
                with pytest.raises(DataError):
                    require_resolved(values, "values")
            else:
                require_resolved(values, "values")
    require_resolved(np.full((5, 1), 0.1), "a constant")
    require_resolved(np.array([[0.3], [0.1 + 0.2]]), "a constant, but for rounding")
    require_resolved(1e9 + rng.random((5, 2)).astype(np.float32), "32 bits")


def test_arrays_are_held_to_it_too(tmp_path: Path) -> None:
    x = numbers(60).reshape(-1, 2)
    np.savez(tmp_path / "x.npz", x_train=x + np.array([0, 1e10]), y_train=np.arange(30) % 2)
    with pytest.raises(DataError, match="x_train, column 1 varies"):
        load(str(tmp_path / "x.npz"))
    np.savez(tmp_path / "both.npz", x=x, y=np.arange(30) % 2, x_train=x, y_train=np.arange(30) % 2)
    with pytest.raises(DataError, match="holds two kinds of training data: x, y, x_train, y_train"):
        load(str(tmp_path / "both.npz"))
    np.savez(tmp_path / "deep.npz", x=1e10 + x.reshape(-1, 2, 3), y=np.arange(10) % 2)
    with pytest.raises(DataError, match="x_train, column 0 varies"):
        load(str(tmp_path / "deep.npz"))


def test_parts_of_two_kinds_are_refused(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), np.uint8), np.arange(60) % 2
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y, x_test=x / 255, y_test=y)
    said = refused("train", "--data", tmp_path / "two.npz", "--out", tmp_path / "run")
    assert "x_train is uint8 and x_test float64, images of bytes and features" in said
    assert not (tmp_path / "run").exists()


def test_one_class_alone_is_refused(tmp_path: Path) -> None:
    rows = [f"{x:.3f},1" for x in numbers(20)]
    table = written(tmp_path / "one.csv", "x,label", rows)
    assert "all training labels are '1'" in refused("train", "--data", table, "--out", tmp_path / "run")
    np.savez(tmp_path / "one.npz", x=numbers(20).reshape(-1, 2), y=np.zeros(10, int))
    assert "all training labels are 0" in refused("train", "--data", tmp_path / "one.npz", "--out", tmp_path / "run")
    for part in ("train", "test"):
        picture = tmp_path / "folder" / part / "cat" / "1.png"
        picture.parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(picture)
    assert "all training labels are 'cat'" in refused("train", "--data", tmp_path / "folder", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_class_alone_may_be_judged(tmp_path: Path) -> None:
    x = numbers(120).reshape(-1, 2)
    rows = [f"{a:.3f},{b:.3f},{int(a > 0)}" for a, b in x]
    data = written(tmp_path / "d.csv", "a,b,label", rows)
    run("train", "--data", data, "--epochs", 1, "--out", tmp_path / "run")
    some = written(tmp_path / "some.csv", "a,b,label", [row for row in rows if row.endswith(",1")])
    run("evaluate", tmp_path / "run", "--data", some)
    np.savez(tmp_path / "some.npz", x=x[:30], y=np.zeros(30, int))
    run("evaluate", tmp_path / "run", "--data", tmp_path / "some.npz")


def test_targets_by_name(tmp_path: Path) -> None:
    rows = [f"{x:.3f},{int(x > 0)}" for x in numbers(40)]
    path = written(tmp_path / "d.csv", 'x,"the, label"', rows)
    assert load(str(path), target="the, label").features == ("x",)
    for target in (",", "x,x"):
        with pytest.raises(DataError, match="names columns with commas, each once"):
            load(str(path), target=target)
    infinite = written(tmp_path / "inf.csv", "x,label", [*rows, "1.0,inf"])
    with pytest.raises(DataError, match="holds numbers that are not finite"):
        load(str(infinite))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels that are called as columns of the output are."""
    folder = tmp_path_factory.mktemp("columns")
    rows = [f"{a:.3f},{b:.3f},{int(a > 0)},{int(b > 0)}" for a, b in numbers(120).reshape(-1, 2)]
    data = written(folder / "d.csv", "a,b,input,row", rows)
    run("train", "--data", data, "--target", "input,row", "--epochs", 1, "--out", folder / "run")
    return folder


def test_columns_of_the_output_have_names_of_their_own(trained: Path) -> None:
    out = trained / "p.csv"
    run("predict", trained / "run", trained / "d.csv", "--out", out)
    with out.open() as file:
        assert next(csv.reader(file)) == ["input row", "input", "row"]
    run("predict", trained / "run", trained / "d.csv", "--out", trained / "p.json")
    first, second = (json.loads(line) for line in (trained / "p.json").read_text().splitlines()[:2])
    assert [first["input row"], second["input row"]] == ["0", "1"]
    assert set(first) == {"input row", "input", "row"}


def test_rows_of_several_files_are_told_apart(trained: Path) -> None:
    path, out = trained / "d.csv", trained / "two.csv"
    run("predict", trained / "run", path, path, "--out", out)
    with out.open() as file:
        names = [row[0] for row in csv.reader(file)][1:]
    assert names[:2] == [f"{path}:0", f"{path}:1"]
    assert len(names) == 120


def test_an_export_does_not_overwrite_its_run(trained: Path) -> None:
    model = trained / "run" / "model.safetensors"
    before = model.read_bytes()
    assert "is a file of the run" in refused("export", trained / "run", "--rule", "plain", "--out", model)
    assert model.read_bytes() == before
    config = trained / "run" / "config.json"
    said = refused("predict", trained / "run", trained / "d.csv", "--out", config)
    assert "is a file of the run" in said


def test_probabilities_of_numbers_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    rows = [f"{a:.3f},{a + 0.25:.3f}" for a in numbers(60)]
    data = written(tmp_path / "d.csv", "a,y", rows)
    run("train", "--data", data, "--epochs", 1, "--out", tmp_path / "run")
    out = tmp_path / "p.csv"
    said = refused("predict", tmp_path / "run", data, "--probabilities", "--out", out)
    assert "this run predicts numbers" in said
    assert not out.exists()


def test_columns_of_a_parquet_file_that_nobody_needs_may_hold_anything(trained: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    with (trained / "d.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = {name: [float(row[name]) for row in rows] for name in ("a", "b")}
    when = pa.array([18_000] * len(rows), pa.date32())
    odd = {"when": when, "hole": pa.array([None] * len(rows), pa.float64()), "lists": [[1]] * len(rows)}
    table = pa.table(columns | odd)
    pq.write_table(table, tmp_path / "d.parquet")
    run("predict", trained / "run", tmp_path / "d.parquet", "--out", tmp_path / "p.csv")
    run("predict", trained / "run", trained / "d.csv", "--out", tmp_path / "q.csv")
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "q.csv").read_text()
    pq.write_table(table.set_column(0, "a", when), tmp_path / "e.parquet")
    said = refused("predict", trained / "run", tmp_path / "e.parquet", "--out", tmp_path / "e.csv")
    assert "column 'a' holds '2019-04-14', and numbers are expected" in said
