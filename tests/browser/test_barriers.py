"""Pages for everybody: no finding of axe in light and dark, wide and narrow; on a phone; from right to left."""

from typing import Any

import django
import pytest
from django.contrib import admin
from django.urls import resolve

from tests.browser.conftest import Sit
from tests.browser.pages import PAGES

ANSWERS = {
    *("parkedmessage_reveal", "parkedmessage_body", "parkedmessage_newer", "requeuerun_export", "requeuerun_send"),
    *(
        "queuecontrol_change_state",
        "approvalrequest_approve",
        "approvalrequest_reject",
        "outboxmessage_discard_several",
    ),
}
"""Addresses that answer with a file, with a part of a page or with another page."""
DJANGOS = ("add", "delete", "history")
TABLES = ":is(.rmq-stacked, .rmq-messages, #result_list)"
TABLE_PAGES = ("messages", "group", "message", "runs", "audit", "status", "blocked keys", "outbox")
ON_PHONE = {
    "numbers without a label": """(tables) => [...document.querySelectorAll(`${tables} tbody td`)]
  .filter((one) => one.checkVisibility() && !one.querySelector("input, a"))
  .filter((one) => /^\\s*[-\\u2013\\d][-\\u2013\\d.,\\s]*$/.test(one.textContent))
  .map((one) => `${one.className}: ${one.textContent.trim()}`)""",
    "labels without a value": """(tables) => [...document.querySelectorAll(`${tables} tbody td:has(.rmq-label)`)]
  .filter((one) => one.textContent.trim() === one.querySelector(".rmq-label").textContent.trim())
  .map((one) => one.textContent.trim())""",
    "lines of a value under its label": """() => [
  ...document.querySelectorAll(".rmq-acts td, #result_list :is(td, th)")
].filter((one) => {
    const label = one.querySelector(":scope > .rmq-label"), range = document.createRange();
    if (!label || !label.checkVisibility()) return false;
    range.selectNodeContents(one);
    const beside = label.getBoundingClientRect();
    return [...range.getClientRects()].some((line) => line.top >= beside.bottom && line.left < beside.right);
  }).map((one) => one.textContent.trim())""",
    "captions narrower than their table": """(tables) => [
  ...document.querySelectorAll(`${tables} caption:not(.visually-hidden)`)
].filter((one) => one.offsetWidth < 0.9 * one.closest("table").offsetWidth).map((one) => one.textContent)""",
}
CUT = """[...document.querySelectorAll('.results')].some((one) => one.scrollWidth > one.clientWidth + 1)"""
"""Whether a list is wider than its place, which hides its last columns."""
BUTTONS = """[...document.querySelectorAll('main :is(button, a.rmq-button, summary.rmq-button)')]
  .filter((one) => one.checkVisibility() && !one.matches('.visually-hidden')).map((one) => one.textContent.trim())"""
NARROW = """document.querySelector('#content').offsetWidth < 0.95 * document.documentElement.clientWidth"""
BROKEN = """[...document.querySelectorAll(`.rmq-bar label, .rmq-processes :is(thead th, time, .rmq-number, .rmq-badge),
  .model-operatoraction #result_list :is(thead th, .field-when, .field-who, .field-action_name),
  .model-operatoraction #result_list :is(.field-why, .field-place)`)]
  .flatMap((one) => {
    const found = [], texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), range = document.createRange();
    for (let text; (text = texts.nextNode());)
      for (const word of text.data.matchAll(/[^\\s-]+/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (range.getClientRects().length > 1 && !word[0].includes("@")) found.push(word[0]);
      }
    return found;
  })"""
"""Words in labels and narrow columns that stand on two lines; a user's name that is an address may."""
FIRST = """:is(.rmq-main, .rmq-danger, #rmq-actions :is(a, button, input), #rmq-ticked button, .rmq-needs a,
  #changelist-form .actions :is(select, button))"""
ACTS = "(first) => [...document.querySelectorAll(first)].some((one) => one.checkVisibility() && !one.disabled)"
"""Whether a page has something to do."""
IDLE = {
    *("groups by queue", "no group", "nothing found", "preview of nothing", "handled again"),
    *("its failures", "what it may have done twice"),
    *("help", "deleted message", "restore of what is parked", "runs", "audit", "act"),
    *("consumers", "second persons", "blocked keys", "first message of a halted queue"),
}
"""Pages to read, or whose rows lead to what can be done."""
DIRECTION = "getComputedStyle(document.documentElement).direction"
TURNED = """() => [...document.querySelectorAll('.rmq-icon, .rmq-sign, .rmq-arrow')]
  .filter((one) => one.checkVisibility())
  .map((one) => [one.textContent.trim(), getComputedStyle(one).transform.startsWith('matrix(-1')])"""
