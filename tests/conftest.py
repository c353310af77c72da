import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Tests share the cores, and some have threads beside those of others: a thread that waits sleeps, it does not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from browser import pytest_configure, pytest_terminal_summary  # noqa: F401
from devtools import Tab, open_tab
from hypothesis import settings

from mixreg.report.explorer.build import write_explorer

# Two cores: a deadline would test the machine, not the code. Derandomised so that a failure can be repeated.
settings.register_profile("mixreg", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("mixreg")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20220101)


@pytest.fixture(scope="module")
def explorer(tmp_path_factory) -> Path:
    """The explorer's page, in a file."""
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    write_explorer(path)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Tab]:
    """A browser that is spoken to, one for each file of tests."""
    with open_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, explorer: Path) -> Tab:
    """The explorer in a browser, its reader not fond of movement."""
    browser.problems.clear()
    browser.show(1280, 860, motion="reduce")
    browser.open("about:blank")
    browser.open(explorer.as_uri())
    return browser


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The documentation, built without a warning; its notebooks are run for it. Its tests are a group, "docs"."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    root = Path(__file__).parent.parent
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stderr
    return out
