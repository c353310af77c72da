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
