"""A renamed handler with ``once`` recognizes what it handled under its earlier name."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.checks import run_checks
from django.utils import timezone

from django_rmq_retry import Delivery, handler
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.inbox.retention import EntryRetention, Twins
from django_rmq_retry.models import InboxEntry, State
from django_rmq_retry.testing import RmqTest, isolated_handlers
from tests.commands.running import run
from tests.parked.made import parked

pytestmark = [pytest.mark.database, pytest.mark.django_db, pytest.mark.usefixtures("no_handlers")]


def handling(name: str, **options: Any) -> tuple[Any, list[object]]:
    ran: list[object] = []

    @handler("payments", name=name, **{"once": True, **options})
    def handle(message: Delivery) -> None:
        ran.append(message.data)

    return handle, ran


def renamed(rmq: RmqTest, *, once: Any = True, **options: Any) -> list[object]:
    """Handle a message under a name, then let a second copy of it come to the handler's new name."""
    with isolated_handlers():
        handling("charge", once=once)[0].publish("a", message_id="m")
        assert rmq.drain() == 1
    with isolated_handlers():
        book, ran = handling("book", once=once, **options)
        book.publish("a", message_id="m")
        rmq.drain()
    return ran


@pytest.mark.parametrize("once", [True, lambda message: message.data], ids=["by id", "by function"])
def test_a_message_handled_under_the_earlier_name_does_not_run_again(rmq: RmqTest, once: Any) -> None:
    assert renamed(rmq, once=once) == ["a"]

    InboxEntry.objects.all().delete()
    assert renamed(rmq, once=once, formerly="charge") == []


def test_old_and_new_processes_recognize_each_others_messages(rmq: RmqTest) -> None:
    with isolated_handlers():
        book, _ = handling("book", formerly="charge")
        book.publish("a", message_id="m")
        rmq.drain()
    charge, ran = handling("charge")
    charge.publish("a", message_id="m")
    rmq.drain()

    assert (ran, InboxEntry.objects.get().handler) == ([], "charge")


def test_what_was_handled_under_the_new_name_before_it_was_told_is_recognized(rmq: RmqTest) -> None:
    with isolated_handlers():
        handling("book")[0].publish("a", message_id="m")
        rmq.drain()
    book, ran = handling("book", formerly="charge")
    book.publish("a", message_id="m")
    book.publish("b", message_id="n")
    rmq.drain()

    assert ran == ["b"]
    assert sorted(InboxEntry.objects.values_list("handler", "name")) == [("book", "m"), ("charge", "n")]


def test_another_body_under_the_same_name_is_a_conflict_after_a_rename_too(rmq: RmqTest) -> None:
    with isolated_handlers():
        handling("book")[0].publish("a", message_id="m")
        rmq.drain()
    book, ran = handling("book", formerly="charge")
    book.publish("other", message_id="m")
    rmq.drain()

    (reason,) = [one.reason for one in rmq.all_parked(book)]
    assert (ran, "has handled 'm' before, with another body" in reason) == ([], True)


def test_two_handlers_never_share_a_name() -> None:
    handling("charge")
    with pytest.raises(ConfigurationError, match="'charge' names a handler that still exists"):
        handling("book", formerly="charge")
    with isolated_handlers():
        handling("book", formerly="charge")
        with pytest.raises(ConfigurationError, match="'charge' names a handler that still exists"):
            handling("charge")
        with pytest.raises(ConfigurationError, match=r"Both book and pay have formerly='charge'\."):
            handling("pay", formerly="charge")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formerly": "charge", "once": False}, "Add once=True, or omit formerly"),
        ({"formerly": "book"}, "is the handler's name of today"),
        ({"formerly": [1]}, "is its earlier name, such as"),
        ({"formerly": ["charge", "book"]}, "is the handler's name of today"),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        handling("book", **options)


@pytest.mark.parametrize("recorded_as", ["charge", "collect", "book"])
def test_a_parked_copy_of_a_handled_message_is_closed_under_each_name(rmq: RmqTest, recorded_as: str) -> None:
    book, _ = handling("book", formerly=["charge", "collect"])
    book.publish("a", message_id="m")
    rmq.drain()
    record = parked(message_id="m", handler=recorded_as, queue="payments", body=b'"a"')

    Twins()()
    record.refresh_from_db()
    assert record.state == State.PROCESSED


@pytest.mark.parametrize("recorded_as", ["charge", "collect", "book"])
def test_an_entry_is_kept_for_a_parked_message_under_each_name(recorded_as: str) -> None:
    handling("book", formerly=["charge", "collect"])
    for name in ("m", "old"):
        at = timezone.now() - timedelta(days=400)
        InboxEntry.objects.create(key=uuid4(), handler="charge", name=name, digest=uuid4(), handled_at=at)
    parked(message_id="m", handler=recorded_as, queue="payments", body=b"{}")

    EntryRetention()()
    assert [one.name for one in InboxEntry.objects.all()] == ["m"]


class TestARenameThatNobodyTold:
    def said(self) -> list[tuple[str | None, str, str | None]]:
        return [(one.id, one.msg, one.hint) for one in run_checks(tags=["database"], databases=["default"])]

    def test_the_check_and_the_doctor_name_the_old_name_and_the_candidates(self, rmq: RmqTest, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": "amqp://app:sesame@127.0.0.1:1/pay"}
        renamed_to, _ = handling("book")
        InboxEntry.objects.create(key=uuid4(), handler="charge", name="m", digest=uuid4(), handled_at=timezone.now())
        problem = (
            "Messages were handled once by 'charge', which no handler is named now. If it was renamed, each of them "
            "that comes again is handled again."
        )
        fix = (
            "Add formerly='charge' to the handler that took its place (book). If it was removed, do nothing: its "
            "entries are deleted after INBOX_DAYS."
        )

        assert self.said() == [("rmq_retry.W034", problem, fix)]
        findings = run("rmq_doctor", "--json").data["findings"]
        assert [one["fix"] for one in findings if one["problem"] == problem] == [f"{fix} (rmq_retry.W034)"]

        renamed_to.publish("a", message_id="n")
        rmq.drain()
        assert self.said() == [("rmq_retry.W034", problem, fix)]

    def test_a_handler_that_was_removed_beside_others_is_no_rename(self) -> None:
        for name, days in (("book", 3), ("charge", 2), ("book", 1)):
            at = timezone.now() - timedelta(days=days)
            InboxEntry.objects.create(key=uuid4(), handler=name, name="m", digest=uuid4(), handled_at=at)
        handling("book")

        assert self.said() == []

    def test_a_handler_without_once_keeps_its_name(self) -> None:
        InboxEntry.objects.create(key=uuid4(), handler="charge", name="m", digest=uuid4(), handled_at=timezone.now())
        handling("charge", once=False)
        handling("book")

        assert self.said() == []

    def test_a_handler_that_says_its_earlier_name_is_silent(self) -> None:
        handling("book", formerly="charge")
        InboxEntry.objects.create(key=uuid4(), handler="charge", name="m", digest=uuid4(), handled_at=timezone.now())

        assert self.said() == []