ARROWS = {"→", "↻"}


def reached_in_ten_tabs(page: Any) -> bool:
    """Press Tab until an action has the focus; the last link that skips what is before it is followed."""
    skip = page.locator(".skip-to-content-link").last
    for _tab in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("(first) => document.activeElement.matches(first)", FIRST):
            return True
        if skip.evaluate("(link) => link === document.activeElement"):
            page.keyboard.press("Enter")
    return False


def found(person: Any, addresses: dict[str, str]) -> dict[str, list[str]]:
    """Accessibility findings by page."""
    barriers = {}
    for name, address in addresses.items():
        person.go(address)
        barriers[name] = person.barriers()
    return {name: some for name, some in barriers.items() if some}


def test_every_page_is_examined() -> None:
    """A new page must be added to the list above."""
    pages = [pages for model, pages in admin.site._registry.items() if model._meta.app_label == "rmq_retry"]
    ours = {str(url.name) for one in pages for url in one.get_urls() if url.name}
    looked = {resolve(address.partition("?")[0]).url_name for address in PAGES.values()}

    missing = {name for name in ours - looked if name.split("_")[-1] not in DJANGOS}
    assert missing == {f"rmq_retry_{name}" for name in ANSWERS}


@pytest.mark.nightly
def test_pages_have_no_barriers_and_run_nothing_inline(sit: Sit) -> None:
    lead = sit()

    assert found(lead, PAGES) == {}
    assert lead.complaints == []


@pytest.mark.nightly
def test_the_first_action_of_each_page_is_reached_in_ten_tabs(sit: Sit) -> None:
    lead = sit()
    far, idle = set(), set()
    for name, address in PAGES.items():
        lead.go(address)
        if not lead.page.evaluate(ACTS, FIRST):
            idle.add(name)
        elif not reached_in_ten_tabs(lead.page):
            far.add(name)

    assert far == set()
    assert idle == IDLE


@pytest.mark.nightly
def test_pages_with_long_words_fit_each_screen(sit: Sit) -> None:
    wrong = {}
    for width in (390, 1280, 1920):
        lead = sit(language="de", width=width)
        for name, address in PAGES.items():
            lead.go(address)
            cut = lead.page.evaluate(CUT)
            if lead.scrolls_sideways() or (cut and width > 640):
                wrong[name, width] = cut

    assert wrong == {}


@pytest.mark.nightly
@pytest.mark.parametrize("language", ["en-GB", "de", "ru"])
def test_a_printed_page_uses_the_paper_and_shows_no_button(sit: Sit, language: str) -> None:
    # A4 within its margins.
    lead = sit(width=754, language=language)
    wrong = {}
    for name, address in PAGES.items():
        lead.page.emulate_media(media="screen")
        lead.go(address)
        lead.page.emulate_media(media="print")
        shown = lead.page.evaluate(BUTTONS)
        cut, narrow = lead.page.evaluate(CUT), lead.page.evaluate(NARROW)
        broken = lead.page.evaluate(BROKEN)
        if shown or cut or narrow or broken or lead.scrolls_sideways():
            wrong[name] = shown, cut, narrow, broken

    assert wrong == {}


@pytest.mark.nightly
def test_forms_of_a_small_phone_have_no_barriers(sit: Sit) -> None:
    lead = sit(width=320, height=640)

    names = ("discard", "hold", "export", "preview", "preview of what waits", "edit", "note")

    assert found(lead, {name: PAGES[name] for name in names}) == {}


@pytest.mark.nightly
def test_pages_have_no_barriers_while_the_broker_is_unavailable(sit: Sit) -> None:
    lead = sit(cookies={"broker": "away"})
    pages = {name: PAGES[name] for name in ("index", "status", "preview", "run running", "message", "groups")}

    assert found(lead, pages) == {}
    lead.go(PAGES["status"])
    lead.sees("No connection to the broker")
    assert lead.complaints == []


