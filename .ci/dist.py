"""`make dist`: builds wheel and sdist, checks them, installs the wheel into an empty environment and uses it there.

The environment has nothing but what the wheel asks for, in the versions of constraints.txt; with --newest, in today's
newest versions. `build` and `twine` are installed into an environment of their own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# What people read first, and what runs without a checkout.
IN_WHEEL = ("mixreg/__init__.pyi", "mixreg/py.typed", "mixreg/report/page.css", "mixreg/data/imagenet_subsets.json")
IN_SDIST = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "tests/conftest.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--newest", action="store_true", help="install the newest versions of everything")
    newest = parser.parse_args().newest
    with tempfile.TemporaryDirectory(prefix="mixreg-dist-") as folder:
        wheel, sdist = build(Path(folder) / "tools")
        require_files(wheel, sdist)
        use(wheel, Path(folder) / "empty", newest)
    print(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} are ready")


def environment(place: Path) -> Path:
    """The interpreter of a new and empty environment."""
    venv.create(place, with_pip=True)
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(*command: str | Path, folder: Path = ROOT) -> None:
    """A command that has to succeed; the checkout is not on its path."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([str(word) for word in command], cwd=folder, env=variables, check=True)


def install(python: Path, *words: str | Path) -> None:
    """Packages into an environment."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


def build(place: Path) -> tuple[Path, Path]:
    """A wheel, made from the sdist as anybody would make it, and the sdist; both checked."""
    python = environment(place)
    install(python, "build", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    run(python, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(python, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def require_files(wheel: Path, sdist: Path) -> None:
    """An error unless both hold what they should, and the wheel nothing else than the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    lacking = [name for name in IN_WHEEL if name not in names] + [name for name in IN_SDIST if name not in packed]
    strange = [name for name in names if not name.startswith(("mixreg/", "mixreg-"))]
    if lacking or strange:
        sys.exit(f"the archives lack {lacking}, and should not hold {strange}")


def three_lines() -> str:
    """The first example of README.md, which ends with a rescaled network, and a line that says what was used."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    told = "import mixreg; print('mixreg', mixreg.__version__, mixreg.__file__, 'torch', torch.__version__, model)"
    return next(block for block in blocks if "Mixup(" in block and "Rescaled" in block) + told


def use(wheel: Path, place: Path, newest: bool) -> None:
    """Install the wheel into an empty environment, and do there what README says first."""
    python = environment(place)
    install(python, wheel, *(() if newest else ("--constraint", ROOT / "constraints.txt")))
    run(python, "-m", "pip", "check")
    run(python, "-W", "error", "-c", three_lines(), folder=place)
    for arguments in (["--version"], ["--help"], ["data", "list"]):
        run(python, "-m", "mixreg", *arguments, folder=place)


if __name__ == "__main__":
    main()
