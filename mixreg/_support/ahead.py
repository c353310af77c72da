"""Work beside the main thread: what comes next is made ready while what is there is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item], most: int = 2) -> Iterator[Item]:
    """The items in their order, taken from `items` by a thread that is at most so many ahead.

    An error that `items` raises is raised where its item would have come.
    """
    # One thread, so that one item is asked for at a time.
    yield from in_order(_calls(iter(items)), most)


def _calls(items: Iterator[Item]) -> Iterator[Callable[[], Item]]:
    """Calls that each take the next item, of which nobody knows how many there are."""
    while True:
        yield items.__next__


def in_order(calls: Iterable[Callable[[], Item]], most: int = 2) -> Iterator[Item]:
    """What calls return, in their order, each carried out by one thread; ends where a call says `StopIteration`."""
    pending: deque[Future[Item]] = deque()
    with ThreadPoolExecutor(1) as pool:
        try:
            for call in calls:
                pending.append(pool.submit(_kept, call))
                if len(pending) > most:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except _EndError:
            return
        finally:
            for future in pending:
                future.cancel()


class _EndError(Exception):
    """There is no further item."""


def _kept(call: Callable[[], Item]) -> Item:
    try:
        return call()
    except StopIteration:
        # A future cannot carry it.
        raise _EndError from None