@pytest.mark.nightly
def test_forms_with_errors_have_no_barriers(sit: Sit) -> None:
    lead = sit()
    barriers = {}
    lead.go(PAGES["edit"])
    lead.fill("#rmq-text", '{"a": NaN}')
    lead.click("Review the changes")
    lead.page.locator("#rmq-wrong").wait_for()
    barriers["edit with errors"] = lead.barriers()
    lead.fill("#rmq-text", '{"iban": 1, "iban": 2}')
    lead.click("Review the changes")
    lead.page.locator("#rmq-reason").wait_for()
    barriers["review"] = lead.barriers()
    lead.click("Store and preview the requeue")
    lead.page.locator("#rmq-wrong").wait_for()
    barriers["review without a reason"] = lead.barriers()
    for name, button in (("discard", "Discard 3 messages"), ("hold", "Hold 3 messages")):
        lead.go(PAGES[name])
        lead.page.evaluate("for (const form of document.forms) form.noValidate = true")
        if name == "hold":
            lead.page.check("input[value=at]")
        lead.click(button)
        lead.page.locator("#rmq-wrong").wait_for()
        barriers[f"{name} with errors"] = lead.barriers()
    lead.go(PAGES["preview"])
    lead.page.evaluate("for (const form of document.forms) form.noValidate = true")
    lead.fill("[name=rate]", "0")
    lead.click("Requeue 3 messages")
    lead.page.locator("#rmq-wrong").wait_for()
    barriers["preview with errors"] = lead.barriers()

    assert {name: some for name, some in barriers.items() if some} == {}
    assert lead.complaints == []


@pytest.mark.nightly
def test_a_pasted_list_has_no_barriers(sit: Sit) -> None:
    lead = sit()
    barriers = {}
    lead.go(PAGES["list of keys"])
    lead.fill("#rmq-keys", "PLAIN-0\nplain-1\nDISCARD-0 DISCARD-1\nACC-1\nprocessed\n" + "K" * 300)
    lead.click("Look up the keys")
    lead.page.locator("#rmq-missing").wait_for()
    barriers["answer"] = lead.barriers()
    lead.fill("#rmq-keys", ",".join(map(str, range(10_001))))
    lead.click("Look up the keys")
    lead.page.locator("#rmq-wrong").wait_for()
    barriers["too many"] = lead.barriers()
    for name, button in (("preview", "Requeue 3 messages"), ("discard", "Discard 3 messages")):
        lead.go(PAGES[name])
        lead.click("All except these…")
        lead.fill("#rmq-except", "ONE-0\none-1\nPLAIN-0\n" + "K" * 300)
        lead.click("Leave these out")
        lead.sees("1 message is left out by its key.")
        barriers[f"{name} without one"] = lead.barriers()
        lead.fill("#rmq-except", ",".join(map(str, range(10_001))))
        lead.click("Leave these out")
        lead.page.locator("#rmq-wrong").wait_for()
        barriers[f"{name} without too many"] = lead.barriers()
        assert button not in lead.page.locator("main").inner_text()

    assert {name: some for name, some in barriers.items() if some} == {}
    assert lead.complaints == []


@pytest.mark.nightly
def test_pages_that_refuse_access_have_no_barriers(sit: Sit) -> None:
    support = sit("support")
    names = ("message", "group", "edit", "discard", "export", "audit", "status", "runs", "preview")

    assert found(support, {name: PAGES[name] for name in names}) == {}
    support.go(PAGES["discard"])
    support.sees("You need the permission")
    assert support.complaints == []


NONCES = pytest.mark.skipif(django.VERSION < (6, 1), reason="the admin's own files bear no nonce before Django 6.1")


@pytest.mark.nightly
@NONCES
def test_a_nonce_only_csp_blocks_nothing(sit: Sit) -> None:
    lead = sit(cookies={"policy": "nonce"})
    for address in PAGES.values():
        lead.go(address)

    assert lead.complaints == []


@NONCES
def test_main_tasks_work_under_a_nonce_only_csp(sit: Sit) -> None:
    lead = sit(cookies={"policy": "nonce"})
    lead.go(PAGES["groups"])
    lead.page.wait_for_event("request", lambda request: "fragment=1" in request.url)
    lead.page.keyboard.press("?")
    lead.page.locator("dialog[open]").wait_for()
    lead.click("Close", within="dialog")
    lead.click("More…", within=".rmq-row:has-text('NonceError')")
    lead.click("Requeue 3…", within=".rmq-row:has-text('NonceError')")
    lead.click("Requeue 3 messages")
    lead.sees("Finished")
    colour = lead.page.evaluate("getComputedStyle(document.querySelector('.rmq-badge')).borderRadius")
    lead.go(PAGES["message"])
    lead.click("Activity")

    assert lead.page.locator("#rmq-activity").is_visible()
    assert not lead.page.locator("#rmq-headers").is_visible()
    assert colour == "16px"
    assert lead.complaints == []


