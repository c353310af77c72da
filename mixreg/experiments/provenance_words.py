"""The provenance of a chapter's runs, in words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mixreg.experiments.summary import Chapter
from mixreg.report import page

_VERSIONS = ("mixreg", "python", "torch", "numpy", "scikit-learn")


def provenance_list(chapter: Chapter) -> page.Html:
    """Command, sizes, runs, seeds, dates, versions, commit and machine."""
    origins = [record["provenance"] for record in chapter.records]

    def all_of(key: str) -> str:
        """The values of a key, each once; runs of older versions know fewer."""
        return ", ".join(sorted({str(origin[key]) for origin in origins if key in origin}))

    seeds = sorted({str(s) for r in chapter.records if (s := _seed(r["settings"])) is not None}, key=int)
    finished = [time.strftime("%Y-%m-%d", time.gmtime(record["finished"])) for record in chapter.records]
    pairs = [
        ("Command", page.element("code", chapter.command)),
        ("Sizes", ", ".join(f"{key} = {value}" for key, value in chapter.sizes.items())),
        ("Runs", f"{len(origins)}, {sum(o['seconds'] for o in origins):,.0f} s (of the last attempt at each)"),
        ("Seeds", ", ".join(seeds) or "one per repetition, from 0 on"),
        ("Finished", f"{min(finished)} to {max(finished)}"),
        ("Versions", ", ".join(f"{name} {all_of(name)}" for name in _VERSIONS if all_of(name))),
        ("Commit", all_of("commit") or "not noted"),
        ("Machine", machine_words(origins)),
    ]
    return page.definitions(pairs)


def machine_words(origins: Sequence[dict[str, Any]]) -> str:
    """What the runs were carried out on: each machine once, with what is known of it."""
    found = set()
    for origin in origins:
        cores = f"{origin['cores']} cores" if "cores" in origin else "number of cores not noted"
        found.add(f"{origin['system']} {origin['machine']}, {cores}, threads per run: {origin['threads']}")
    return "; ".join(sorted(found))


def _seed(settings: dict[str, Any]) -> int | None:
    found: int | None = settings.get("seed", settings.get("config", {}).get("seed"))
    return found
