"""What an operator has to know before sending: what was handled already, and what is edited and waits to be sent."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.models import ErrorGroup, MessageVersion, ParkedMessage
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.groups import recount
from django_rmq_retry.parked.operators import Actor
from tests.admin import made
from tests.admin.conftest import operating
from tests.admin.looking import Page
from tests.admin.pasting import ADMIN, LIST, previewed

pytestmark = pytest.mark.django_db
LATER = timedelta(minutes=1)


def handled(group: ErrorGroup, count: int) -> None:
    for _ in range(count):
        made.message(group, succeeded_at=timezone.now())


def edited(group: ErrorGroup, **fields: object) -> ParkedMessage:
    one = made.message(group, version=2, **fields)
    MessageVersion.objects.create(
        message=one, number=2, body=b'{"amount": 5.00}', properties=one.properties, sha256="", at=timezone.now(),
        by="lead", reason="comma",
    )  # fmt: skip
    return one


def told(page: Client, where: str) -> str:
    return Page(page.get(ADMIN + where)).text


def buttons(page: Client, group: ErrorGroup) -> list[str]:
    """The labels of the buttons of a group's page, in their order; the main one is marked."""
    shown = page.get(f"{ADMIN}errorgroup/{group.pk}/change/").context["buttons"]
    return [f"[{one.label}]" if one.kind == "main" else one.label for one in shown]


class TestHandledAlready:
    def test_is_said_of_a_group_by_its_card_its_page_and_the_live_status(self, page: Client) -> None:
        group = made.group()
        handled(group, 3)
        where = ("errorgroup/", f"errorgroup/{group.pk}/change/", "livestatus/")
        all_of_them = [told(page, one) for one in where]
        made.message(group)
        some = [told(page, one) for one in where]

        assert ["all handled already" in one for one in all_of_them] == [True, True, True]
        assert ["3 handled already" in some[0], "3 handled already" in some[1]] == [True, True]
        assert "3 of them handled already" in some[2]
        assert not any("all handled already" in one for one in some)

    def test_group_has_no_button_that_would_send_one_first(self, page: Client) -> None:
        group = made.group()
        handled(group, 2)
        before = buttons(page, group)
        made.message(group)

        assert before[0] == "Requeue 2…"
        assert buttons(page, group)[0] == "[Requeue one, then the others…]"

    def test_counters_are_those_of_the_messages(self) -> None:
        group = made.group()
        handled(group, 2)

        assert recount() == 0
        ParkedMessage.objects.update(succeeded_at=None)
        assert [recount(), recount()] == [1, 0]


class TestEdited:
    def test_messages_that_were_not_sent_are_named_where_an_operator_looks(self, page: Client) -> None:
        group = made.group(reason="permanent")
        edited(group)
        edited(group, requeued_at=timezone.now() + LATER)
        made.message(group)

        assert "1 edited, not sent" in told(page, "errorgroup/")
        assert "1 of the parked messages is edited" in told(page, f"errorgroup/{group.pk}/change/")
        assert "1 is edited and not sent." in told(page, "livestatus/")

    def test_group_is_requeued_first_once_all_of_it_is_edited(self, page: Client, settings: Any) -> None:
        operating(settings, EDITABLE={"*": True})
        group = made.group(reason="invalid")
        edited(group)
        edited(group)
        whole = buttons(page, group)
        made.message(group)

        assert whole[0] == "[Requeue 2…]"
        assert buttons(page, group)[0] == "[Edit 3…]"

    def test_messages_are_no_example_of_the_next_edit(self, page: Client) -> None:
        group = made.group()
        edited(group, business_key="PAY-1", parked_at=timezone.now() - timedelta(hours=1))
        fresh = made.message(group, business_key="PAY-2")
        form = page.get(f"{LIST}edit/", {"group": group.pk}, follow=True)

        assert form.context["example"] == fresh
        assert "1 is edited already" in Page(form).text


def test_the_rows_of_a_list_are_marked(page: Client) -> None:
    group = made.group()
    handled(group, 1)
    edited(group)
    rows = [told(page, "parkedmessage/"), told(page, f"errorgroup/{group.pk}/change/")]

    assert ["handled already" in one and "edited" in one for one in rows] == [True, True]


def test_a_preview_of_edited_messages_sends_them(page: Client) -> None:
    group = made.group(reason="permanent")
    edited(group)

    assert previewed(page, group=group.pk).context["report"].sendable == 1


def test_a_message_page_says_by_whom_it_was_edited_and_has_the_x_death_among_its_headers(
    page: Client, settings: Any
) -> None:
    operating(settings, EDITABLE={"*": True})
    death = {"queue": "payments.main", "reason": "rejected", "count": 3, "exchange": "", "routing-keys": ["transfer"]}
    one = made.message(properties=made.properties({"x-death": [death]}))
    store(one.pk, Actor.of_code("ann"), propose(one, text="{}"), version=1, reason="x")
    shown = told(page, f"parkedmessage/{one.pk}/change/")

    assert "Edited by ann, " in shown
    assert shown.index("Headers and properties") < shown.index("The broker's own count (x-death)")