@NONCES
def test_a_csp_violation_is_detected(sit: Sit) -> None:
    lead = sit(cookies={"policy": "nonce"})
    lead.go(PAGES["groups"])
    lead.page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: '1'}))")
    lead.page.evaluate("document.body.setAttribute('style', 'color: red')")

    assert len(lead.complaints) == 2


@pytest.mark.nightly
def test_a_page_with_disabled_buttons_has_no_barriers(sit: Sit) -> None:
    support = sit("support")
    support.go(PAGES["message"])
    support.sees("You need the permission")

    assert support.barriers() == []
    assert support.complaints == []


def test_scripts_in_message_contents_do_not_run(sit: Sit) -> None:
    lead = sit()
    asked: list[str] = []

    def seen(dialog: Any) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    lead.page.on("dialog", seen)
    for name in ("groups", "messages", "hostile message", "groups by queue"):
        lead.go(PAGES[name])

    assert (asked, lead.complaints) == ([], [])


HEIGHTS = "(what) => [...document.querySelectorAll(what)].map((one) => one.getBoundingClientRect().height)"
LINE = 44
"""The most pixels of a line with a button, or of two lines of text."""


def test_on_a_phone_a_message_takes_three_lines_and_its_buttons_one(sit: Sit) -> None:
    lead = sit(width=390)
    rows = {}
    for name in ("messages", "outbox"):
        lead.go(PAGES[name])
        rows[name] = max(lead.page.evaluate(HEIGHTS, "#result_list tbody tr"))
    searched = lead.page.locator("#searchbar").bounding_box()["width"]
    lead.go(PAGES["message"])
    buttons = lead.page.evaluate(HEIGHTS, "#rmq-actions")
    hidden = not lead.page.get_by_text("Discard…").first.is_visible()
    lead.page.get_by_text("More…").first.click()
    unfolded = lead.page.get_by_text("Discard…").first.is_visible()
    lead.page.set_viewport_size({"width": 1280, "height": 900})

    assert {name: height for name, height in rows.items() if height > 4 * LINE} == {}
    assert searched > 150
    assert buttons[0] < 2 * LINE
    assert (hidden, unfolded) == (True, True)
    assert lead.page.get_by_text("Discard…").first.is_visible()


def test_on_a_phone_no_word_of_a_label_is_broken(sit: Sit) -> None:
    """It was "Reas|on (require|d)" above the queues."""
    broken = {}
    for language in ("en", "de"):
        lead = sit(width=390, language=language)
        for name in ("queues", "groups", "blocked keys"):
            lead.go(PAGES[name])
            broken[language, name] = lead.page.evaluate(BROKEN)

    assert {where: words for where, words in broken.items() if words} == {}


@pytest.mark.nightly
def test_tables_on_a_phone_keep_labels_values_and_captions(sit: Sit) -> None:
    lead = sit(width=390)
    wrong: dict[tuple[str, str], list[str]] = {}
    for name in TABLE_PAGES:
        lead.go(PAGES[name])
        assert lead.page.locator(TABLES).count() > 0, name
        wrong |= {(name, what): lead.page.evaluate(script, TABLES) for what, script in ON_PHONE.items()}

    assert {where: some for where, some in wrong.items() if some} == {}


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_machine_values_are_read_from_left_to_right(sit: Sit) -> None:
    lead = sit(language="he")
    lead.go(PAGES["message"])
    directions = "(all) => all.map((one) => getComputedStyle(one).direction)"
    places = {place: lead.page.eval_on_selector_all(f".rmq {place}", directions) for place in ("pre", "time", "code")}
    lead.go(PAGES["edit"])
    places["textarea"] = lead.page.eval_on_selector_all(".rmq textarea", directions)

    assert {place: set(found) for place, found in places.items()} == {place: {"ltr"} for place in places}


@pytest.mark.nightly
def test_nothing_is_mirrored_in_left_to_right_languages(sit: Sit) -> None:
    lead = sit()
    lead.go(PAGES["message requeued"])

    assert lead.page.evaluate(DIRECTION) == "ltr"
    assert {turned for _sign, turned in lead.page.evaluate(TURNED)} == {False}
