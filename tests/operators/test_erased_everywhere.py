"""An erasure reaches every column of every table: nothing names the customer, the message or its contents afterwards.

A new column is filled with all of them here. It has to be emptied by an erasure, or to be named in ``KEPT``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db.models import BinaryField, CharField, Field, JSONField, Model, TextField
from django.utils import timezone

from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import (
    Action,
    AlertWatch,
    ApprovalRequest,
    Attempt,
    AttemptName,
    ConsumerProcess,
    EarlyRetry,
    FormerName,
    GatedAct,
    KeyList,
    ListedKey,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    QueueControl,
    RequeueRun,
    State,
    StoredResult,
)
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked.audit import verify
from django_rmq_retry.parked.erasure import erase, traces
from django_rmq_retry.parked.four_eyes import Wish
from django_rmq_retry.parked.operators import Refused
from django_rmq_retry.parked.selection import Selection
from tests.admin.made import attempt
from tests.operators.made import ANN, logged, record, requeue_run
from tests.tooling.marks import nightly_but

pytestmark = [pytest.mark.django_db, pytest.mark.database]
MESSAGE_ID, BODY = "9f3c-77", "Zita Maier, DE89370400440532013000"
KEYS = {
    "plain": "CUST-0211",
    "accented": "Müller-7",
    "other letters": "客户-7",
    "with quotes": 'O"Neil-7',
    "with a backslash": "BANK\\mueller-7",
    "with wildcards": "50%_off-7",
    "very long": "CUST-" + "0211" * 100,
}
PROJECT = "a name that the project or the sender gives to kinds of messages, queues and programs"
OPERATOR = "an operator, who is not erased here"
CODE = "a code of this package, or the class of an error"
DIGEST = "a digest"
KEPT: Mapping[str, str] = {
    **dict.fromkeys(
        ("queue", "handler", "exchange", "routing_key", "parked_in", "type", "target", "retries_of"), PROJECT
    ),
    **dict.fromkeys(("content_type", "content_encoding", "host", "thread", "deploy", "version", "broker"), PROJECT),
    **dict.fromkeys(("driver", "prober", "halted_by", "holder", "ConsumerProcess.name"), PROJECT),
    **dict.fromkeys(
        ("queues", "retries_of", "ConsumerProcess.late", "ConsumerProcess.fault", "ConsumerProcess.place"),
        PROJECT,
    ),
    **dict.fromkeys(("StoredResult.backend", "StoredResult.task", "StoredResult.worker"), PROJECT),
    **dict.fromkeys(("by", "by_key", "actor_name", "actor_key", "behalf", "decided_by", "approved_by"), OPERATOR),
    **dict.fromkeys(("requeued_by", "erased_by", "ended_by"), OPERATOR),
    **dict.fromkeys(("source", "verdict", "error", "kind", "include", "AlertWatch.name"), CODE),
    **dict.fromkeys(("ParkedMessage.reason", "Attempt.reason"), CODE),
    **dict.fromkeys(("identity", "sha256", "copy", "fingerprint", "seal", "salt", "digest", "previous"), DIGEST),
    "traceparent": "too short for a name; it is emptied",
    "ConsumerProcess.idle": "names of queues, and times",
    "RequeueRun.outages": "times",
    "RequeueRun.silences": "times",
    "RequeueRun.guard_pauses": "times, and numbers of messages",
    "RequeueRun.causes": "numbers of error groups, and how many messages were in each",
    "HandlerRate": PROJECT,
    "Declared": PROJECT,
    "AuditHead": DIGEST,
    "ErrorGroup": "of all its messages; an operator edits its notes",
    "OutboxMessage": "not sent yet; the row is deleted with the confirm, or when an operator discards it",
    "BlockedKey": "an erasure is refused as long as it is blocked",
    "BlockedMessage": "still to be handled",
    "InboxEntry": "without the name the message could be handled twice; it is deleted after INBOX_DAYS",
}
"""Columns, or whole tables, that an erasure leaves as they are, each with its reason."""


def columns() -> "Iterator[tuple[type[Model], Field[Any, Any]]]":
    """Each column that can hold a text."""
    for model in apps.get_app_config("rmq_retry").get_models():
        for field in model._meta.concrete_fields if model._meta.managed else ():
            names = {model.__name__, field.name, f"{model.__name__}.{field.name}"}
            texts = isinstance(field, CharField | TextField | JSONField | BinaryField) and not field.choices
            if texts and names.isdisjoint(KEPT):
                yield model, field


def stored(model: type[Model], column: str) -> str:
    """All that a column holds, as text, without the escapes of JSON."""
    return "\n".join(map(as_text, model._base_manager.values_list(column, flat=True)))


def as_text(value: object) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return "\n".join(as_text(part) for pair in value.items() for part in pair)
    return "\n".join(map(as_text, value)) if isinstance(value, list) else str(value)


def naming(words: Iterable[str]) -> set[str]:
    """The columns that hold one of the words."""
    sought = [word[:60] for word in words]
    every = ((model, field.name) for model in tables() for field in model._meta.concrete_fields)
    return {
        f"{model.__name__}.{column}" for model, column in every if any(word in stored(model, column) for word in sought)
    }


def tables() -> list[type[Model]]:
    return [model for model in apps.get_app_config("rmq_retry").get_models() if model._meta.managed]


def fill(words: tuple[str, ...]) -> None:
    """Write the words into each column that holds none of them yet."""
    text = " ".join(reversed(words))
    known = naming(words)
    for model, field in columns():
        if f"{model.__name__}.{field.name}" in known or model is OperatorAction:
            continue
        value: Any = short(text, field.max_length) if field.max_length else text
        if isinstance(field, JSONField):
            value = [{"text": text}]
        model._base_manager.update(**{field.name: value.encode() if isinstance(field, BinaryField) else value})


def everything_about(key: str) -> ParkedMessage:
    """A row of each table that is about a message of the customer."""
    now, stored_key = timezone.now(), short(key, 255)
    facts: dict[str, Any] = {
        "message_id": MESSAGE_ID,
        "body": BODY.encode(),
        "state": State.DISCARDED,
        "resolved_at": now,
    }
    one = record(keys=[stored_key], business_key=stored_key, **facts)
    attempt(one)
    Attempt.objects.filter(pk=attempt(one, identity="message:another").pk).update(message_id=MESSAGE_ID)
    AttemptName.objects.create(identity="message:unparked", value=stored_key, folded=folded(stored_key), at=now)
    MessageVersion.objects.create(message=one, number=2, body=b"", properties=b"", sha256="", at=now, by="ann")
    listing = KeyList.objects.create(created_at=now, by="ann", count=1)
    ListedKey.objects.create(list=listing, place=0, value=stored_key)
    FormerName.objects.create(value=stored_key, message=one.pk + 1000, deleted_at=now)
    StoredResult.objects.create(id=MESSAGE_ID, body=BODY.encode(), enqueued_at=now, expires_at=now)
    run = RequeueRun.objects.create(created_at=now, state="finished", selection={"filter": {"key": stored_key}})
    EarlyRetry.objects.create(run=run, identity="message:other", shown=stored_key, sent_at=now)
    wish = {"selection": {"filter": {"key": stored_key}}, "terms": {"text": BODY}}
    ApprovalRequest.objects.create(
        act="discard", state="done", wish=json.dumps(wish), by="bob", asked_at=now, expires_at=now
    )
    edit = Wish(
        act=GatedAct.EDIT,
        selection=Selection(revisions={one.pk: one.revision}, as_of=now, count=1),
        terms={"version": 1, "known": "", "changes": [["name", BODY, None]]},
    )
    ApprovalRequest.objects.create(
        act=edit.act, state="rejected", wish=edit.text, by="bob", asked_at=now, expires_at=now
    )
    logged(Action.DISCARD, on=one, subject=stored_key, reason=f"{BODY} called", facts={"find": stored_key})
    logged(Action.PAUSE, subject="payments.charge", reason=f"double {key}"[:255], facts={"until": f"see {stored_key}"})
    QueueControl.objects.create(
        queue="payments.charge", halted_at=now, halted_message=MESSAGE_ID, cause=f"BankDown: {key} of {BODY}"[:600]
    )
    entry = {"queue": "payments.charge", "key": stored_key, "message_id": MESSAGE_ID, "attempt": 2}
    others = {"queue": "other", "key": "CUST-1", "message_id": "1"}
    left = {"payments.charge": [MESSAGE_ID], "other": ["1"]}
    process(beat_at=now - timedelta(hours=1), in_flight=[others, entry], let_go=left)
    told = {"code": "HALTED", "subject": "payments.charge", "text": f"halted: {stored_key}, {BODY}"}
    AlertWatch.objects.create(name="alerts", told={"mail": {"HALTED payments.charge": told}}, holder="web-1")
    return one


def process(**fields: Any) -> ConsumerProcess:
    values = {"name": f"p{ConsumerProcess.objects.count()}", "host": "worker-3", "pid": 7, "started_at": timezone.now()}
    return ConsumerProcess.objects.create(**(values | {"beat_at": timezone.now()} | fields))


@pytest.mark.parametrize("key", nightly_but([KEYS["plain"], KEYS["with wildcards"]], KEYS.values()), ids=KEYS)
def test_no_column_of_any_table_names_the_customer_afterwards(key: str) -> None:
    everything_about(key)
    words = (key, MESSAGE_ID, BODY)
    fill(words)
    before = naming(words)
    assert [name for model, field in columns() if (name := f"{model.__name__}.{field.name}") not in before] == []
    counted = traces([key, MESSAGE_ID])
    erase([key, MESSAGE_ID], ANN, reason="request 12")

    assert naming(words) == set()
    assert (counted.messages, counted.attempts, counted.actions, counted.runs, counted.states) == (1, 2, 2, 1, 3)
    assert list(verify()) == []


def test_a_message_id_that_is_not_erased_stays_in_the_attempts() -> None:
    one = everything_about("CUST-0211")
    erase(["CUST-0211"], ANN, reason="request 12")

    assert set(Attempt.objects.values_list("message_id", flat=True)) == {MESSAGE_ID}
    assert ParkedMessage.objects.get(pk=one.pk).message_id == MESSAGE_ID
    assert QueueControl.objects.get().halted_message == ""


@pytest.mark.parametrize("other", ["müller-7", "Muller-7", "Müller-7 ", "Müller-77"])
def test_names_that_a_database_takes_for_the_same_stay(other: str) -> None:
    one, theirs = everything_about("Müller-7"), record(keys=[other], message_id="theirs")
    listing = KeyList.objects.create(created_at=timezone.now(), by="ann", count=1)
    ListedKey.objects.create(list=listing, place=0, value=other)
    FormerName.objects.create(value=other, message=one.pk + 2000, deleted_at=timezone.now())
    erase(["Müller-7"], ANN, reason="request 12")

    assert ListedKey.objects.filter(list=listing).get().value == other
    assert FormerName.objects.get(message=one.pk + 2000).value == other
    assert theirs.keys.get().value == other


def test_a_key_that_is_a_number_means_no_number_of_a_message() -> None:
    one = record(keys=["7"], state=State.DISCARDED, resolved_at=timezone.now())
    logged(Action.HOLD, messages=[7, 8], reason="the bank asked")
    run = RequeueRun.objects.create(
        created_at=timezone.now(), state="finished", selection={"ids": {"7": 1}}, reason="x"
    )
    erase(["7"], ANN, reason="request 12")

    assert OperatorAction.objects.get(action=Action.HOLD).reason == "the bank asked"
    assert RequeueRun.objects.get(pk=run.pk).reason == "x"
    assert not one.keys.exists()


def test_a_process_that_vanished_keeps_what_it_had_in_flight_without_names() -> None:
    everything_about("CUST-0211")
    erase(["CUST-0211"], ANN, reason="request 12")

    others, erased = ConsumerProcess.objects.get().in_flight
    assert (others["key"], others["message_id"]) == ("CUST-1", "1")
    assert erased == {"queue": "payments.charge", "key": "", "message_id": "", "attempt": 2}


@pytest.mark.parametrize("left", [MESSAGE_ID, "CUST-0211"])
def test_a_process_that_vanished_does_not_deny_a_message_whose_name_is_erased(left: str) -> None:
    """Without the name all that it had of the queue is in doubt again."""
    everything_about("CUST-0211")
    ConsumerProcess.objects.update(in_flight=[], let_go={"payments.charge": [left]})
    erase(["CUST-0211"], ANN, reason="request 12")

    assert ConsumerProcess.objects.get().let_go is None


def test_a_queue_that_is_halted_by_a_message_of_the_customer_is_handled_first() -> None:
    everything_about("CUST-0211")
    QueueControl.objects.update(halted_seen_at=timezone.now())
    with pytest.raises(Refused, match=r"Queue payments.charge is halted by one of these messages. Wait until"):
        erase(["CUST-0211"], ANN, reason="request 12")

    assert OperatorAction.objects.filter(action=Action.ERASE).count() == 0


def test_an_approved_act_that_is_being_carried_out_is_not_deleted() -> None:
    one = everything_about("CUST-0211")
    ApprovalRequest.objects.update(state="approved")
    with pytest.raises(Refused, match="is being carried out, and names one of these keys"):
        erase(["CUST-0211"], ANN, reason="request 12")

    assert set(ApprovalRequest.objects.values_list("state", flat=True)) == {"approved"}
    assert bytes(ParkedMessage.objects.get(pk=one.pk).body) == BODY.encode()


def test_an_alert_that_was_told_ends_without_the_name_and_nobody_writes_it_again() -> None:
    everything_about("CUST-0211")
    erase(["CUST-0211"], ANN, reason="request 12")
    watch = AlertWatch.objects.get()

    assert watch.told["mail"]["HALTED payments.charge"]["text"] == "(erased)"
    assert (watch.holder, watch.leased_until) == ("", None)


def test_a_requeue_run_whose_messages_were_all_deleted_is_forgotten_too() -> None:
    one = everything_about("CUST-0211")
    run = requeue_run([record().pk], reason="for CUST-0211")
    RequeueRun.objects.filter(pk=run.pk).update(state="finished")
    run.items.all().delete()
    erase(["CUST-0211"], ANN, reason="request 12")

    assert RequeueRun.objects.get(pk=run.pk).reason == ""
    assert one.pk
