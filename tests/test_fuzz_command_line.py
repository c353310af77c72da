"""Hundreds of commands with wrong values: one sentence, an exit code that is not 0, and nothing written."""

import itertools
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mixreg.commands.main import main
from mixreg.training import Config

NOT_A_NUMBER = ["", "many", "1,2", "0x", "\u00bd", "--", "\u0661\u0661x"]
WRONG = {
    "int": [*NOT_A_NUMBER, "1.5", "1e3", "nan", "-99999999999999999999"],
    "float": [*NOT_A_NUMBER, "nan", "-1", "-inf"],
}
# Where more than a number is asked for.
ALSO = {
    "data": ["", "nowhere", "nowhere.npz", "a\u0000b", "/dev/null", "digits ", "~nobody/x"],
    "model": ["", "vgg", "nowhere:net", "math:nothing", ":", "math:", "builtins:exit", "math:pi"],
    "method": ["", "mixupp", "MIXUP", "nowhere:Method", "math:pi", ":", "builtins:int"],
    "alpha": ["-0.1", "1e-400x"],
    "epochs": ["0", "-1"],
    "batch_size": ["0", "-5"],
    "lr": ["inf"],
    "momentum": ["inf"],
    "weight_decay": ["inf"],
    "drops": ["1.5", "0", "a", "0.5;0.7", "nan"],
    "augment": ["", "crop", "none "],
    "label_noise": ["1", "1.5", "inf"],
    "label_smoothing": ["1", "2", "inf"],
    "dropout": ["1", "inf"],
    "parseval": ["0.6", "inf"],
    "holdout": ["1", "inf"],
    "samples": ["-1", "99999999"],
    "image_size": ["0", "-1"],
    "target": ["y"],
    "task": ["guess", "Classes", "numbers,classes"],
    "class_weights": ["", "some", "1;2", "nan,1", "-1,1", "0,0", "1,2", "nowhere.txt"],
    "until": ["-1"],
    "patience": ["-1"],
    "optimizer": ["", "adam", "SGD"],
    "schedule": ["", "linear", "onecycle"],
    "warm_up": ["30", "1e9", "inf"],
    "clip": ["inf"],
    "ema": ["1", "2", "inf"],
}
OTHERS = {
    "--preset": ["", "mine", "cifar", "imagenet-resnet50"],
    "--weight": ["1", "-1"],
    "--layers": ["conv1", ""],
    "--probability": ["-0.1", "1.1", "x", "nan"],
    "--per-sample": ["maybe", ""],
    "--methods": ["mixup"],
    "--probabilities": ["0.5,0.5"],
    "--method-option": ["", "keep", "=1", "keep=1"],
    "--evaluate-every": ["0", "-1", "x"],
    "--checkpoint-seconds": ["-1", "nan", "x"],
    "--accelerator": ["", "abacus"],
    "--devices": ["", "0", "-1", "many"],
    "--nodes": ["0", "-1", "x"],
    "--strategy": ["", "magic"],
    "--precision": ["", "8-bit"],
    "--workers": ["-1", "x"],
}


def train_commands() -> list[list[str]]:
    found = []
    for setting in fields(Config):
        values = WRONG.get(str(setting.type), []) + ALSO.get(setting.name, [])
        if setting.name == "seed":
            values = WRONG["int"][:-1]
        found += [[f"--{setting.name.replace('_', '-')}={value}"] for value in values]
    found += [[f"{option}={value}"] for option, values in OTHERS.items() for value in values]
    return found


