"""Where a result came from: the code, its libraries, the machine and the number of threads."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mixreg

_CHECKOUT = Path(mixreg.__file__).parents[1]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def provenance(seconds: float) -> dict[str, Any]:
    """What is noted beside a result that took so many seconds in this process."""
    import torch

    known = {
        "seconds": round(seconds, 3),
        "machine": platform.machine(),
        "system": platform.system(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scikit-learn": version("scikit-learn"),
        "mixreg": mixreg.__version__,
    }
    found = commit(_CHECKOUT)
    return known if found is None else known | {"commit": found}


@cache
def commit(folder: Path) -> str | None:
    """The commit of a checkout, and whether its code was changed since; None where `folder` is not one."""
    # Not whatever checkout an installed package happens to lie in.
    if not (folder / ".git").exists():
        return None
    found = _git(folder, "rev-parse", "--short=12", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", "mixreg")
    return f"{found} with changes" if found and changes else found or None


def _git(folder: Path, *arguments: str) -> str:
    """What Git says, without a lock or a change; nothing if it cannot."""
    elsewhere = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20, env=elsewhere)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
