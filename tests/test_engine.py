"""Starting a run costs no more than it needs, and starting Lightning Fabric no more than Lightning Fabric."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import assert_same_run, environment
from safetensors.torch import load_file

from mixreg.training import Config
from mixreg.training.engine import Engine, OneProcess, version_only
from mixreg.training.run import train

PACKAGE = """
print("imported for real")
__version__ = "3.2.1"
from slow_package.part import value
"""


SHORT = Config(data="digits", epochs=2, samples=400)


def test_a_plain_run_imports_neither_fabric_nor_compilers(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from mixreg.commands.main import main\n"
        f"main(['train', '--epochs', '1', '--out', {str(tmp_path / 'run')!r}], standalone_mode=False)\n"
        "heavy = {'lightning_fabric', 'sklearn', 'sympy', 'torch._dynamo', 'torch._inductor', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment()
    )
    assert finished.returncode == 0, finished.stderr


def test_one_process_ends_with_the_weights_that_fabric_gives(tmp_path: Path, monkeypatch) -> None:
    train(SHORT, tmp_path / "alone", Engine(accelerator="cpu"))
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_is_one_process", lambda engine: False)
        assert not isinstance(Engine(accelerator="cpu").launch(), OneProcess)
        train(SHORT, tmp_path / "fabric", Engine(accelerator="cpu"))
    assert_same_run(tmp_path / "alone", tmp_path / "fabric")


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({}, True),
        ({"devices": 2}, False),
        ({"nodes": 2}, False),
        ({"strategy": "ddp"}, False),
        ({"devices": "auto"}, False),
    ],
)
def test_one_process_is_for_one_process(change: dict, is_one: bool, monkeypatch) -> None:
    engine = replace(Engine(accelerator="cpu"), **change)
    assert engine._is_one_process() == is_one
    monkeypatch.setenv("LT_ACCELERATOR", "cpu")
    assert not engine._is_one_process()


def test_an_accelerator_is_found_before_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not Engine()._is_one_process()
    assert Engine(accelerator="cpu")._is_one_process()


def test_compiling_without_a_compiler_is_a_sentence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"a C\+\+ compiler is needed, and no-such-compiler is not there"):
        train(SHORT, tmp_path / "run", Engine(accelerator="cpu", compiles=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_compiled_run_is_the_same_up_to_last_digits(tmp_path: Path) -> None:
    train(SHORT, tmp_path / "plain", Engine(accelerator="cpu"))
    train(SHORT, tmp_path / "compiled", Engine(accelerator="cpu", compiles=True))
    plain, compiled = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "compiled"))
    assert plain.keys() == compiled.keys()
    for key, value in plain.items():
        torch.testing.assert_close(compiled[key], value, rtol=1e-4, atol=1e-5)


def test_fabric_does_not_bring_torchmetrics_along() -> None:
    script = (
        "import sys\n"
        "from mixreg.training.engine import Engine\n"
        "Engine(accelerator='cpu').launch('64-true')\n"
        "assert 'torchmetrics' not in sys.modules\n"
        "from torchmetrics.classification import MulticlassAccuracy\n"
        "from lightning_fabric.utilities.imports import _TORCHMETRICS_GREATER_EQUAL_1_0_0 as is_new\n"
        "assert is_new\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_more_than_the_version_is_the_package_itself(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "slow_package").mkdir()
    (tmp_path / "slow_package" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "slow_package" / "part.py").write_text("print('and a part')\nvalue = 7\n")
    metadata = tmp_path / "slow_package-3.2.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow_package\nVersion: 3.2.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_package", raising=False)
    with version_only("slow_package"):
        import slow_package

        assert slow_package.__version__ == "3.2.1"
    assert capsys.readouterr().out == ""
    assert "slow_package" not in sys.modules
    with version_only("slow_package"):
        from slow_package.part import value

        assert value == 7
        assert capsys.readouterr().out == "and a part\n"
        from slow_package import value as again

        assert again == 7
    assert capsys.readouterr().out == "imported for real\n"
    # It is there now, and stays.
    with version_only("slow_package"):
        assert sys.modules["slow_package"].value == 7
    assert "slow_package" in sys.modules
    for name in ("slow_package", "slow_package.part"):
        monkeypatch.delitem(sys.modules, name)


def test_a_package_without_a_version_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "unversioned.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    with version_only("unversioned"):
        import unversioned

        assert unversioned.value == 7
    monkeypatch.delitem(sys.modules, "unversioned")


def test_a_package_that_is_not_there_stays_away() -> None:
    with version_only("no_such_package"):
        assert "no_such_package" not in sys.modules
