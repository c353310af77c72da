"""Runs on worker processes of this machine, which may die.

A worker marks in memory that it shares with its driver, and with nobody else, what it is at: loading the code of a run,
or carrying it out. When one dies the driver knows what to blame. A run is given up after three deaths, a kind of run
whose code ends the process when it is loaded likewise, and all of them if workers die three times before they get to
anything.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, MutableSequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from mixreg.experiments.experiment import Kind
from mixreg.experiments.store import Run
from mixreg.experiments.workers import (
    ATTEMPTS,
    POLL_SECONDS,
    Outcome,
    Result,
    SweepError,
    Workers,
    carry_out,
    die_with_driver,
    portable,
)

# Fresh processes: forked ones would share PyTorch's threads and locks.
_CONTEXT = multiprocessing.get_context("spawn")
# One number per run: the process that carries it out, negative while it loads the run's code, 0 if there is none.
Marks = MutableSequence[int]


def on_this_machine(pending: list[Run], folder: Path, kinds: Mapping[str, Kind], workers: Workers) -> Iterator[Outcome]:
    """What becomes of all runs."""
    left = {run.key: run for run in pending}
    deaths: Counter[str] = Counter()
    while left:
        runs = list(left.values())
        marks: Marks = _CONTEXT.RawArray("l", len(runs))
        crew: list[BaseProcess] = []
        try:
            yield from _one_pool(left, marks, crew, folder, kinds, workers)
        except BrokenProcessPool:
            if len(left) < len(runs):
                # Some workers did get to something.
                deaths[""] = 0
            for cause, sentence, concerned in _causes(runs, marks, crew):
                deaths[cause] += 1
                if deaths[cause] >= ATTEMPTS:
                    for key in [run.key for run in concerned if run.key in left]:
                        yield left.pop(key), SweepError(sentence)


def _causes(runs: list[Run], marks: Marks, crew: list[BaseProcess]) -> Iterator[tuple[str, str, list[Run]]]:
    """What dead workers were at: a name for it, what to say if it goes on, and the runs that it concerns."""
    # Those that did not die by themselves were terminated with the pool.
    dead = [worker.pid for worker in crew if worker.exitcode not in (0, None, -signal.SIGTERM)]
    guilty = set(dead or [worker.pid for worker in crew])
    at_work = [run for run, mark in zip(runs, marks, strict=True) if mark in guilty]
    loading = {run.kind for run, mark in zip(runs, marks, strict=True) if -mark in guilty}
    for run in at_work:
        yield run.key, f"its worker process died {ATTEMPTS} times", [run]
    for kind in loading:
        sentence = f"worker processes died {ATTEMPTS} times while they imported the code of {kind!r} runs"
        yield f"kind {kind}", sentence, [run for run in runs if run.kind == kind]
    if not at_work and not loading:
        yield "", f"worker processes died {ATTEMPTS} times in a row before they began a run", runs


def _one_pool(
    left: dict[str, Run],
    marks: Marks,
    crew: list[BaseProcess],
    folder: Path,
    kinds: Mapping[str, Kind],
    workers: Workers,
) -> Iterator[Outcome]:
    """Carry out what is left, until a worker dies; finished runs are taken out of `left`."""
    others = set(multiprocessing.active_children())
    count = min(workers.count, len(left))
    pool = ProcessPoolExecutor(count, mp_context=_CONTEXT, initializer=_begin, initargs=(marks,))
    try:
        tasks = {}
        for index, run in enumerate(list(left.values())):
            try:
                # Unpacked inside the run: code that cannot be imported is an error of the run, not its worker's end.
                packed = pickle.dumps((kinds[run.kind], run.settings))
            except Exception as error:
                yield left.pop(run.key), error
                continue
            tasks[pool.submit(_marked, index, packed, str(folder / run.key), workers.threads_per_run)] = run
            crew[:] = set(multiprocessing.active_children()) - others | set(crew)
        is_missed = False
        while tasks:
            done, _ = wait(tasks, POLL_SECONDS, return_when=FIRST_COMPLETED)
            # The pool itself can miss the death of a worker that it started while it was looking at the others.
            if not done and is_missed:
                raise BrokenProcessPool("a worker process died")
            is_missed = any(worker.exitcode is not None for worker in crew if worker not in others)
            for task in done:
                result = _result(task)
                run = tasks.pop(task)
                del left[run.key]
                yield run, result
            yield None
        pool.shutdown()
    except BaseException as error:
        # Whatever it is, nobody waits for runs that nobody will ask about.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        # Of workers that died one wants to know how.
        pool.shutdown(wait=isinstance(error, BrokenProcessPool), cancel_futures=True)
        raise


_marks: Marks = []


def _begin(marks: Marks) -> None:
    global _marks
    _marks = marks
    die_with_driver()


def _marked(index: int, packed: bytes, folder: str, threads: int) -> Result | Exception:
    """In a worker: carry out a run, and mark what is going on."""

    def mark(process: int) -> None:
        _marks[index] = process

    try:
        mark(-os.getpid())
        kind, settings = pickle.loads(packed)
        # While another sweep is at the run, this one only waits.
        mark(0)
        return carry_out(kind, settings, folder, threads, lambda: mark(os.getpid()))
    except Exception as error:
        return portable(error)
    finally:
        mark(0)


def _result(task: Future[Any]) -> Result | Exception:
    try:
        found: Result | Exception = task.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        return error
    return found
