"""Small bars: legible without colour, without JavaScript, without seeing them."""

import re
from xml.etree import ElementTree as ET

from django_rmq_retry.markup import sparkline


def heights(drawn: str) -> list[int]:
    return [int(found) for found in re.findall(r'<rect [^>]*height="(\d+)"', drawn)]


def test_the_highest_count_fills_the_height_and_one_stays_visible() -> None:
    assert heights(sparkline([0, 1, 500, 1000], title="t")) == [1, 2, 12, 24]


def test_no_counts_draw_no_bars() -> None:
    assert heights(sparkline([], title="t")) == []
    assert heights(sparkline([0, 0], title="t")) == [1, 1]


def test_the_title_of_a_sparkline_is_escaped() -> None:
    drawn = sparkline([1], title='<script>alert("x")</script>')
    (title,) = ET.fromstring(drawn).iter("title")  # noqa: S314 - made here

    assert title.text == '<script>alert("x")</script>'
    assert "<script>" not in drawn
    assert "style=" not in drawn
