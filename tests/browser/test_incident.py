"""The incident: two groups of one outage, some of whose payments were made in another way; its clicks are counted."""

from tests.browser.conftest import Sit
from tests.browser.test_tasks import HOME, card


def test_two_groups_are_requeued_without_the_paid_ones_in_nine_clicks_and_one_paste(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    lead.click("A list of keys")
    lead.fill("#rmq-keys", "ALL-0\nPLAIN-0")
    lead.click("Look up the keys")
    lead.click("Discard these 2, then go on to the error groups…")
    lead.page.select_option("#rmq-reason", "handled elsewhere")
    lead.clicks += 1
    lead.click("Discard 2 messages")
    lead.sees("2 messages were discarded")
    for name in ("All", "Plain"):
        lead.page.locator(f"{card(name)} input[name=group]").check()
        lead.clicks += 1
    lead.sees("groups: 2 · messages: 4")
    lead.click("Requeue the ticked…")
    lead.fill("#rmq-reason", "the bank is back")
    lead.click("Send one now, the other 3 after it was processed")
    clicks = lead.clicks
    lead.sees("Finished")

    assert clicks == 9
    assert "4 processed" in lead.page.inner_text(".rmq-outcomes")
    assert lead.complaints == []


def test_ticks_survive_the_live_update_and_need_no_script(sit: Sit) -> None:
    lead = sit()
    lead.go(HOME)
    box = lead.page.locator(f"{card('Hold')} input[name=group]")
    box.check()
    lead.page.locator("h1").click()
    with lead.page.expect_response(lambda answer: "fragment=1" in answer.url):
        lead.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    lead.page.wait_for_load_state("networkidle")
    plain = sit(scripts=False)
    plain.go(HOME)
    for name in ("Hold", "Pause"):
        plain.page.locator(f"{card(name)} input[name=group]").check()
    plain.click("Requeue the ticked…")
    plain.sees("Requeue 6 messages")

    assert box.is_checked()
