"""Rows of text that are made together are those that `csv` makes one by one."""

import csv
import io

import numpy as np

from mixreg.evaluation.text_rows import fractions, joined, texts, whole_numbers


def test_columns_joined_are_what_formatting_one_by_one_gives() -> None:
    rng = np.random.default_rng(0)
    numbers = np.array([0, 1, 9, 10, 11, 99, 100, 101, 999_999, 1_000_000, 10**12])
    p = np.concatenate([[0.0, 1.0, 0.5, 1e-9, 0.99999999, 0.999999999], rng.random(5)])
    names = ["a", "", "größer", "x" * 40]
    chosen = rng.integers(0, len(names), len(numbers))
    expected = "".join(
        f"{number},{names[k]},{value:.8f}\n" for number, k, value in zip(numbers, chosen, p, strict=True)
    )
    found = joined([whole_numbers(numbers), texts(names, chosen), fractions(p)])
    assert found.decode() == expected
    assert joined([whole_numbers(np.arange(0))]) == b""


def test_what_is_written_is_read_back_by_another_reader() -> None:
    n = 1000
    p = np.random.default_rng(1).random(n).astype(np.float32)
    found = joined([whole_numbers(np.arange(n)), fractions(p)]).decode()
    rows = list(csv.reader(io.StringIO(found)))
    assert [int(row[0]) for row in rows] == list(range(n))
    np.testing.assert_allclose([float(row[1]) for row in rows], p, atol=5.1e-9, rtol=0)


def test_numbers_of_one_width_and_of_several() -> None:
    for start in (0, 5, 95, 990, 9_990, 99_990, 10**8 - 5, 12_345_678):
        numbers = np.arange(start, start + 40)
        assert joined([whole_numbers(numbers)]).decode() == "".join(f"{number}\n" for number in numbers)


def test_columns_of_no_width_leave_their_commas() -> None:
    assert joined([texts(["", ""], np.array([0, 1])), whole_numbers(np.array([7, 8]))]) == b",7\n,8\n"
