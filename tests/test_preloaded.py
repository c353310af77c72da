"""Processes that tests fork end, print and see what processes do that are started anew."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import preloaded
import pytest

LOOK = """
import atexit, os, sys, threading, time
atexit.register(print, "at exit", flush=True)
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread", flush=True))).start()
print(__name__, sys.argv, [sys.path[0]], os.getcwd(), os.environ["SEEN"], os.environ.get("HOME"), flush=True)
print("beside", file=sys.stderr)
"""
ENDS = {
    "of itself": "",
    "with a code": "sys.exit(3)",
    "with a message": "sys.exit('no more')",
    "well": "sys.exit()",
    "with an error": "raise ValueError('wrong')",
    "by its own signal": "os.kill(os.getpid(), 15)",
    "interrupted": "import signal; signal.raise_signal(2)",
}
# Others are spawned from a module that can be imported.
SPAWNING = """
import multiprocessing, sys
def add(queue): queue.put((__name__, sys.argv))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=add, args=(queue,))
    worker.start()
    print(queue.get())
    worker.join()
"""


def _heed_interrupts() -> None:
    """A shell lets what it starts in the background ignore them, these tests among it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def assert_alike(arguments: list[str], folder: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "HOME"} | {"SEEN": "å"}
    command = [sys.executable, *preloaded.WARNINGS, *arguments]
    expected = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, preexec_fn=_heed_interrupts
    )
    found = preloaded.run(arguments, folder, env)
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    # Tracebacks begin elsewhere and end alike.
    assert found.stderr.splitlines()[:1] == expected.stderr.splitlines()[:1]
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


@pytest.mark.parametrize("end", ENDS)
def test_ends(end: str, tmp_path: Path) -> None:
    assert_alike(["-c", LOOK + ENDS[end], "one", "two"], tmp_path)


def test_scripts_modules_and_what_they_spawn(tmp_path: Path) -> None:
    for name, code in (("look", LOOK), ("spawning", SPAWNING)):
        (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "look.py").write_text(LOOK)
    for arguments in (
        ["look.py", "one"],
        ["inner/look.py"],
        ["-m", "look", "one"],
        ["spawning.py"],
        ["-m", "spawning"],
    ):
        assert_alike(arguments, tmp_path)


def test_signals_reach_a_process_and_its_group(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    waiting = "import time; print('there', flush=True); time.sleep(60)"
    process = preloaded.start(["-c", waiting], merged=True)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    leader = preloaded.start(["-c", child + waiting], new_group=True)
    children = Path(f"/proc/{leader.pid}/task/{leader.pid}/children")
    while not children.read_text().split():
        time.sleep(0.01)
    (other,) = children.read_text().split()
    os.killpg(leader.pid, signal.SIGTERM)
    assert leader.wait() == -signal.SIGTERM
    while Path(f"/proc/{other}").exists() and "Z" not in Path(f"/proc/{other}/stat").read_text().split()[2]:
        time.sleep(0.01)