COMMANDS = {
    "train": [["train", "--quiet", "--out", "OUT", *arguments] for arguments in train_commands()],
    "train, out": [["train", "--quiet", f"--out={out}"] for out in ("", "a\u0000b", "FILE", "FILE/x", "/proc/x")],
    "evaluate": [
        ["evaluate", *arguments]
        for arguments in (
            [],
            ["nowhere"],
            ["FILE"],
            ["EMPTY"],
            ["--logits", "FILE"],
            ["--logits", "FILE", "--alpha", "1"],
            ["--logits", "nowhere", "--alpha", "1"],
            *(["--logits", "OUTPUTS", f"--alpha={alpha}"] for alpha in ["-1", "nan", "x", ""]),
            ["--logits", "OUTPUTS", "--alpha", "1", "--data", "digits"],
            ["--logits", "OUTPUTS", "--alpha", "1", "--shifted", "corruptions"],
            ["EMPTY", "--baseline", "EMPTY"],
            *(["EMPTY", "--shifted", spec] for spec in ["", "x", "cifar-c:", "corruptions:x"]),
            *(["EMPTY", f"--model={model}"] for model in ["", "x", "math:pi"]),
            *(["EMPTY", f"--method={method}"] for method in ["", "x", "math:pi"]),
        )
    ],
    "choice": [
        ["train", "--quiet", "--out", "OUT", "--method", "choice", *arguments]
        for arguments in (
            ["--methods", "mixup:x"],
            ["--methods", "mixupp"],
            ["--methods", ""],
            ["--methods", "regmixup,mixup"],
            ["--probabilities", "0.5"],
            ["--probabilities", "a,b"],
            ["--probabilities", "0.5,0.6"],
            ["--probability", "2"],
        )
    ],
    "predict": [
        ["predict", *arguments]
        for arguments in (
            [],
            ["EMPTY"],
            ["nowhere", "FILE"],
            ["EMPTY", "FILE"],
            ["FILE", "FILE"],
            ["EMPTY", "OUTPUTS", "--out", "OUT/p.csv"],
            ["EMPTY", "OUTPUTS", "--rule", "best"],
            ["EMPTY", "OUTPUTS", "--device", "abacus"],
            ["EMPTY", "nowhere", "--out", "OUT/p.csv"],
        )
    ],
    "export": [
        ["export", *arguments]
        for arguments in (
            [],
            ["EMPTY"],
            ["EMPTY", "--out", "OUT/m.onnx"],
            ["FILE", "--out", "OUT/m.pt2"],
            ["EMPTY", "--out", "OUT/m.bin"],
            ["EMPTY", "--out", "OUT/m.onnx", "--format", "tflite"],
            ["nowhere", "--out", "OUT/m.onnx"],
        )
    ],
    "reproduce": [
        ["reproduce", "--out", "OUT", *arguments]
        for arguments in (
            *([name] for name in ["", "three-moons", "nowhere:X", "math:pi", ":"]),
            *([f"--scale={scale}"] for scale in ["", "huge", "Smoke"]),
            *(
                ["two-moons", f"--set={size}"]
                for size in ["", "=", "steps", "steps=", "steps=0", "steps=-1", "moons=1"]
            ),
            *(
                ["two-moons", f"--set={size}"]
                for size in ["steps=many", "steps=1,2", "alpha=nan", "alpha=inf", "steps=1.5"]
            ),
            *(["two-moons", f"--workers={count}"] for count in ["0", "-1", "x", "1.5"]),
            *(["two-moons", f"--cpus={count}"] for count in ["0", "-1", "x"]),
            *(["two-moons", f"--gpus={count}"] for count in ["nan", "-1", "x"]),
            ["--redraw"],
            ["--redraw", "two-moons"],
            ["--redraw", "--set", "steps=1"],
        )
    ],
    "data": [
        ["data", *arguments]
        for arguments in (
            ["get"],
            ["get", ""],
            ["get", "imagenet-22k"],
            ["get", "cifar10", "--from", "nowhere"],
            ["get", "cifar10", "--from", "EMPTY"],
            ["get", "cifar100", "--from", "http://127.0.0.1:9"],
            ["list", "cifar10"],
            ["fetch"],
        )
    ],
    "zoo": [
        *(["zoo", *arguments] for arguments in (["card"], ["card", ""], ["card", "../x"], ["list", "x"], ["keep"])),
        *(["predict", f"zoo:{name}", "SAMPLES"] for name in ("", "nobody", "../x", "/etc/passwd", "a\u0000b")),
        *(["evaluate", f"zoo:{name}"] for name in ("nobody", "..")),
        ["export", "zoo:nobody", "--out", "OUT"],
    ],
    "verify": [
        ["verify", *arguments]
        for arguments in (
            ["--model", "math:pi"],
            ["--data", "OUTPUTS"],
            ["--model", "math:pi", "--data", "OUTPUTS"],
            ["--model", "builtins:exit", "--data", "SAMPLES"],
            ["--model", "torch.nn:Identity", "--data", "FILE"],
            *(["--alpha", alpha] for alpha in ["-1", "nan", "x", ""]),
            *(["--model", "torch.nn:Identity", "--data", "SAMPLES", "--loss", loss] for loss in ["", "hinge"]),
        )
    ],
    "none": [["trian"], ["--nothing"], ["train"], ["evaluate", "--nothing"], [""]],
}


@pytest.fixture
def places(tmp_path: Path, monkeypatch) -> dict[str, str]:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("MIXREG_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a text")
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "outputs.npz", logits=np.eye(3), labels=np.arange(3))
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).normal(size=(4, 3)), y=np.arange(4) % 3)
    return {
        "OUT": str(tmp_path / "out"),
        "FILE": str(tmp_path / "file"),
        "FILE/x": str(tmp_path / "file" / "x"),
        "EMPTY": str(tmp_path / "empty"),
        "OUTPUTS": str(tmp_path / "outputs.npz"),
        "SAMPLES": str(tmp_path / "samples.npz"),
    }


def listing(folder: Path) -> set[str]:
    return {os.path.join(place, name) for place, _, names in os.walk(folder) for name in names}


def test_there_are_hundreds() -> None:
    assert sum(map(len, COMMANDS.values())) >= 300


@pytest.mark.parametrize("group", COMMANDS)
def test_wrong_values_get_a_sentence_and_write_nothing(group: str, places: dict[str, str], tmp_path: Path) -> None:
    before = listing(tmp_path)
    for given in COMMANDS[group]:
        arguments = [
            places.get(word, f"--out={places[word[6:]]}" if word[6:] in places and word.startswith("--out=") else word)
            for word in given
        ]
        result = CliRunner().invoke(main, arguments, standalone_mode=True)
        told = f"{given}: {result.output[-500:]} {result.exception!r}"
        assert result.exit_code not in (0, None), told
        assert isinstance(result.exception, SystemExit), told
        assert "Traceback" not in result.output, told
        lines = [line for line in result.output.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1 or "Usage:" in result.output, told
        # A cache folder may be looked for; nothing is put anywhere.
        assert listing(tmp_path) <= before, told


def test_words_of_every_length_and_alphabet(places: dict[str, str], tmp_path: Path) -> None:
    """Names that no file system and no terminal likes."""
    strange = [
        "x" * 5000,
        "\x1b[31mred\x07",
        "[/b]",
        "a\nb",
        "\u202egnp.exe",
        "../" * 40 + "etc/passwd",
        " ",
        "%s%n",
        "$(id)",
    ]
    for option, word in itertools.product(["--data", "--model", "--method", "--preset"], strange):
        result = CliRunner().invoke(main, ["train", "--quiet", "--out", places["OUT"], f"{option}={word}"])
        assert result.exit_code not in (0, None), (option, word)
        assert isinstance(result.exception, SystemExit), (option, word, result.exception)
        assert "\x1b" not in result.output, (option, word)
        assert not Path(places["OUT"]).exists(), (option, word)
