"""From right to left: mirrored pages, with arrows in the reading direction."""

import pytest

from tests.browser.conftest import Sit
from tests.browser.test_barriers import PAGES

pytestmark = pytest.mark.nightly

DIRECTION = "getComputedStyle(document.documentElement).direction"
TURNED = """() => [...document.querySelectorAll('.rmq-icon, .rmq-sign, .rmq-arrow')]
  .filter((one) => one.checkVisibility())
  .map((one) => [one.textContent.trim(), getComputedStyle(one).transform.startsWith('matrix(-1')])"""
ARROWS = {"→", "↻"}


@pytest.mark.parametrize("language", ["ar", pytest.param("he", marks=pytest.mark.long)])
def test_pages_are_mirrored_in_right_to_left_languages_and_fit_a_phone(sit: Sit, language: str) -> None:
    lead = sit(language=language, width=390)
    wrong, signs = {}, set()
    for name, address in PAGES.items():
        lead.go(address)
        if lead.page.evaluate(DIRECTION) != "rtl" or lead.scrolls_sideways():
            wrong[name] = lead.page.evaluate(DIRECTION)
        signs |= {(sign, turned) for sign, turned in lead.page.evaluate(TURNED)}

    assert wrong == {}
    assert {sign for sign, turned in signs if turned} == ARROWS
    assert {sign for sign, turned in signs if not turned} & ARROWS == set()
    assert lead.complaints == []


def test_machine_values_are_read_from_left_to_right(sit: Sit) -> None:
    lead = sit(language="he")
    lead.go(PAGES["message"])
    directions = "(all) => all.map((one) => getComputedStyle(one).direction)"
    places = {place: lead.page.eval_on_selector_all(f".rmq {place}", directions) for place in ("pre", "time", "code")}
    lead.go(PAGES["edit"])
    places["textarea"] = lead.page.eval_on_selector_all(".rmq textarea", directions)

    assert {place: set(found) for place, found in places.items()} == {place: {"ltr"} for place in places}


def test_nothing_is_mirrored_in_left_to_right_languages(sit: Sit) -> None:
    lead = sit()
    lead.go(PAGES["message requeued"])

    assert lead.page.evaluate(DIRECTION) == "ltr"
    assert {turned for _sign, turned in lead.page.evaluate(TURNED)} == {False}
