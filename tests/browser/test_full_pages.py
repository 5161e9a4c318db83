"""Pages on which every column holds something: they fit a small screen and a phone, in languages with long words."""

import pytest

from tests.browser.bank import FINE
from tests.browser.conftest import Sit
from tests.browser.pages import PAGES

SCENE = "bank"
BROKEN = """[...document.querySelectorAll(":is(.rmq-queues, .rmq-levels, .rmq-processes) tbody th")]
  .filter((one) => one.checkVisibility())
  .filter((one) => {
    const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(text);
      if (text.data.trim() && range.getClientRects().length > 1 && !text.data.trim().includes(" ")) return true;
    }
    return false;
  }).map((one) => one.textContent)"""
"""The names of queues that are broken within a word between two dots."""
ZEROS = """[...document.querySelectorAll(".rmq-queues td.rmq-number")].filter((one) => one.checkVisibility())
  .map((one) => one.textContent.trim()).filter((one) => / [0\\u2013]$/.test(one) && !one.startsWith("Consumer"))"""


@pytest.mark.parametrize("language", ["en-GB", "de", "fr", "ru", "uk", "zh-CN"])
def test_pages_fit_a_small_screen_and_no_name_is_broken(sit: Sit, language: str) -> None:
    """In German the page was 288 pixels wider than a screen of 1,280."""
    lead, wide, broken = sit(language=language), [], {}
    for name in ("queues", "status", "consumers"):
        lead.go(PAGES[name])
        lead.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        wide += [name] if lead.scrolls_sideways() else []
        broken[name] = lead.page.evaluate(BROKEN)

    assert (wide, broken) == ([], {"queues": [], "status": [], "consumers": []})


def test_on_a_phone_nothing_is_told_of_what_a_queue_does_not_hold(sit: Sit) -> None:
    lead = sit(width=390, language="de")
    lead.go(PAGES["queues"])
    folded = lead.page.locator("details.rmq-fine summary").inner_text()

    assert f"In {len(FINE)} Warteschlangen wartet nichts" in folded
    assert lead.page.evaluate(ZEROS) == []
    assert not lead.scrolls_sideways()
    assert lead.page.evaluate("document.body.scrollHeight") < 2_500


def test_on_a_phone_the_numbers_of_many_pages_wrap(sit: Sit) -> None:
    lead = sit(width=390)
    lead.go(PAGES["messages"])
    links = "".join(f'<li><a href="?p={page}">{page}</a></li>' for page in range(1, 15))
    lead.page.evaluate("(links) => { document.querySelector('.paginator').innerHTML = `<ul>${links}</ul>`; }", links)

    assert not lead.scrolls_sideways()
