"""A self-contained HTML page: no network, readable on a phone, in light and dark, by keyboard and without scripts.

Pieces are functions from plain text to HTML; whatever is given is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from mixreg.report.intervals import Cell

# Such as "0.1234 ± 0.0123" and "holds in 30 of 30".
_LONGEST_NUMBER = 30


class Html(str):
    """Text that is HTML already."""


def text(content: str) -> Html:
    """Plain text as HTML."""
    return content if isinstance(content, Html) else Html(escape(content))


def element(tag: str, *content: str, **attributes: str) -> Html:
    """An element; an attribute's trailing underscore is dropped and others become hyphens."""
    named = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{tag}{named}>{''.join(text(part) for part in content)}</{tag}>")


def link(target: str, label: str) -> Html:
    """A link, as a rule to a place on the same page."""
    return element("a", label, href=target)


def drawing(svg: str, caption: str) -> Html:
    """A figure, which grows when it is asked to."""
    card = element("div", Html(svg), class_="card")
    return element(
        "figure", card, element("figcaption", caption), element("button", "Enlarge", class_="enlarge", type="button")
    )


def download(name: str, kind: str, content: str) -> Html:
    """A link by which a part of the page is kept as a file."""
    source = base64.b64encode(content.encode()).decode()
    return element("a", f"Download {name}", href=f"data:{kind};base64,{source}", download=name)


def grid(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    name: str = "",
    kinds: Sequence[str] | None = None,
) -> Html:
    """A table that scrolls by itself where it is wider than the page; the first cell of a row names it.

    Args:
        columns: their heads.
        rows: their cells; of a mean the values are told too.
        caption: of the table.
        name: of a table whose rows become paragraphs on a phone.
        kinds: of each row, to filter by.
    """
    head = element("thead", element("tr", *(element("th", column, scope="col") for column in columns)))
    lines = []
    for index, row in enumerate(rows):
        cells = [_cell(cell, column if name else "") for column, cell in zip(columns[1:], row[1:], strict=True)]
        kind = {} if kinds is None else {"data_kind": kinds[index]}
        lines.append(element("tr", element("th", row[0], scope="row"), *cells, **kind))
    shape = {"class_": f"{name} stacked"} if name else {}
    table = element("table", element("caption", caption), head, element("tbody", *lines), **shape)
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=caption)


def _cell(cell: str, column: str) -> Html:
    attributes = {} if isinstance(cell, Html) else {"class_": _kind(cell)}
    if isinstance(cell, Cell) and len(cell.values) > 1:
        attributes["title"] = "runs: " + ", ".join(f"{value:.6g}" for value in cell.values)
    if column and not isinstance(cell, Html):
        attributes["data_label"] = column
    return element("td", cell, **attributes)


def _kind(cell: str) -> str:
    """Numbers stay on one line; what goes on in words does not."""
    return "number" if cell[:1] in "+-−0123456789" and len(cell) <= _LONGEST_NUMBER else "words"


def verdict(words: str, kind: str) -> Html:
    """A verdict, told by words with a sign and by a colour; kind: good, bad, open, mended or faint."""
    return element("span", words, class_=kind)


def folded(title: str, *content: str) -> Html:
    """Something that is shown when it is asked for."""
    return element("details", element("summary", title), *content)


def definitions(pairs: Sequence[tuple[str, str]]) -> Html:
    """Names and what they stand for."""
    return element("ul", *(element("li", element("strong", name), ": ", content) for name, content in pairs))


def page(title: str, lead: Sequence[str], contents: Sequence[tuple[str, str]], sections: Sequence[str]) -> str:
    """The whole page.

    Args:
        title: its head.
        lead: paragraphs below it.
        contents: (anchor, name) of each section.
        sections: the sections, which carry those anchors.
    """
    places = element("ul", *(element("li", link(f"#{anchor}", name)) for anchor, name in contents))
    close = element("form", element("button", "Close"), method="dialog")
    body = [
        link("#content", "Skip to the results").replace("<a ", '<a class="skip" ', 1),
        element("header", element("h1", title), *lead),
        element("nav", places, aria_label="Sections"),
        element("main", *(Html(section) for section in sections), id="content"),
        element("dialog", close, element("div", class_="sheet"), id="large", aria_label="A figure in large"),
        element("p", id="told", role="status", hidden="hidden"),
    ]
    own = files("mixreg.report")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body>{''.join(body)}<script>{script}</script></body></html>\n"
    )
