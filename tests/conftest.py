import os

import pytest
import torch
from browser import CHROMIUM, NO_BROWSER
from hypothesis import settings

# Two cores: a deadline would test the machine, not the code. Derandomised so that a failure can be repeated.
settings.register_profile("mixreg", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("mixreg")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20220101)


def pytest_configure(config) -> None:
    if os.environ.get("MIXREG_BROWSER") == "required" and CHROMIUM is None:
        raise pytest.UsageError(f"MIXREG_BROWSER=required, and {NO_BROWSER}.")


def pytest_terminal_summary(terminalreporter) -> None:
    """What no browser looked at is said where everybody looks, not only as one letter among thousands."""
    unseen = [report for report in terminalreporter.stats.get("skipped", []) if NO_BROWSER in str(report.longrepr)]
    if unseen:
        terminalreporter.section("NOT RUN: browser tests", yellow=True)
        terminalreporter.line(f"{NO_BROWSER}: {len(unseen)} tests of pages were not run.")
