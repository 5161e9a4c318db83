"""The drawings of the documentation fit into its column, in light and in dark."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tooling.pages import DOCS, PAGES

DRAWINGS = sorted((DOCS / "images").glob("*.svg"))
WIDEST = 700
"""Pixels: a wider drawing is scaled down or cut off beside the menu."""


SVG = "{http://www.w3.org/2000/svg}"
NEAR = 4
"""Pixels between the end of an arrow and its box."""


def boxes(root: ElementTree.Element) -> dict[str, tuple[float, float, float, float]]:
    """Return the corners of each box under its title, the text that follows it."""
    found = {}
    for box, title in pairwise(root):
        if box.tag == f"{SVG}rect" and title.tag == f"{SVG}text":
            x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
            found[title.text or ""] = (x, y, x + width, y + height)
    return found


def arrows(path: Path) -> set[tuple[str, str]]:
    """Return the titles of the boxes at the ends of each arrow; an end at no box is left out."""
    root = ElementTree.fromstring(path.read_text())  # noqa: S314 - our own
    known = boxes(root)

    def at(x: float, y: float) -> str:
        return next(
            (
                title
                for title, (left, top, right, bottom) in known.items()
                if left - NEAR <= x <= right + NEAR and top - NEAR <= y <= bottom + NEAR
            ),
            "",
        )

    found = set()
    for edge in root.iter(f"{SVG}path"):
        if "edge" not in edge.attrib.get("class", "").split():
            continue
        x = y = 0.0
        points = []
        for letter, first, second in re.findall(r"([MHVL])([\d.]+)(?: ([\d.]+))?", edge.attrib["d"]):
            x, y = {"H": (first, y), "V": (x, first)}.get(letter, (first, second or y))
            x, y = float(x), float(y)
            points.append((x, y))
        found.add((at(*points[0]), at(*points[-1])))
    return found


def test_the_drawing_of_a_breaker_has_an_arrow_for_each_change_of_its_state() -> None:
    assert arrows(DOCS / "images" / "breaker.svg") == {
        ("closed", "open"),
        ("open", "half-open"),
        ("half-open", "open"),
        ("half-open", "closed"),
    }


@pytest.mark.parametrize("path", [path for path in DRAWINGS if path.stem != "trace"], ids=lambda path: path.stem)
def test_an_arrow_leads_to_or_from_each_box_of_a_drawing(path: Path) -> None:
    """In the drawing of a trace, boxes are spans."""
    root = ElementTree.fromstring(path.read_text())  # noqa: S314 - our own

    assert set(boxes(root)) - {title for ends in arrows(path) for title in ends} == set()


def test_the_documentation_has_drawings() -> None:
    assert len(DRAWINGS) > 5


@pytest.mark.parametrize("path", DRAWINGS, ids=[path.stem for path in DRAWINGS])
def test_a_drawing_fits_its_page_in_light_and_dark(path: Path) -> None:
    text = path.read_text()
    root = ElementTree.fromstring(text)  # noqa: S314 - our own

    assert int(root.attrib["width"]) <= WIDEST
    assert "prefers-color-scheme: dark" in text
    assert root.attrib["aria-label"]
    assert [page.name for page in PAGES if re.search(rf"images/{path.name}\b", page.read_text())]
