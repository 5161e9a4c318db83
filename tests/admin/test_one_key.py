"""Several messages with one business key: an operator is told before a requeue that it may do one thing twice."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.models import ParkedMessage
from tests.admin import made
from tests.admin.looking import Page, press
from tests.admin.pasting import LIST, previewed
from tests.admin.stopped import outgoing
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ONE_REQUEST = "2 share business key and type with another one, but not the content: perhaps one request, sent twice"


def twins(**second: Any) -> list[ParkedMessage]:
    cause = made.group()
    return [
        made.message(cause, business_key="PAY-1", body=b'{"payment": "PAY-1", "try": 1}'),
        made.message(cause, business_key="PAY-1", **{"body": b'{"payment": "PAY-1", "try": 2}', **second}),
        made.message(cause, business_key="PAY-2"),
    ]


class TestTwoOfOneTypeToSend:
    def test_are_named_in_amber_before_both_are_sent(self, page: Client) -> None:
        first, second, _other = twins()
        preview = previewed(page, group=first.group_id)
        (shared,) = (one for one in preview.context["report"].findings if one.name == "twins")
        text = Page(preview).text

        assert f"! {ONE_REQUEST}" in text
        assert {pk for pk, _name, _told in shared.decisions} == {first.pk, second.pk}
        assert f'href="{LIST}{second.pk}/change/"' in preview.content.decode()
        assert "payment.transfer in payments.main, parked " in text
        assert re.search(r", try: (1 → 2|2 → 1)", text)

    def test_are_left_out_but_for_the_first_by_one_button(self, page: Client) -> None:
        first, second, other = twins()
        ParkedMessage.objects.filter(pk=second.pk).update(parked_at=first.parked_at)
        preview = previewed(page, group=first.group_id)
        less = press(page, preview, "Leave the later one out")

        assert less.context["report"].sendable == 2
        assert {one.pk for one in less.context["sample"]} == {first.pk, other.pk}
        assert ONE_REQUEST not in Page(less).text
        assert less.context["left"].text == second.message_id

    def test_do_not_show_what_is_masked(self, page: Client, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"MASK": ["try"]}}

        assert "try: " not in Page(previewed(page, group=twins()[0].group_id)).text

    def test_are_named_by_the_command(self) -> None:
        first, second, _other = twins()
        told = run("rmq_parked", "requeue", "--group", str(first.group_id), "--dry-run").out

        assert "\n! 2 twins, sent: " in f"\n{told}"
        assert "to leave the later 1 out, pass --except-from a file with 9f3c-" in told
        assert all(f"PAY-1 (#{one.pk}): payment.transfer in payments.main, parked " in told for one in (first, second))

    @pytest.mark.parametrize("other", [{"type": "payment.refund"}, {"queue": "payments.mail"}])
    def test_are_a_remark_if_they_request_different_things(self, page: Client, other: Any) -> None:
        first = twins(**other)[0]
        preview = previewed(page, group=first.group_id)

        assert ONE_REQUEST not in Page(preview).text
        assert not any(one.warns for one in preview.context["report"].findings)


@pytest.mark.parametrize("became", ["requeued", "requeueing", "processed"])
def test_one_whose_twin_was_sent_says_so_on_its_page_and_before_it_is_sent(page: Client, became: str) -> None:
    twin, one, _other = twins()
    ParkedMessage.objects.filter(pk=twin.pk).update(state=became, requeued_at=timezone.now())
    told = "1 has the business key of another message, which was handled or is on its way"
    dry_run = run("rmq_parked", "requeue", str(one.pk), "--dry-run").out

    assert f"! {told}" in Page(previewed(page, message=one.pk)).text
    assert "! 1 key processed, sent: PAY-1" in dry_run


@pytest.mark.parametrize(("became", "told"), [
    ("requeued", "Another message with its business key was requeued"),
    ("processed", "Another message with its business key was processed"),
    ("parked", "Another message with its business key is parked."),
])  # fmt: skip
def test_the_page_of_a_message_warns_of_its_twin(page: Client, became: str, told: str) -> None:
    twin, one, _other = twins()
    ParkedMessage.objects.filter(pk=twin.pk).update(state=became, requeued_at=timezone.now())
    shown = page.get(f"{LIST}{one.pk}/change/")

    assert f'<p class="rmq-note rmq-warn">{told}' in shown.content.decode()


class TestOnesWithTheKeyOfOneInTheOutbox:
    def test_are_left_out_by_one_button(self, page: Client) -> None:
        first, _second, other = twins()
        outgoing(failed=False)
        preview = previewed(page, group=first.group_id)
        less = press(page, preview, "Leave the messages with these keys out", rate="7")

        assert "In the outbox, not sent yet: 9f3c-1 (PAY-1)" in Page(preview).text
        assert less.context["report"].total == less.context["report"].sendable == 1
        assert [one.pk for one in less.context["sample"]] == [other.pk]
        assert less.context["left"].text == "PAY-1"
        assert less.context["form"].options.rate == 7
        assert "In the outbox" not in Page(less).text

    def test_are_left_out_beside_those_that_were_left_out_before(self, page: Client) -> None:
        first = twins()[0]
        outgoing(failed=False)
        made.message(first.group, business_key="PAY-3")
        typed = press(page, previewed(page, group=first.group_id), "Leave these out", **{"except": "PAY-3"})
        less = press(page, typed, "Leave the messages with these keys out")

        assert less.context["left"].text.split() == ["PAY-3", "PAY-1"]
        assert less.context["report"].total == 1
