"""The drawings of the documentation fit into its column, in light and in dark."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tooling.pages import DOCS, PAGES

DRAWINGS = sorted((DOCS / "images").glob("*.svg"))
WIDEST = 700
"""Pixels: a wider drawing is scaled down or cut off beside the menu."""


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
