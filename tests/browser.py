"""A real browser, in which a page describes itself."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
NO_BROWSER = "Chromium is not installed"
# What is skipped for it is told at the end of all tests; MIXREG_BROWSER=required makes it an error.
NEEDS_BROWSER = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)


def look(page: Path, probe: str, tmp_path: Path, size: str, *options: str) -> dict:
    """Open a page with a script at its end, which leaves JSON in <pre id=result>."""
    probed = page.with_name(f"probed-{page.name}")
    probed.write_text(page.read_text().replace("</body>", probe))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--window-size={size}", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000"]
    command += [*options, "--dump-dom", probed.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="result">(.*?)</pre>', shown, re.DOTALL)
    assert found, shown[-2000:]
    return json.loads(found.group(1))


def pytest_configure(config) -> None:
    if os.environ.get("MIXREG_BROWSER") == "required" and CHROMIUM is None:
        raise pytest.UsageError(f"MIXREG_BROWSER=required, and {NO_BROWSER}.")


def pytest_terminal_summary(terminalreporter) -> None:
    """What no browser looked at is said where everybody looks, not only as one letter among thousands."""
    unseen = [report for report in terminalreporter.stats.get("skipped", []) if NO_BROWSER in str(report.longrepr)]
    if unseen:
        terminalreporter.section("NOT RUN: browser tests", yellow=True)
        terminalreporter.line(f"{NO_BROWSER}: {len(unseen)} tests of pages were not run.")
