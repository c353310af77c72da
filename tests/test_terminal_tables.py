"""Tables on a terminal: they fit 80 columns, and every number that goes in comes out whole."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from mixreg.commands.main import main
from mixreg.commands.tables import print_columns, print_shifted, print_table
from mixreg.commands.verdicts import print_experiments, print_reproduction
from mixreg.experiments.claims import Claim, exceeds
from mixreg.experiments.experiment import Table
from mixreg.experiments.registry import EXPERIMENTS
from mixreg.experiments.reproduce import Reproduction


@pytest.fixture(autouse=True)
def terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def lines_in_80_columns(text: str) -> list[str]:
    lines = text.splitlines()
    assert lines
    for line in lines:
        assert cell_len(line) <= 80, line
        assert "…" not in line, line
    return lines


def test_columns_that_do_not_fit_follow_below(capsys) -> None:
    heads = ["method", *(f"measure {k}" for k in range(14))]
    rows = [[f"method {i}", *(f"{i}.{k:03} ± 0.{i}{k:02}" for k in range(14))] for i in range(3)]
    print_columns(heads, rows, "a title")
    lines = lines_in_80_columns(capsys.readouterr().out)
    assert lines[0] == "a title"
    # Each block has a head and three rows, in the same order, and all blocks together every cell.
    names = [line.split("  ")[0] for line in lines[1:]]
    assert names == ["method", "method 0", "method 1", "method 2"] * (len(names) // 4)
    for i, row in enumerate(rows):
        told = [cell for line in lines if line.startswith(f"method {i}") for cell in line.split("  ")[1:] if cell]
        assert [cell.strip() for cell in told if cell.strip()] == row[1:]


def test_sentences_share_the_width(capsys) -> None:
    words = [f"word{k}" for k in range(60)]
    print_columns(["name", "what", "where"], [["one", " ".join(words), "here and there"]])
    told = " ".join(lines_in_80_columns(capsys.readouterr().out))
    assert all(f"{word} " in told for word in words)


def test_brackets_are_text(capsys) -> None:
    print_columns(["[bold]name", "b"], [["[red]x[/red]", "\x1b[2J"]], "[/]")
    assert capsys.readouterr().out.split() == ["[/]", "[bold]name", "b", "[red]x[/red]", "\\x1b[2J"]


def test_evaluations(capsys) -> None:
    measures = {"accuracy": 0.98765, "cross_entropy": 12.3456, "ece": 0.1234, "brier": 0.5678, "aurc": 0.0123}
    row = {"strength": 0.5, "temperature": (0.25, 13.5), **measures}
    print_table([row | {"model": name} for name in ("plain", "rescaled, tempered")], "digits, " + "word " * 30)
    (plain,) = (line for line in lines_in_80_columns(capsys.readouterr().out) if line.startswith("plain"))
    assert plain.split() == ["plain", "0.50", "0.25–13.50", "98.77", "12.3456", "12.34", "0.5678", "1.23"]

    by_severity = [
        {"model": name, "severity": s, "accuracy": s / 10, "cross_entropy": s + 0.5, "ece": s / 100}
        for s in range(1, 6)
        for name in ("plain", "rescaled, tempered")
    ]
    means = [measures | {"model": name, "mean_error": 0.5, "mce": 0.9} for name in ("plain", "rescaled, tempered")]
    print_shifted({"set": "cifar-c:CIFAR-10-C", "mean": means, "by_severity": by_severity, "corruptions": 15})
    lines = lines_in_80_columns(capsys.readouterr().out)
    told = [line.split()[1:] for line in lines if line.startswith("plain")]
    assert told[0] == ["98.77", "12.3456", "12.34", "0.5678", "1.23", "50.00", "90.00"]
    assert told[1:] == [
        ["10.00", "20.00", "30.00", "40.00", "50.00"],
        ["1.5000", "2.5000", "3.5000", "4.5000", "5.5000"],
        ["1.00", "2.00", "3.00", "4.00", "5.00"],
    ]


def test_claims_and_the_numbers_behind_them(capsys) -> None:
    better, worse = [0.9, 0.91, 0.92, 0.9], [0.5, 0.52, 0.5, 0.51]
    clear = exceeds("test accuracy, rescaled − plain", better, worse)
    unclear = exceeds("test accuracy, " + "a measure with a long name " * 4, [0.1, 0.9, 0.2, 0.7], [0.5, 0.4, 0.5, 0.4])
    claims = [
        Claim("one part", "It is better.", "Figure 1", (clear,)),
        Claim("several parts", "It is better here, " * 8 + "and there.", "Figure 2", (clear, unclear)),
    ]
    tables = {
        "asked": Table(["method", "test accuracy"], [["ERM", "0.859 ± 0.008"]], note="A note."),
        "other": Table(["method", "loss"], [["ERM", "12345"]]),
    }
    found = Reproduction(claims, tables, {"asked": "3 of 10 repetitions"}, [], Path("report.html"), {}, {})
    print_reproduction(found, ["asked"])
    lines = lines_in_80_columns(capsys.readouterr().out)
    told = " ".join(" ".join(lines).split())
    assert "ERM 0.859 ± 0.008" in told
    assert "A note." in told
    assert "12345" not in told
    assert "✓ one part: supported" in told
    assert f"test accuracy, rescaled − plain {clear.difference:+.4f} ± {clear.half_width:.4f} p = " in told
    assert "? several parts: undecided: 1 of 2 supported, 1 undecided" in told
    assert "asked, beside the paper: 3 of 10 repetitions." in told


def test_every_experiment_is_listed(capsys) -> None:
    print_experiments()
    lines = lines_in_80_columns(capsys.readouterr().out)
    assert set(EXPERIMENTS) <= {line.split(" ")[0] for line in lines}


def test_training_ends_with_its_scores_and_the_next_command(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_net", raising=False)
    run = "runs/my digits"
    arguments = ["train", "--accelerator", "cpu", "--epochs", "1", "--model", "my_net:make", "--out", run]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / run / "metrics.json").read_text())
    lines = lines_in_80_columns(result.stdout)
    for name in ("plain", "rescaled"):
        (line,) = (line for line in lines if line.split()[0] == f"{name}:")
        assert f"accuracy {metrics[name]['accuracy']:.1%}" in line
        assert f"ECE {metrics[name]['ece']:.1%}" in line
    assert lines[-1] == "Next: mixreg evaluate 'runs/my digits' --model my_net:make"
    evaluated = CliRunner().invoke(main, ["evaluate", run, "--model", "my_net:make"])
    assert evaluated.exit_code == 0, evaluated.output
    (plain,) = (line for line in lines_in_80_columns(evaluated.stdout) if line.startswith("plain  "))
    assert f"{100 * metrics['plain']['accuracy']:.2f}" in plain.split()
