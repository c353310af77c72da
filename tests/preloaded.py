"""Processes of Python that start at once: `start(["-m", "mixreg", …])` is `python -m mixreg …` in a process of its own,
forked from a server that has imported PyTorch and this package already.

A start of Python that imports them takes two seconds of a core or more, a fork hundredths of one. From there on the
process is an ordinary one: arguments, folder, environment, output and exit code are its own, signals reach it, and it
ends as the interpreter ends. What is tested about starting itself (what is imported when, options of the interpreter,
limits of the system, launchers of other libraries) takes `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# Where a new process would warn, these fail. PyTorch scripts forward-mode rules with what it has itself deprecated.
WARNINGS = ["-W", "error", "-W", "ignore::DeprecationWarning"]
# What processes of tests import, most of them; not the libraries of a few.
MODULES = (
    "hypothesis",
    "matplotlib.figure",
    "mixreg.commands.main",
    "mixreg.evaluation",
    "mixreg.experiments.registry",
    "mixreg.training.run",
    "mixreg.verify",
    "pytest",
    "safetensors.torch",
    "sklearn.datasets",
    "torch._dynamo",
    "torch.utils.tensorboard",
)


class Started:
    """A process, with those attributes and methods of `subprocess.Popen` that tests use; its output goes to files."""

    def __init__(self, arguments: Sequence[str], pid: int, status: int, out: IO[str], err: IO[str] | None) -> None:
        self.args, self.pid, self.returncode = list(arguments), pid, None
        self._status, self._files, self._written = status, (out, err), ("", None)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str | None]:
        self.wait(timeout)
        return self._written

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
            out, err = (None if file is None else _content(file) for file in self._files)
            self._written = out, err
        return self.returncode


def _content(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


def start(
    arguments: Sequence[str],
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    merged: bool = False,
    new_group: bool = False,
) -> Started:
    """Start Python with these arguments: "-m" and a module, "-c" and code, or a script; then those of the program.

    merged: errors are written where the rest is, as with `stderr=subprocess.STDOUT`.
    new_group: it leads a group of processes, to which `os.killpg` sends signals.
    """
    request = {
        "arguments": [str(part) for part in arguments],
        "cwd": os.path.abspath(cwd or "."),
        "env": dict(os.environ if env is None else env),
        "new_group": new_group,
    }
    server = _server()
    out = tempfile.TemporaryFile("w+")  # noqa: SIM115
    err = None if merged else tempfile.TemporaryFile("w+")  # noqa: SIM115
    status, told = os.pipe()
    with tempfile.TemporaryFile("w+") as asked:
        json.dump(request, asked)
        asked.flush()
        socket.send_fds(server, [b"+"], [file.fileno() for file in (asked, out, err or out)] + [told])
    os.close(told)
    answer = server.recv(16)
    assert answer, "the server of processes has ended"
    return Started(arguments, int(answer), status, out, err)


def run(
    arguments: Sequence[str],
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Start Python, wait for its end and give its exit code and output."""
    process = start(arguments, cwd, env)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@functools.cache
def _server() -> socket.socket:
    """The connection to a server, one for all tests of this process."""
    mine, its = socket.socketpair()
    command = [sys.executable, *WARNINGS, __file__, str(its.fileno())]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    its.close()

    def end() -> None:
        # Others may hold the connection too: whoever was forked here.
        mine.shutdown(socket.SHUT_RDWR)
        mine.close()
        server.wait()

    atexit.register(end)
    return mine


def _serve(connection: socket.socket) -> list[str]:
    """Fork for every request and tell how children ended. Returns in a child, with the arguments asked for."""
    wakeup, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    while True:
        ready = select.select([connection, wakeup], [], [])[0]
        if wakeup in ready:
            os.read(wakeup, 4096)
            for pid in list(running):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    told = running.pop(pid)
                    os.write(told, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(told)
        if connection in ready:
            message, files, _, _ = socket.recv_fds(connection, 1, 4)
            if not message:
                os._exit(0)
            asked, out, err, told = files
            with open(asked) as file:
                file.seek(0)
                request = json.load(file)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for unneeded in (wakeup, woken, told, connection.detach(), *running.values()):
                    os.close(unneeded)
                return _become(request, out, err)
            if request["new_group"]:
                os.setpgid(pid, pid)
            running[pid] = told
            for unneeded in (out, err):
                os.close(unneeded)
            connection.sendall(b"%d" % pid)


def _become(request: dict, out: int, err: int) -> list[str]:
    """Take on the output, folder and environment that were asked for."""
    for number, file in ((1, out), (2, err)):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # Processes that this one spawns begin in the folder in which it began.
    import multiprocessing.process

    multiprocessing.process.ORIGINAL_DIR = request["cwd"]
    return request["arguments"]


if __name__ == "__main__":
    import gc
    import importlib
    import runpy
    import threading
    import types

    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    kind, *rest = _serve(socket.socket(fileno=int(sys.argv[1])))
    # As the interpreter does; what is left of this program is not to be found by the other.
    sys.path[0] = str(Path(kind).resolve().parent) if not kind.startswith("-") else os.getcwd() if kind == "-m" else ""
    sys.argv = rest if kind == "-m" else [kind, *(rest[1:] if kind == "-c" else rest)]
    try:
        if kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            this, main = sys.modules["__main__"], types.ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(compile(rest[0], "<string>", "exec"), vars(main))
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    # The end of the interpreter, but for taking thousands of modules apart, which takes longer than most programs here.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
