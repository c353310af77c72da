"""Starting Lightning Fabric costs no more than Lightning Fabric."""

import subprocess
import sys
from pathlib import Path

from mixreg.training.engine import version_only

PACKAGE = """
print("imported for real")
__version__ = "3.2.1"
from slow_package.part import value
"""


def test_fabric_does_not_bring_torchmetrics_along() -> None:
    script = (
        "import sys\n"
        "from mixreg.training.engine import Engine\n"
        "Engine(accelerator='cpu').launch()\n"
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
