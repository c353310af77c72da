"""One page from small sources: `js/*.js` in the order of their imports, `style.css`, `page.html`, `pictures/*.svg`.

The sources are ECMAScript modules, which browsers refuse to load from a file. Joined into one classic script they run
anywhere: imports go, `export` is dropped, and names must differ between files, which is checked. What the worker needs
(`js/worker.js` and all below it) stands in a script of its own, whose text the page starts the worker from; nothing is
there twice. Pictures stand where the page draws, for readers without scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path, PurePosixPath

from mixreg._support.files import write_bytes

_IMPORT = re.compile(r'^import \{[^}]*\} from "(?P<path>[^"]+)";\n', re.MULTILINE)
_TOP = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) +(\w+|\{[^}]*\}|\[[^\]]*\])", re.MULTILINE)
_ROOT = files("mixreg.report.explorer")


def _read(name: str) -> str:
    place = _ROOT
    for part in name.split("/"):
        place = place.joinpath(part)
    return place.read_text(encoding="utf-8")


def in_order(name: str, seen: Iterable[str] = ()) -> list[str]:
    """A module and all it imports, each after what it imports itself; those in `seen` are left out.

    >>> in_order("js/moments.js"), in_order("js/terms.js")[-1]
    (['js/moments.js'], 'js/terms.js')
    """
    order: list[str] = []
    folder = PurePosixPath(name).parent
    for match in _IMPORT.finditer(_read(name)):
        parts: list[str] = []
        for part in (folder / match["path"]).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        order += in_order("/".join(parts), [*seen, *order])
    return order if name in seen else [*order, name]


def joined(names: Iterable[str]) -> str:
    """Modules as one classic script."""
    return "\n".join(
        f"// {name}\n" + re.sub(r"^export ", "", _IMPORT.sub("", _read(name)), flags=re.MULTILINE) for name in names
    )


def _require_distinct(names: Iterable[str]) -> None:
    owner: dict[str, str] = {}
    for name in names:
        for found in _TOP.findall(_read(name)):
            for word in re.findall(r"\w+", found):
                if word in owner:
                    raise ValueError(f"{word} is defined in {owner[word]} and in {name}, expected different names")
                owner[word] = name


def _picture(match: re.Match[str]) -> str:
    place = _ROOT.joinpath("pictures").joinpath(f"{match[1]}.svg")
    return place.read_text(encoding="utf-8").strip() if place.is_file() else ""


def explorer_page() -> str:
    """The whole page, as HTML that needs nothing else."""
    shared = in_order("js/worker.js")
    own = in_order("js/main.js", shared)
    _require_distinct([*shared, *own])
    page = _read("page.html")
    page = re.sub(r"<!-- picture (\w+) -->", _picture, page)
    parts = {"style": _read("style.css"), "shared": joined(shared), "script": joined(own)}
    for key, content in parts.items():
        page = page.replace(f"/* {key} */", content)
    return page


def write_explorer(path: Path) -> None:
    """Replace `path` by the page."""
    write_bytes(path, explorer_page().encode())
