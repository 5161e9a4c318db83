"""Small bars: legible without colour, without JavaScript, without seeing them."""

import re
from datetime import datetime, timedelta
from xml.etree import ElementTree as ET

from django.utils import timezone

from django_rmq_retry.markup import chart, sparkline


def heights(drawn: str) -> list[int]:
    return [int(found) for found in re.findall(r'<rect [^>]*height="(\d+)"', drawn)]


def test_the_highest_count_fills_the_height_and_one_stays_visible() -> None:
    assert heights(sparkline([0, 1, 500, 1000], title="t")) == [1, 2, 12, 24]


def test_a_chart_has_a_time_below_every_third_bar() -> None:
    noon = timezone.make_aware(datetime(2026, 11, 28, 12))  # noqa: DTZ001 - it gets the reader's zone
    starts = [noon + timedelta(minutes=10 * place) for place in range(18)]
    drawn = chart([0] * 17 + [4], starts, title="t")

    assert re.findall(r">(\d\d:\d\d)<", drawn) == ["12:00", "12:30", "13:00", "13:30", "14:00", "14:30"]
    assert heights(drawn)[-1] == 60
    assert 500 < int(re.findall(r'width="(\d+)"', drawn)[0]) < 550


def test_no_counts_draw_no_bars() -> None:
    assert heights(sparkline([], title="t")) == []
    assert heights(sparkline([0, 0], title="t")) == [1, 1]


def test_the_title_of_a_sparkline_is_escaped() -> None:
    drawn = sparkline([1], title='<script>alert("x")</script>')
    (title,) = ET.fromstring(drawn).iter("title")  # noqa: S314 - made here

    assert title.text == '<script>alert("x")</script>'
    assert "<script>" not in drawn
    assert "style=" not in drawn
