"""Items made ready by a thread: their order, their errors, and how far ahead it runs."""

import threading

import pytest

from mixreg._support.ahead import ahead, in_order


def test_the_same_items_in_the_same_order_from_another_thread() -> None:
    threads = []

    def items():
        for k in range(20):
            threads.append(threading.get_ident())
            yield k

    assert list(ahead(items())) == list(range(20))
    assert list(ahead([])) == []
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_it_is_never_further_ahead_than_it_may_be() -> None:
    taken = []

    def items():
        for k in range(50):
            taken.append(k)
            yield k

    for k in ahead(items(), most=3):
        assert len(taken) <= k + 5


def test_an_error_comes_in_its_place() -> None:
    def items():
        yield from (1, 2)
        raise ValueError("the third is broken")

    found = []
    with pytest.raises(ValueError, match="the third is broken"):
        found.extend(iter_keeping(ahead(items()), found))
    assert found == [1, 2]


def iter_keeping(items, found):
    for item in items:
        found.append(item)
    return []


def test_calls_end_with_whoever_stops_asking() -> None:
    done = []
    results = in_order((lambda k=k: done.append(k) for k in range(1000)), most=2)
    next(results)
    results.close()
    assert len(done) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]
