"""The tasks of operators, with the number of clicks from the product's home, the list of error groups."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Sit

TOLD = Path("docs/choose/operators.md")
"""The page that tells operators how many clicks their tasks take, beside other tools."""
HOME = "/admin/rmq_retry/errorgroup/"
LIST = "/admin/rmq_retry/parkedmessage/"
RUNS, QUEUES = "/admin/rmq_retry/requeuerun/", "/admin/rmq_retry/queuecontrol/"
PLACES = """(lines) => lines.map((line) => {
  const buttons = line.querySelector(".rmq-buttons").getBoundingClientRect();
  return [line.querySelector("p").getBoundingClientRect().right, buttons.left, buttons.right];
})"""
"""Of each line: the end of its text, and where its buttons begin and end."""
GAPS = """(cards) => cards.map((card) => {
  const [chart, ...buttons] = [...card.querySelectorAll(".rmq-spark, .rmq-row-line .rmq-button, .rmq-menu > summary")]
    .filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect());
  return Math.min(...buttons.map((one) => one.top - chart.bottom));
})"""
"""Of each card: the pixels between its chart and its buttons."""
CUT_OFF = "(reasons) => reasons.filter((one) => one.scrollHeight > one.clientHeight + 1).map((one) => one.textContent)"


def told(task: str) -> int:
    """The number of clicks that the page tells of a task."""
    found = re.search(rf"^\| {task} \| (\d+)", TOLD.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, task
    return int(found[1])


def card(name: str) -> str:
    return f".rmq-row:has-text('{name}Error')"


def test_problems_are_visible_at_once(sit: Sit) -> None:
    lead = sit()
    lead.go("/admin/")
    lead.click("Error groups", within="#content")
    lead.sees("PlainError")

    assert lead.clicks == told("See failures by cause") == 1


def test_a_payment_is_found_by_its_id(sit: Sit) -> None:
    lead = sit()
    lead.go(LIST)
    lead.type("#searchbar", "ACC-1")
    lead.sees("It failed 5 times")

    assert lead.clicks == told("Find a payment by its id") == 1


def test_one_message_is_requeued_and_its_outcome_is_shown(sit: Sit) -> None:
    lead = sit()
    lead.go(LIST)
    lead.type("#searchbar", "ONE-0")
    lead.click("Requeue…")
    lead.click("Requeue 1 message")
    clicks = lead.clicks
    lead.sees("Finished")

    assert (clicks, lead.clicks - clicks) == (3, told("See whether it worked"))
    assert "1 processed" in lead.page.inner_text(".rmq-outcomes")
    assert lead.complaints == []


def test_all_messages_of_one_cause_are_requeued(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.click("Requeue one, then the others…", within=card("All"))
    lead.click("Requeue 3 messages")
    clicks = lead.clicks
    lead.sees("Finished")

    assert clicks == told("Send all of one cause back") == 2
    assert "3 processed" in lead.page.inner_text(".rmq-outcomes")


def test_one_message_is_requeued_first_and_then_the_rest(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.click("Requeue one, then the others…", within=card("Canary"))
    lead.click("Send one now, the other 2 after it was processed")
    clicks = lead.clicks
    lead.sees("Finished")

    assert clicks == told("Send one, then the others") == 2
    assert "3 processed" in lead.page.inner_text(".rmq-outcomes")


def test_a_message_is_edited_and_requeued(sit: Sit) -> None:
    lead = sit()
    lead.go(LIST)
    lead.type("#searchbar", "EDIT-0")
    lead.click("Edit and requeue…")
    lead.fill("#rmq-text", '{"amount": "1.10"}')
    lead.click("Review the changes")
    lead.fill("#rmq-reason", "customer's wish")
    lead.sees("The broker answers.")
    difference, barriers = lead.page.inner_text(".rmq-diff"), lead.barriers()
    lead.click("Requeue the edited message")
    clicks = lead.clicks
    lead.sees("Finished")

    assert clicks == told("Correct one") == 4
    assert '+   "amount": "1.10"' in difference
    assert (barriers, lead.complaints) == ([], [])


def test_twelve_malformed_messages_are_repaired_by_one_change(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.click("MalformedError", within=card("Malformed"))
    lead.click("Edit 12…")
    lead.fill("#rmq-path", "amount")
    lead.fill("#rmq-find", ",")
    lead.fill("#rmq-value", ".")
    lead.page.check("#rmq-number")
    lead.click("Preview each result")
    lead.fill("#rmq-reason", "amounts with a comma")
    results, barriers = lead.page.inner_text("#rmq-results + table"), lead.barriers()
    lead.click("Edit 12 messages")
    lead.sees("12 messages were edited.")
    lead.click("Requeue 12 messages")
    # One more for the tick.
    clicks = lead.clicks + 1
    lead.sees("Finished")

    assert clicks == told("Correct twelve at once") == 6
    assert '"8,53"\t8.53' in results
    assert "12 processed" in lead.page.inner_text(".rmq-outcomes")
    assert (barriers, lead.complaints) == ([], [])


def test_a_message_is_discarded_and_restored(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.click("More…", within=card("Discard"))
    lead.click("Discard 3…", within=card("Discard"))
    lead.page.select_option("#rmq-reason", "duplicate")
    lead.click("Discard 3 messages")
    lead.sees("3 messages were discarded (reason: Duplicate)")
    discarded = lead.clicks
    lead.go(LIST)
    lead.type("#searchbar", "DISCARD-0")
    lead.click("Restore…")
    lead.sees("Duplicate")
    lead.fill("#rmq-reason", "no copy")
    lead.click("Restore DISCARD-0")
    lead.sees("The message is parked again.")

    assert (discarded, lead.clicks) == (told("Discard"), told("Take a discard back")) == (3, 3)


def test_the_operator_of_an_action_is_shown_on_the_message(sit: Sit) -> None:
    lead = sit()
    lead.go(LIST)
    lead.type("#searchbar", "HOLD-0")
    lead.click("Hold…")
    lead.click("Hold HOLD-0")
    lead.go(LIST)
    lead.type("#searchbar", "HOLD-0")
    lead.click("Activity")
    lead.page.locator("#rmq-activity").get_by_text("lead").first.wait_for()

    assert lead.clicks == told("See who did it") == 2


def test_broker_and_consumers_are_one_click_away(sit: Sit) -> None:
    lead = sit()
    lead.go("/admin/")
    lead.click("Live status", within="#content")
    lead.sees("need you")

    assert lead.clicks == 1


def test_a_queue_is_paused_and_resumed_in_one_click_each(sit: Sit) -> None:
    lead = sit()
    lead.go(QUEUES)
    # The only queue is ticked.
    lead.write("Reason", "the bank is closed")
    lead.click("Pause")
    lead.sees("Queue payments.main is paused.")
    paused = lead.clicks
    lead.write("Reason", "the bank is open")
    lead.click("Resume")
    lead.sees("Queue payments.main is resumed.")

    assert (paused, lead.clicks) == (told("Pause a queue"), 2) == (1, 2)


def test_ticked_rows_and_the_action_menu_do_the_same(sit: Sit) -> None:
    lead = sit()
    lead.go(f"{LIST}?group=7")
    for place in (0, 1):
        lead.page.locator("input.action-select").nth(place).check()
    lead.click("Requeue…", within="#changelist-form")
    lead.sees("Requeue 2 messages")

    assert lead.complaints == []


def test_ticks_survive_the_live_update_and_need_no_script(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    box = lead.page.locator(f"{card('Tick')} input[name=group]")
    box.check()
    lead.page.locator("h1").click()
    with lead.page.expect_response(lambda answer: "fragment=1" in answer.url):
        lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.wait_for_load_state("networkidle")
    plain = sit(scripts=False)
    plain.go(HOME)
    for name in ("Tick", "Tock"):
        plain.page.locator(f"{card(name)} input[name=group]").check()
    stops = plain.page.locator("[data-rmq-pause]")
    without_effect = stops.count(), stops.first.is_visible()
    plain.click("Requeue the ticked…")
    plain.sees("Requeue 6 messages")

    assert box.is_checked()
    assert without_effect == (1, False)


def test_a_run_is_paused_in_one_click_and_stopped_with_a_reason(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.click("More…", within=card("Stop"))
    lead.click("Requeue 3…", within=card("Stop"))
    lead.fill("#rmq-rate", "0.2")
    lead.click("Requeue 3 messages")
    lead.sees("updated every 1 s")
    lead.page.get_by_role("button", name="Pause", exact=True).click()
    lead.sees("Paused")
    lead.click("Stop…")
    lead.write("Reason", "wrong ones")
    lead.click("Stop requeue run")
    lead.sees("Stopped")


def test_a_page_shows_live_updates_only_while_its_run_is_active(sit: Sit) -> None:
    lead = sit()
    lead.go(LIST)
    lead.type("#searchbar", "ONE-1")
    lead.click("Requeue…")
    lead.click("Requeue 1 message")
    lead.sees("Finished")
    # It existed when the page was loaded.
    pulse = lead.page.locator("[data-rmq-pulse]")
    pulse.wait_for(state="hidden")

    assert pulse.count() == 1
    assert lead.complaints == []


def test_everything_works_without_scripts(sit: Sit) -> None:
    lead = sit(scripts=False)
    lead.go(LIST)
    lead.type("#searchbar", "PLAIN-0")
    lead.click("Requeue…")
    lead.click("Requeue 1 message")
    lead.click("Continue here")
    lead.page.locator(".rmq-outcomes").wait_for()

    assert "1 of 1 sent" in lead.page.inner_text(".rmq-run")


def test_keyboard_shortcuts_navigate_and_can_be_switched_off(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.page.keyboard.press("g")
    lead.page.keyboard.press("p")
    lead.page.wait_for_url("**/parkedmessage/")
    lead.page.wait_for_load_state("load")
    lead.page.keyboard.press("/")
    typing = lead.page.evaluate("document.activeElement.id")
    lead.go(HOME)
    lead.page.keyboard.press("?")
    lead.page.locator("dialog[open] [data-rmq-keys-on]").uncheck()
    lead.click("Close", within="dialog")
    lead.page.keyboard.press("g")
    lead.page.keyboard.press("p")
    lead.page.reload()

    assert typing == "searchbar"
    assert lead.page.url.endswith("/errorgroup/")
    assert not lead.page.locator("[data-rmq-keys-on]").is_checked()


def test_the_help_shows_permissions_and_the_reason_for_each_missing_one(sit: Sit) -> None:
    support = sit("support")
    support.go(HOME)
    support.page.keyboard.press("?")
    said = support.page.inner_text("dialog[open]")
    barriers = support.barriers()
    support.click("Close", within="dialog")

    assert "Can hold messages" in said
    assert "You need the permission “Can discard and restore messages”. Contact: payments-oncall." in said
    assert (barriers, support.complaints) == ([], [])


@pytest.mark.parametrize("page", [HOME, LIST, "/admin/rmq_retry/requeuerun/preview/?group=1"])
def test_the_help_is_a_page_without_scripts(sit: Sit, page: str) -> None:
    support = sit("support", scripts=False)
    support.go(page)
    support.click("Keyboard shortcuts and my permissions", within="footer")
    support.sees("You need the permission “Can discard and restore messages”.")

    assert support.clicks == 1
    assert not support.page.locator("dialog").is_visible()


@pytest.mark.parametrize("width", [1100, 320])
def test_new_messages_are_announced_above_a_list_that_does_not_move(sit: Sit, width: int) -> None:
    lead = sit(width=width)
    # Other tests take messages of single groups away; the queue keeps several.
    lead.go(f"{LIST}?queue=payments.main")
    live = lead.page.locator("[data-rmq-live]")
    # Like a list that was opened before they were parked, and refreshes now.
    live.evaluate(
        "one => { one.dataset.rmqLive = one.dataset.rmqLive.replace(/since=[^&]*/, 'since=2020-01-01T00:00Z'); }"
    )
    rows = lead.page.locator("#result_list").bounding_box()
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.get_by_text("new parked messages").wait_for()
    told = lead.page.locator("#result_list").bounding_box()
    barriers = lead.barriers()
    lead.click("new parked messages")
    lead.page.wait_for_load_state("load")

    assert told == rows
    assert (barriers, lead.complaints) == ([], [])
    assert lead.page.url.endswith("?queue=payments.main")


def test_an_open_list_of_runs_shows_what_they_have_done_since(sit: Sit) -> None:
    lead = sit()
    lead.go("/admin/rmq_retry/requeuerun/")
    lead.sees("updated every 5 s")
    rows = lead.page.locator("#result_list tbody tr")
    before = rows.count()
    # Like a list that was opened before the first one began, and refreshes now.
    rows.evaluate_all("(all) => all.forEach((one) => one.remove())")
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    rows.first.wait_for()

    assert before == rows.count() > 0
    assert (lead.barriers(), lead.complaints) == ([], [])


def test_an_open_fold_stays_open_and_no_other_opens_as_folds_come_above_it(sit: Sit) -> None:
    """A fold that had come above it was open instead, because folds were known by their place."""
    lead = sit()
    lead.go("/admin/rmq_retry/livestatus/")
    live = lead.page.locator("[data-rmq-live]")
    live.evaluate("""(one) => {
      const fold = (line) => `<details><summary>${line}</summary>x</details>`;
      const answer = fold("3 findings follow from it") + fold("Fine: nothing waits in 7 queues");
      window.fetch = async () => new Response(answer);
      one.innerHTML = fold("Fine: nothing waits in 8 queues");
      one.querySelector("details").open = true;
    }""")
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.get_by_text("3 findings follow").wait_for()

    assert live.locator("details").evaluate_all("(all) => all.map((one) => one.open)") == [False, True]


def test_a_list_without_scripts_has_no_new_messages_bar(sit: Sit) -> None:
    lead = sit(scripts=False)
    lead.go(LIST)

    assert lead.page.locator(".rmq-news").count() == 1
    assert not lead.page.locator(".rmq-news").is_visible()


def test_live_updates_of_a_list_can_be_switched_off(sit: Sit) -> None:
    lead = sit()
    asked: list[str] = []
    lead.page.on("request", lambda request: asked.append(request.url) if "fragment=1" in request.url else None)
    lead.go(HOME)
    lead.page.wait_for_event("request", lambda request: "fragment=1" in request.url)
    lead.page.wait_for_load_state("networkidle")
    lead.click("Stop updating")
    lead.sees("not updated")
    before = len(asked)
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    assert len(asked) == before


@pytest.mark.parametrize("place", ["/admin/rmq_retry/livestatus/", f"{RUNS}1/change/"])
def test_a_page_whose_server_is_silent_says_at_its_top_since_when_it_is_old(sit: Sit, place: str) -> None:
    lead = sit()
    lead.go(place)
    missed: list[str] = []

    def lost(route: Any) -> None:
        missed.append(route.request.url)
        route.abort()

    lead.page.route("**/*fragment=1*", lost)
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.get_by_text(re.compile(r"as of .*\d: the server does not answer")).wait_for()
    # It took three before; a second one may be under way.
    assert len(missed) < 3
    said, live = (lead.page.locator(one).bounding_box() for one in ("[data-rmq-said]", "[data-rmq-live]"))

    assert said["y"] + said["height"] <= live["y"]


def test_a_page_whose_database_is_away_names_the_database_and_not_the_server(sit: Sit) -> None:
    lead = sit()
    lead.go("/admin/rmq_retry/livestatus/")
    missing = {"status": 503, "headers": {"Rmq-Away": "database"}, "body": "The database does not answer"}
    lead.page.route("**/*fragment=1*", lambda route: route.fulfill(**missing))
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.get_by_text(re.compile(r"as of .*\d: the database does not answer")).wait_for()

    assert lead.page.get_by_text("the server does not answer").count() == 0
    assert lead.page.locator(".rmq-pulse.rmq-stale").count() == 1
    assert lead.page.locator("[data-rmq-live] .rmq-fresh").count() > 0
    assert lead.page.locator("[data-rmq-live] .rmq-fresh:visible").count() == 0


def test_the_page_of_a_run_says_that_workers_send_on_while_only_its_database_is_away(sit: Sit) -> None:
    """Its badge said "Sending" and its heartbeat "0 s ago", and it was still so long after the database was back."""
    lead = sit()
    lead.go(f"{RUNS}1/change/")
    missing = {"status": 503, "headers": {"Rmq-Away": "database"}, "body": "The database does not answer"}
    asked: list[str] = []

    def away(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(**missing)

    lead.page.route("**/*fragment=1*", away)
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    note = lead.page.get_by_text("Workers that reach it send on.")
    note.wait_for()
    lead.page.wait_for_timeout(9000)
    assert len(asked) > 3
    lead.page.unroute_all(behavior="ignoreErrors")
    note.wait_for(state="hidden")


def test_a_page_whose_server_hangs_says_so_after_one_miss(sit: Sit) -> None:
    """T11: an update had no timeout, and three had to fail."""
    lead = sit()
    lead.go("/admin/rmq_retry/livestatus/")
    lead.page.route("**/*fragment=1*", lambda _route: None)
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.get_by_text(re.compile(r"as of .*\d: the server does not answer")).wait_for()

    assert lead.page.locator("[data-rmq-live].rmq-stale").count() == 1
    assert not lead.page.get_by_text(re.compile("checked .*:")).first.is_visible()
    lead.page.unroute_all(behavior="ignoreErrors")
    lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.get_by_text("updated every 5 s").wait_for()


def test_fourteen_messages_with_their_time_fit_on_a_small_screen(sit: Sit) -> None:
    lead = sit(width=1280, height=720)
    lead.go(LIST)
    # A row with a remark has two lines. Other tests leave fewer rows than fit.
    rows = lead.page.locator("#result_list tbody tr:not(:has(.rmq-marks))")
    heights = [row.bounding_box()["height"] for row in rows.all()]
    times = [row.locator(".field-parked time").bounding_box() for row in rows.all()]

    assert max(time["x"] + time["width"] for time in times) <= 1240
    assert lead.page.locator("#result_list tbody").bounding_box()["y"] + 14 * max(heights) <= 720
    assert not lead.page.locator(".rmq-filter ul").first.is_visible()


@pytest.mark.parametrize("language", ["en-GB", "de-DE"])
def test_runs_fit_on_a_small_screen_with_their_whole_reasons(sit: Sit, language: str) -> None:
    lead = sit(width=1280, height=720, language=language)
    lead.go(RUNS)
    table = lead.page.locator(".results")
    reasons = lead.page.locator("#result_list .field-why > span[title]")
    heights = [reason.bounding_box()["height"] for reason in reasons.all()]

    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    assert len(heights) > 5
    assert reasons.evaluate_all(CUT_OFF) == []
    assert max(heights) < 90


def test_the_buttons_of_all_groups_stand_in_one_place(sit: Sit) -> None:
    lead = sit(width=1280, height=720)
    lead.go(HOME)
    lines = lead.page.locator(".rmq-row-line:has(.rmq-buttons)")
    # In one look: the list updates itself, and a line that it replaces has no place.
    places = lines.evaluate_all(PLACES)

    assert len(places) > 5
    assert len({round(end) for _text, _start, end in places}) == 1
    assert all(text <= start for text, start, _end in places)


@pytest.mark.parametrize("language", ["en-GB", "de-DE"])
def test_no_button_of_a_group_covers_its_chart(sit: Sit, language: str) -> None:
    lead = sit(width=1280, height=720, language=language)
    lead.go(HOME)
    gaps = lead.page.locator(".rmq-row:has(.rmq-spark):has(.rmq-button)").evaluate_all(GAPS)

    assert len(gaps) > 5
    assert min(gaps) >= 2


def test_figures_stand_side_by_side_on_a_phone(sit: Sit) -> None:
    lead = sit(width=390, height=844)
    lead.go("/admin/rmq_retry/livestatus/")
    tops = [tile.bounding_box()["y"] for tile in lead.page.locator(".rmq-tiles li").all()]

    assert len(tops) == 4
    assert len(set(tops)) == 2


def test_a_title_is_in_one_line_beside_its_sentence(sit: Sit) -> None:
    lead = sit(width=1280, height=720, language="de-DE")
    lead.go(f"{RUNS}preview/?group=1")

    assert lead.page.locator("#rmq-title").bounding_box()["height"] < 40


def test_a_body_is_edited_in_all_its_lines_on_a_phone(sit: Sit) -> None:
    lead = sit(width=390, height=844)
    lead.go(f"{LIST}29/edit/")

    assert lead.page.locator("#rmq-text").bounding_box()["height"] > 150


def test_filters_unfold_and_take_a_span_of_time_without_scripts(sit: Sit) -> None:
    lead = sit(scripts=False)
    lead.go(LIST)
    lead.click("Filter", within=".rmq-filter")
    lead.fill("[name=parked_after]", "2020-01-01T00:00")
    lead.fill("[name=parked_before]", "2020-01-02T00:00")
    lead.click("Filter", within=".rmq-filter form")
    lead.sees("No message matches.")
    lead.click("Parked before: 2020-01-02T00:00")
    lead.page.locator("#result_list tbody tr").nth(14).wait_for()
