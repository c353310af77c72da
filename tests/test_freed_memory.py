"""Memory kept between steps: counted by the page faults of a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from mixreg._support.freed_memory import keep_freed_memory

ROOT = Path(__file__).parent.parent
STEPS = """
import ctypes, resource, sys
import torch
from mixreg._support.freed_memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("the C library cannot be told")
if sys.argv[1] == "return":
    # What glibc does at first, and goes on doing or not by what was freed before: told so, it is sure to.
    ctypes.CDLL(None).mallopt(-3, 128 << 10)
def step():
    parts = [torch.ones(1 << 21) for _ in range(4)]
    return float(sum(part.sum() for part in parts))
# Until what is kept is as much as a step needs, wherever its blocks came to lie.
for _ in range(30):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
values = {step() for _ in range(10)}
assert values == {4 * 2.0**21}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", STEPS, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of glibc")
def test_steps_use_the_memory_of_those_before() -> None:
    """Four blocks of 8 MB in ten steps: a fault for each of their pages where they are returned, hardly any if kept."""
    assert 50 * faults("keep") < faults("return")


def test_a_library_that_knows_no_such_thing_is_left_alone(monkeypatch) -> None:
    class Other:
        def __init__(self, name: None) -> None: ...

    monkeypatch.setattr("mixreg._support.freed_memory.ctypes.CDLL", Other)
    assert keep_freed_memory() is False
