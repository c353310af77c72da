"""Figures as small SVG: what Matplotlib writes, without what nobody sees; by itself, and as a part of a page.

Coordinates are rounded to a hundredth of a point, metadata and unused names go, and text stays text, in a font that
most have. As a part of a page its names get a prefix, so that those of several figures do not meet, and it loses its
caption, which the page says in its own words. The ground stays white on dark pages: the palette is chosen for it.
"""

from __future__ import annotations

import re
from html import escape
from xml.etree import ElementTree

from mixreg.report.curves import CAPTION

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_FONT = "DejaVu Sans,Verdana,sans-serif"
# What paths, places and sizes are made of; colours and names are no numbers.
_NUMBERS = ("d", "x", "y", "width", "height", "transform", "points", "viewBox")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_DIGITS = 2
# Below the last line of a caption, in points.
_BELOW_CAPTION = 5.0


def standalone(svg: str) -> str:
    """A figure as a file: small, and of its own size."""
    root = _tidied(svg)
    ElementTree.register_namespace("", _SVG[1:-1])
    ElementTree.register_namespace("xlink", _LINK[1:].partition("}")[0])
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def embedded(svg: str, name: str, description: str) -> str:
    """A figure as a part of an HTML page, as wide as there is room for.

    Args:
        svg: the file's text.
        name: which no other figure of the page has.
        description: for those who do not see it.
    """
    root = _tidied(svg)
    _drop_caption(root)
    text = re.sub(r"<(/?)ns\d+:", r"<\1", ElementTree.tostring(root, encoding="unicode"))
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" {_described(description)}>', text, count=1
    )
    text = re.sub(r' \w+:href="', ' href="', text)
    short = {found: f"{name}-{index}" for index, found in enumerate(dict.fromkeys(re.findall(r' id="([^"]*)"', text)))}
    return re.sub(r'( id="|href="#|url\(#)([^")]+)', lambda at: at[1] + short[at[2]], text)


def _described(description: str) -> str:
    about = f'role="img" aria-label="{escape(description)}"'
    return f'{about} stroke-linejoin="round" font-family="{_FONT}"'


def _tidied(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    root.attrib |= {"stroke-linejoin": "round", "font-family": _FONT}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    used = _used_names(root)
    for element in root.iter():
        _tidy(element, used)
    _drop_repeated_styles(root)
    _unwrap(root)
    return root


def _used_names(root: ElementTree.Element) -> set[str]:
    """Names that something refers to."""
    values = [value for element in root.iter() for value in element.attrib.values()]
    return {
        CAPTION,
        *(name for value in values for name in re.findall(r"^#(\S+)|url\(#([^)]+)\)", value) for name in name),
    }


def _tidy(element: ElementTree.Element, used: set[str]) -> None:
    """Shorten what an element says."""
    if element.get("id") not in used:
        element.attrib.pop("id", None)
    for key in _NUMBERS:
        if key in element.attrib:
            element.set(key, " ".join(_NUMBER.sub(_rounded, element.attrib[key]).split()))
    if (path := element.get("d")) is not None:
        element.set("d", re.sub(r" ?([A-Za-z]) ?", r"\1", path))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if (link := element.get(_LINK)) is not None:
        element.set(_LINK, "".join(link.split()))
    if "style" in element.attrib:
        parts = [part.strip().replace(": ", ":") for part in element.attrib["style"].split(";")]
        kept = [part for part in parts if part and not part.startswith(("font-family", "stroke-dashoffset:0"))]
        element.set("style", _NUMBER.sub(_rounded, ";".join(kept)))
        if not kept:
            del element.attrib["style"]
    element.text, element.tail = ((part or "").strip("\n ") for part in (element.text, element.tail))


def _drop_repeated_styles(root: ElementTree.Element) -> None:
    """A mark says how it looks; the places where it is used need not."""
    looks = {f"#{mark.get('id')}": mark.get("style", "").split(";") for mark in root.iter(f"{_SVG}path")}
    for use in root.iter(f"{_SVG}use"):
        said = looks.get(use.get(_LINK, ""), [])
        kept = [part for part in use.attrib.pop("style", "").split(";") if part and part not in said]
        if kept:
            use.set("style", ";".join(kept))


def _rounded(number: re.Match[str]) -> str:
    value = f"{float(number.group()):.{_DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if value == "-0" else value


def _unwrap(parent: ElementTree.Element) -> None:
    """Groups that say nothing give way to what they hold."""
    found: list[ElementTree.Element] = []
    for child in list(parent):
        _unwrap(child)
        found += list(child) if child.tag == f"{_SVG}g" and not child.attrib else [child]
    parent[:] = found


def _drop_caption(root: ElementTree.Element) -> None:
    """The caption goes, and the room above the figure that it took."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get("id") == CAPTION:
                parent.remove(child)
                texts = list(child.iter(f"{_SVG}text"))
                bottoms = [_bottom(text) for text in texts]
                left, top, width, height = (float(part) for part in root.attrib["viewBox"].split())
                cut = max(bottoms, default=0.0) + _BELOW_CAPTION
                root.set("viewBox", f"{left:g} {top + cut:g} {width:g} {height - cut:g}")


def _bottom(text: ElementTree.Element) -> float:
    """The base line of a text."""
    if moved := re.match(r"translate\(\S+ ([\d.]+)\)", text.get("transform", "")):
        return float(moved.group(1))
    return float(text.get("y", "0"))
