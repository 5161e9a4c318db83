"""The incident: a gateway was down, some of its payments were made in another way, others are malformed."""

from pathlib import Path

from tests.browser.conftest import Sit
from tests.browser.outage import MALFORMED, PAID, PARKED, due, paid_elsewhere, payments

SCENE = "outage"
MOST_CLICKS, MOST_PASTES = 15, 2


def test_the_incident_is_over_after_fifteen_clicks_and_one_paste_and_nobody_is_paid_twice(
    sit: Sit, folder: Path
) -> None:
    rest = PARKED - PAID
    lead = sit()
    lead.go("/admin/")
    lead.click("Error groups", within="#content")

    lead.click("A list of keys")
    lead.paste("business keys or message ids", "\n".join(paid_elsewhere()))
    lead.click("Look up the keys")
    lead.click(f"Discard these {PAID}, then go on to the error groups…")
    lead.choose("Reason", "Handled elsewhere")
    lead.click(f"Discard {PAID} messages")
    lead.sees(f"{PAID} messages were discarded")

    lead.click("Requeue one, then the others…", within="li:has-text('GatewayTimeout')")
    lead.write("Rate", "500")
    lead.write("Reason", "INC-553: the bank is back")
    lead.write(f"Type {rest} to confirm", str(rest))
    lead.click(f"Send one now, the other {rest - 1} after it was processed")
    lead.sees("Finished", seconds=300)
    first = lead.page.inner_text(".rmq-outcomes")

    lead.click("Error groups", within="#nav-sidebar, #content")
    lead.click("UnreadableAmount")
    lead.click(f"Edit {MALFORMED}…")
    lead.write("Path", "amount")
    lead.write("Text to replace", ",")
    lead.write("New text or value", ".")
    lead.tick("write the text as a number, without quotes")
    lead.click("Preview each result")
    lead.write("Reason", "INC-553: amounts with a comma")
    lead.click(f"Edit {MALFORMED} messages")
    lead.click(f"Requeue {MALFORMED} messages")
    clicks, pastes = lead.clicks, lead.pastes
    lead.sees("Finished", seconds=300)
    second = lead.page.inner_text(".rmq-outcomes")
    lead.click("Error groups", within="#nav-sidebar, #content")
    lead.sees("Nothing is parked.")

    print(f"the incident: {clicks} clicks, {pastes} pastes")  # noqa: T201 - the figure, by pytest -rP
    assert (clicks <= MOST_CLICKS, pastes <= MOST_PASTES) == (True, True)
    assert f"{rest} processed" in first
    assert f"{MALFORMED} processed" in second
    assert payments(folder) == due()
    assert lead.complaints == []
