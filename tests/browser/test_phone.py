"""Pages on a phone: tables without headers, whose values keep their labels."""

import pytest

from tests.browser.conftest import Sit
from tests.browser.test_barriers import PAGES

pytestmark = pytest.mark.nightly

TABLES = ":is(.rmq-stacked, .rmq-messages, #result_list)"
NAMELESS = """(tables) => [...document.querySelectorAll(`${tables} tbody td`)]
  .filter((one) => one.checkVisibility() && !one.querySelector("input, a"))
  .filter((one) => /^\\s*[-\\u2013\\d][-\\u2013\\d.,\\s]*$/.test(one.textContent))
  .map((one) => `${one.className}: ${one.textContent.trim()}`)"""
EMPTY = """(tables) => [...document.querySelectorAll(`${tables} tbody td:has(.rmq-label)`)]
  .filter((one) => one.textContent.trim() === one.querySelector(".rmq-label").textContent.trim())
  .map((one) => one.textContent.trim())"""
NARROW = """(tables) => [...document.querySelectorAll(`${tables} caption:not(.visually-hidden)`)]
  .filter((one) => one.offsetWidth < 0.9 * one.closest("table").offsetWidth).map((one) => one.textContent)"""
LISTS = ("messages", "group", "message", "runs", "audit", "status", "blocked keys", "outbox")


def seen(sit: Sit, script: str) -> dict[str, list[str]]:
    """Findings of the script on a phone, by page."""
    lead = sit(width=390)
    found = {}
    for name in LISTS:
        lead.go(PAGES[name])
        assert lead.page.locator(TABLES).count() > 0, name
        found[name] = lead.page.evaluate(script, TABLES)
    return {name: some for name, some in found.items() if some}


def test_each_number_in_a_table_keeps_its_label(sit: Sit) -> None:
    assert seen(sit, NAMELESS) == {}


def test_each_label_in_a_table_has_a_value(sit: Sit) -> None:
    assert seen(sit, EMPTY) == {}


def test_the_caption_of_a_table_is_as_wide_as_the_table(sit: Sit) -> None:
    assert seen(sit, NARROW) == {}
