"""Nobody is paid twice: what an operator has to check first, and what a page says before it sends."""

from typing import Any

import pytest
from django.test import Client

from django_rmq_retry import Message
from django_rmq_retry.models import RequeueRun
from tests.admin import made
from tests.admin.looking import Page
from tests.admin.test_keylists import LIST, go, pasted, previewed, state
from tests.admin.test_requeueing import press

pytestmark = pytest.mark.django_db
CHECKED = {"category": "handled elsewhere", "span": "2h"}


def excluded(client: Client, text: str, *, copies: int = 1) -> Any:
    """Leave the typed keys out of a group with PAY-1, PAY-2 and some of CUST-7."""
    cause = made.group()
    for key in ("PAY-1", "PAY-2", *["CUST-7"] * copies):
        made.message(cause, business_key=key)
    return press(client, previewed(client, group=cause.pk), "Leave these out", **{"except": text})


class TestAKeyThatMatchesNothingOrSeveral:
    @pytest.mark.parametrize(
        ("text", "which"), [("PAY-1\nPAY-8001X", "PAY-8001X"), ("pay-1", "pay-1"), ("PAY-1\nCUST-7", "CUST-7")]
    )
    def test_stops_a_requeue_until_it_is_ticked(self, page: Client, sent: list[Message], text: str, which: str) -> None:
        preview = excluded(page, text, copies=2)
        refused = press(page, preview, "Requeue ")
        started = RequeueRun.objects.exists()
        mark = refused.context["left"].mark
        press(page, refused, "Requeue ", checked=mark)

        assert "I have checked 1 key that matches no message or several." in Page(preview).text
        assert (refused.status_code, started, sent) == (422, False, [])
        assert f"Check 1 key that matches no message or several, and tick it: {which}." in Page(refused).text
        assert RequeueRun.objects.count() == 1

    def test_is_ticked_for_these_keys_only(self, page: Client) -> None:
        preview = excluded(page, "PAY-8001X")
        mark = preview.context["left"].mark
        other = press(page, preview, "Leave these out", **{"except": "PAY-8002X", "checked": mark})
        refused = press(page, other, "Requeue 3 messages", checked=mark)

        assert refused.status_code == 422
        assert not RequeueRun.objects.exists()

    @pytest.mark.parametrize("action", ["Requeue", "Discard", "Hold"])
    def test_of_a_list_stops_its_actions_too(self, page: Client, action: str) -> None:
        made.message(business_key="PAY-1")
        asked = go(page, pasted(page, "PAY-1\npay-2"), f"{action} 1")
        refused = press(page, asked, f"{action} 1 message", **CHECKED)
        before = state("PAY-1")
        press(page, refused, f"{action} 1 message", checked=refused.context["left"].mark, **CHECKED)

        assert "1 key of the list matches no message: pay-2" in Page(asked).text
        assert "Check 1 key that matches no message or several, and tick it: pay-2." in Page(refused).text
        assert before == "parked"
        assert state("PAY-1") != "parked" or RequeueRun.objects.exists()

    def test_of_an_exclusion_stops_a_discard(self, page: Client) -> None:
        cause = made.group()
        made.message(cause, business_key="PAY-1")
        asked = page.get(f"{LIST}discard/", {"group": cause.pk}, follow=True)
        asked = press(page, asked, "Leave these out", **{"except": "pay-1"})

        assert press(page, asked, "Discard 1 message", category="test").status_code == 422
        assert state("PAY-1") == "parked"

    def test_is_not_asked_about_if_each_key_matches_one_message(self, page: Client) -> None:
        preview = excluded(page, "PAY-1")
        press(page, preview, "Requeue 2 messages")

        assert "I have checked" not in Page(preview).text
        assert RequeueRun.objects.exists()
