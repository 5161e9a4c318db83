"""Attempts in their table, found again from a record, and what waits."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_rmq_retry.attempts import buffer
from django_rmq_retry.attempts.history import attempts_of, waiting
from django_rmq_retry.attempts.rows import AttemptDraft, AttemptRow, RowBuilder, draft_of
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.models import Attempt, AttemptName
from django_rmq_retry.policies import halt, park
from tests.attempts.attempted import CHARGE, failure, success
from tests.handlers.factories import delivery
from tests.messages.exceptions import BankDown
from tests.parked.made import NOON, minutes, parked

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def draft(attempt: Any = None, *, at: float = 0, ticket: Ticket | None = None) -> AttemptDraft:
    """An attempt that ended this number of minutes after noon."""
    return draft_of(attempt or failure(), ticket)._replace(ended=minutes(at).timestamp())


NAMED = replace(CHARGE, keys=lambda _message: ["PAY-1", "CUST-7"])
BUILDER = RowBuilder(deploy="a1b2c3", host="worker-3")
write = buffer.Writer(BUILDER)


def test_a_written_attempt_can_be_read_back() -> None:
    one = draft()

    write([one])
    row = BUILDER.row(one)

    found = Attempt.objects.get()
    for name in set(AttemptRow._fields) - {"chain"}:
        assert getattr(found, name) == getattr(row, name), name
    assert found.chain == json.loads(row.chain)


def test_many_attempts_are_written_at_once() -> None:
    write([draft(failure(delivery(message_id=f"m-{number}"))) for number in range(250)])

    assert Attempt.objects.count() == 250
    assert Attempt.objects.values("message_id").distinct().count() == 250


def names() -> list[str]:
    return list(AttemptName.objects.order_by("pk").values_list("value", flat=True))


def test_a_message_that_is_tried_again_is_named_once_by_its_id_and_all_its_keys() -> None:
    """A search found no payment that waited for its retry by any but its first key."""
    arrived = [delivery(message_id="m-1", attempt=number) for number in (1, 2)]
    write([draft(failure(arrived[0], subscription=NAMED), at=0), draft(failure(arrived[1], subscription=NAMED), at=1)])
    write([draft(failure(arrived[1], subscription=NAMED), at=2), draft(success(delivery(message_id="m-2", attempt=2)))])

    assert names() == ["m-1", "PAY-1", "CUST-7"]
    assert {row.identity for row in Attempt.objects.exclude(verdict="ack")} == {
        row.identity for row in AttemptName.objects.all()
    }


def test_a_message_whose_first_attempt_was_not_recorded_is_named_by_the_next_one() -> None:
    """Its process was killed."""
    write([draft(failure(delivery(message_id="m-1", attempt=2), subscription=NAMED))])

    assert names() == ["m-1", "PAY-1", "CUST-7"]


def test_a_message_that_is_parked_at_once_is_named_by_its_record_only() -> None:
    write([draft(failure(subscription=NAMED, verdict=park(Reason.PERMANENT, "no")))])

    assert names() == []


def test_a_batch_of_attempts_is_written_completely_or_not_at_all() -> None:
    good = BUILDER.row(draft())

    with pytest.raises(Exception, match=r"(?i)constraint|json"):
        buffer.write([good, good._replace(chain="{")])

    assert Attempt.objects.count() == 0


def test_plain_rows_hold_ascii_only() -> None:
    write([draft(failure(delivery(message_id="m-1"), error=Exception("\U0001f4a9 é")))], plain=True)

    found = Attempt.objects.get()

    assert (found.error_text, found.message_id, found.chain[0]["text"]) == ("? ?", "m-1", "\U0001f4a9 é")


@override_settings(USE_TZ=False, TIME_ZONE="Asia/Kathmandu")
def test_a_project_without_time_zones_stores_local_times() -> None:
    write([draft()])

    found = Attempt.objects.get()

    assert found.started_at.isoformat() == "2026-11-21T17:44:58.500000"


def test_any_text_of_an_attempt_can_be_stored() -> None:
    error = Exception("\0 \udcff \U0001f4a9 ' %s \\")
    write([draft(failure(delivery(message_id="m", queue="q'%s\udcff"), error=error))])

    found = Attempt.objects.get()

    assert found.error_text == "\\x00 \\udcff \U0001f4a9 ' %s \\"
    assert (found.queue, found.chain[0]["text"]) == ("q'%s\\udcff", found.error_text)


def test_the_attempts_of_a_record_are_found_by_its_id() -> None:
    arrival = delivery(message_id="m-1", body=b"1")
    record = parked(identity=BUILDER.row(draft(failure(arrival))).identity, body=b"1", message_id="m-1")
    write([draft(failure(arrival), at=1), draft(failure(arrival), at=2), draft(failure(delivery(message_id="m-2")))])

    assert [found.started_at for found in attempts_of(record)] == [
        minutes(2) - timedelta(seconds=1.5),
        minutes(1) - timedelta(seconds=1.5),
    ]


def test_the_attempts_of_a_record_without_an_id_are_found_by_its_bytes() -> None:
    record = parked(identity="copy:1", message_id="", body=b"1")
    other = parked(identity="copy:2", message_id="", body=b"2")
    identity = attempt_identity("payments", "", b"1")
    written_before = draft(failure(delivery(body=b"1")), at=1)._replace(identity=identity.replace("nameless:", "body:"))
    write([draft(failure(delivery(body=b"1")), at=2), written_before])

    assert [found.identity for found in attempts_of(record)] == [identity, identity.replace("nameless:", "body:")]
    assert not attempts_of(other).exists()


def test_attempts_of_an_edited_or_redirected_copy_belong_to_its_record() -> None:
    record = parked(identity="message:7", message_id="m-1", body=b"1")
    edited = failure(delivery(queue="other", message_id="m-1", body=b"2"))

    write(
        [
            draft(edited, ticket=Ticket(record=record.pk, cycle=2)),
            draft(edited, ticket=Ticket(record=record.pk + 1, cycle=2)),
        ]
    )

    assert attempts_of(record).count() == 1


def test_waiting_messages_are_listed_with_the_time_of_their_next_attempt() -> None:
    def of(name: str, **told: Any) -> Any:
        return failure(delivery(message_id=name), **told)

    given_up = park(Reason.EXHAUSTED, "Gave up", ErrorNote.of(BankDown("no")))
    write([draft(of(name)) for name in ("again", "parked", "handled")])
    write([draft(of("halted", verdict=halt(90, ErrorNote.of(BankDown("no")))))])
    write([draft(of("again"), at=1), draft(of("parked", verdict=given_up), at=1)])
    write([draft(success(delivery(message_id="handled", attempt=2)), at=1), draft(of("forgotten"), at=-90)])

    found = [(one.message_id, one.next_at) for one in waiting(minutes(1))]

    assert found == [("halted", NOON + timedelta(seconds=90)), ("again", minutes(1) + timedelta(seconds=30))]


def test_an_overdue_retry_is_listed_for_an_hour() -> None:
    write([draft()])

    assert waiting(minutes(50)).count() == 1
    assert waiting(minutes(61)).count() == 0
    assert waiting(minutes(61), overdue=timedelta(days=1)).count() == 1
