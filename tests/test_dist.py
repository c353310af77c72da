"""`make dist`, with today's newest versions of everything."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_works_with_the_newest_versions_of_everything() -> None:
    """Downloads what a new user downloads."""
    index = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    if subprocess.run(index, capture_output=True, check=False).returncode != 0:
        pytest.skip("no package index can be reached")
    command = [sys.executable, ".ci/dist.py", "--newest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No broken requirements found." in done.stdout
    assert "fashion-mnist" in done.stdout
    assert "are ready" in done.stdout
