"""The audit log on paper: what it is, names and reasons in full, and words that stay whole."""

import pytest

from tests.browser.conftest import Sit
from tests.browser.pages import AUDIT

SPLIT = """() => [...document.querySelectorAll('#result_list .rmq-word')].filter((one) => one.checkVisibility())
  .filter((one) => one.offsetHeight > 1.9 * parseFloat(getComputedStyle(one).lineHeight) &&
    one.offsetWidth < one.closest('td, th').clientWidth - 12).map((one) => one.textContent)"""
"""Words on several lines although their column has room for them."""
BELOW = """() => [...document.querySelectorAll('#main *')].filter((one) => one.checkVisibility()
  && one.getBoundingClientRect().top >= document.querySelector('#result_list').getBoundingClientRect().bottom
  && one.getBoundingClientRect().height).map((one) => one.outerHTML.slice(0, 80))"""
"""What takes room below the table."""


@pytest.mark.nightly
@pytest.mark.parametrize("language", ["en-GB", "de", "ru"])
def test_the_printed_audit_log_has_a_head_and_whole_words(sit: Sit, language: str) -> None:
    # A4 within its margins.
    lead = sit(width=718, language=language)
    head, cut = lead.page.locator("div.rmq-paper"), lead.page.locator("#result_list .rmq-screen")
    lead.go(f"{AUDIT}/?source=admin")
    on_screen = head.is_visible(), cut.first.is_visible()
    lead.page.emulate_media(media="print")
    whole = lead.page.locator("#result_list .field-why").filter(has_text="INC-553").last.inner_text()

    assert on_screen == (False, True)
    assert (head.is_visible(), cut.first.is_visible()) == (True, False)
    assert ": admin" in head.inner_text()
    assert ("…" in whole, "INC-553" in whole) == (False, True)
    assert lead.page.evaluate(SPLIT) == []
    assert lead.page.evaluate(BELOW) == []
    assert not lead.scrolls_sideways()


@pytest.mark.nightly
def test_a_long_audit_log_is_printed_on_several_sheets(sit: Sit) -> None:
    lead = sit()
    lead.go(f"{AUDIT}/")
    sheets = lead.page.pdf(width="12cm", height="12cm").count(b"/Type /Page\n")

    assert sheets > 1
