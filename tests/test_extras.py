"""With the core alone: the library works, and whatever needs more says what to install before it writes anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HIDDEN = ("sklearn", "matplotlib", "lightning_fabric", "lightning", "pyarrow", "torchmetrics", "transformers", "ray")
# A name that is None in sys.modules cannot be imported, as if it were not installed.
WITHOUT = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"


def run_without(code: str, folder: Path) -> subprocess.CompletedProcess:
    program = WITHOUT.format(names=HIDDEN) + code
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_readme_s_python_needs_the_core_alone(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    first = next(block for block in blocks if "Rescaled.from_loader" in block)
    more = "from mixreg import CutMix, risk\nmodel.fit([(torch.rand(64, 64), torch.randint(10, (64,)))])\n"
    more += "risk.mixup(torch.nn.Linear(3, 2), torch.rand(5, 3), torch.tensor([0, 1, 0, 1, 1]), 1.0)\n"
    more += "print(logits.shape)"
    done = run_without(f"import warnings; warnings.simplefilter('ignore')\n{first}\n{more}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([5, 10])"


COMMAND = "from mixreg.commands.main import main\nmain({arguments!r}, prog_name='mixreg')"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--out", "run"], "digits needs scikit-learn: pip install 'mixreg[train]'"),
        (["reproduce", "two-moons", "--out", "out"], "the paper needs matplotlib: pip install 'mixreg[train]'"),
        (["terms", "--network", "a:b", "--data", "x.npz"], "the picture needs matplotlib: pip install 'mixreg[train]'"),
        (["evaluate", ".", "--figures", "figures"], "--figures needs matplotlib: pip install 'mixreg[train]'"),
        (["train", "--data", "x.parquet", "--out", "run"], "needs pyarrow: pip install 'mixreg[parquet]'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_missing_is_named(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    before = {"x.npz", "x.parquet"}
    for name in before:
        (tmp_path / name).touch()
    done = run_without(COMMAND.format(arguments=arguments), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == before


def test_commands_that_need_no_more_work(tmp_path: Path) -> None:
    for arguments, told in ((["data", "list"], "fashion-mnist"), ([], "pip install 'mixreg[train]'")):
        done = run_without(COMMAND.format(arguments=arguments), tmp_path)
        assert done.returncode == 0, done.stderr
        assert told in done.stdout


def test_what_the_core_is() -> None:
    """What the package imports anywhere, outside of functions, is a dependency of everybody."""
    import ast

    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[^\w-]", line)[0] for line in declared["dependencies"]}
    names = {"PIL": "pillow"}
    top = set()
    for path in (ROOT / "mixreg").rglob("*.py"):
        # Imported where somebody has what they adapt to, or draws.
        if "adapters" in path.parts or path.name == "end_labels.py":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                top |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                top.add(node.module.split(".")[0])
    others = {names.get(name, name) for name in top} - set(sys.stdlib_module_names) - {"mixreg"}
    assert others <= core
    extras = {re.split(r"[^\w-]", line)[0] for line in declared["optional-dependencies"]["train"]}
    assert not extras & core
