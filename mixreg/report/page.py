"""A self-contained HTML page: no network, readable on a phone, in light and dark, and with the keyboard alone.

Pieces are functions from plain text to HTML; whatever is given is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from importlib.resources import files


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


def picture(png: bytes, description: str, caption: str) -> Html:
    """A figure, embedded."""
    source = base64.b64encode(png).decode()
    image = Html(f'<img alt="{escape(description)}" src="data:image/png;base64,{source}">')
    return element("figure", image, element("figcaption", caption))


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Html:
    """A table that scrolls by itself where it is wider than the page; the first cell of a row names it."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in columns)))
    lines = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, **({} if isinstance(cell, Html) else {"class_": _kind(cell)})) for cell in row[1:]),
        )
        for row in rows
    ]
    table = element("table", element("caption", caption), head, element("tbody", *lines))
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=caption)


def _kind(cell: str) -> str:
    """Numbers stay on one line."""
    return "number" if cell[:1] in "+-−0123456789" else "words"


def verdict(words: str, kind: str) -> Html:
    """A verdict, told by words with a sign and by a colour; kind: good, bad, open or faint."""
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
    body = [
        link("#content", "Skip to the results").replace("<a ", '<a class="skip" ', 1),
        element("header", element("h1", title), *lead, element("nav", places, aria_label="Experiments")),
        element("main", *(Html(section) for section in sections), id="content"),
    ]
    style = files("mixreg.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )
