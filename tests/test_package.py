"""The package as a whole: what it exports, what it loads, which room may call which, and what users are shown."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

import mixreg
from mixreg.report.intervals import interval

ROOT = Path(__file__).parent.parent


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)


def test_importing_the_package_loads_no_torch() -> None:
    assert python("-c", "import sys, mixreg; print('torch' in sys.modules)").stdout.strip() == "False"


def test_using_it_loads_nothing_heavy_beside_torch() -> None:
    code = "import sys, mixreg; [getattr(mixreg, n) for n in mixreg.__all__]; print(sorted(sys.modules))"
    loaded = set(ast.literal_eval(python("-c", code).stdout))
    assert "torch" in loaded
    assert not loaded & {"scipy", "sklearn", "matplotlib", "rich", "torchmetrics", "pandas"}


def test_every_public_name_is_there() -> None:
    for name in mixreg.__all__:
        assert getattr(mixreg, name) is not None
        assert name in dir(mixreg)
    with pytest.raises(AttributeError, match="no attribute 'mixdown'"):
        _ = mixreg.mixdown


def test_exports_are_listed_once_and_typed() -> None:
    """The stub is what type checkers read and what the package itself loads from."""
    stub = ast.parse((ROOT / "mixreg" / "__init__.pyi").read_text())
    listed = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(mixreg.__all__) == listed
    assert {"Theta", "DataMoments", "Mixup", "Rescaled", "ApproximateMixup", "risk", "losses", "calibration"} <= listed


def test_the_code_in_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    run = preloaded.run(["-c", "\n".join(blocks)], ROOT)
    assert run.returncode == 0, run.stderr


def test_the_demo_prints_its_table_and_writes_its_diagram(tmp_path: Path) -> None:
    run = preloaded.run(["examples/digits.py", "--seeds", "2", "--epochs", "1", "--out", str(tmp_path)], ROOT)
    assert run.returncode == 0, run.stderr
    for word in ("ERM", "Mixup", "rescaled, tempered", "accuracy %", "cross-entropy", "ECE %", "±"):
        assert word in run.stdout
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((tmp_path / "values.json").read_text())["rows"]
    assert len(rows) == 6
    assert all(len(row["ECE"]) == 2 for row in rows)


def test_interval_is_student_s() -> None:
    from scipy.stats import ttest_1samp

    values = [1.0, 2.5, 2.0, 4.0, 3.5]
    result = interval(values)
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    assert (result.mean - result.half_width, result.mean + result.half_width) == pytest.approx((low, high))
    assert f"{interval([2.0]):.1f}" == "2.0"
    with pytest.raises(ValueError, match="at least one"):
        interval([])
