"""The gallery: every file of `examples/` with what it printed, its picture and its code.

    python docs/gallery.py            # runs those whose source is another one than when they were run last

What a run printed is kept in docs/measured/gallery.json with the checksum of its source, so that a page never shows
what another version printed. `examples/cifar10.py` takes hours; its runs are stored in results/cifar10.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gallery_pictures
from readme import example, for_site

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTED = ROOT / "docs" / "measured" / "gallery.json"
_LONG = "cifar10"
# What an example drew by itself, where it is kept, and what it shows.
_DRAWN = {
    "digits": (
        "out/digits/reliability.png",
        "images/digits-reliability.png",
        "Reliability diagrams on digits: ERM, Mixup, rescaled Mixup",
    ),
}
# Simple ones first.
_ORDER = ["digits", "cifar10", "sklearn_digits", "lightning_digits", "huggingface_digits"]
_PROGRESS = re.compile(r"^(?:.*(?:━ +\d+/\d+ runs|it/s)|\{'train_runtime).*\n", re.MULTILINE)


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def store() -> None:
    """Run what was not run as it stands now, and keep what it prints."""
    kept = json.loads(PRINTED.read_text(encoding="utf-8")) if PRINTED.exists() else {}
    for path in EXAMPLES:
        if path.stem == _LONG or kept.get(path.stem, {}).get("source") == checksum(path):
            continue
        environment = os.environ | {"COLUMNS": "88", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, str(path)]
        run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        kept[path.stem] = {"source": checksum(path), "printed": _PROGRESS.sub("", run.stdout).strip()}
        if path.stem in _DRAWN:
            drawn, address, _ = _DRAWN[path.stem]
            shutil.copyfile(ROOT / drawn, ROOT / "docs" / address)
        PRINTED.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n", "utf-8")


def gallery() -> str:
    """All examples, each a section."""
    kept = json.loads(PRINTED.read_text(encoding="utf-8"))
    named = {path.stem: path for path in EXAMPLES}
    order = _ORDER + [name for name in named if name not in _ORDER]
    return "\n\n".join(_section(named[name], kept.get(name)) for name in order)


def _section(path: Path, kept: dict[str, str] | None) -> str:
    module = ast.parse(path.read_text(encoding="utf-8"))
    title, _, more = (ast.get_docstring(module) or "").partition("\n")
    head, _, rest = title.rstrip(".").partition(":")
    about = [paragraph for paragraph in more.split("\n\n") if paragraph and not _is_command(paragraph)]
    parts = [f"## {head} {{ #{path.stem.replace('_', '-')} }}", _sentence(rest), *about]
    if path.stem == _LONG:
        parts.append(for_site(example()) or "Its runs are under way; table and picture come with them.")
    elif kept is not None:
        parts.append(f"```text\n$ python examples/{path.name}\n{kept['printed']}\n```")
    if path.stem in _DRAWN:
        _, address, words = _DRAWN[path.stem]
        parts.append(f"![{words}]({address})")
    elif path.stem in gallery_pictures.names():
        parts.append(f"![{gallery_pictures.words(path.stem)}](images/gallery/{path.stem}.svg)")
    code = "\n".join(f"    {line}".rstrip() for line in f"```py\n{shown_code(path)}\n```".split("\n"))
    parts.append(f'??? example "examples/{path.name}"\n\n{code}')
    return "\n\n".join(part for part in parts if part)


def pictures() -> dict[str, bytes]:
    """Addresses on the site, with the pictures that are drawn of what is kept."""
    kept = json.loads(PRINTED.read_text(encoding="utf-8"))
    return {
        f"images/gallery/{name}.svg": gallery_pictures.svg(name, kept[name]["printed"])
        for name in gallery_pictures.names()
    }


def _is_command(paragraph: str) -> bool:
    return paragraph.lstrip().startswith(("python ", "pip "))


def _sentence(words: str) -> str:
    words = words.strip()
    return f"{words[0].upper()}{words[1:]}." if words else ""


def shown_code(path: Path) -> str:
    """The source without its docstring, which stands above it, in lines that fit a page."""
    text = path.read_text(encoding="utf-8")
    first = ast.parse(text).body[0]
    assert first.end_lineno is not None
    code = "".join(text.splitlines(keepends=True)[first.end_lineno :])
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "88", "--stdin-filename", path.name, "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    store()
