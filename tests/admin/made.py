"""Makes records as the drainer would leave them: causes, messages, attempts, accounts."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from django_rmq_retry.admin import broker_look
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.models import (
    ApprovalRequest,
    Attempt,
    AttemptName,
    BlockedKey,
    BlockedMessage,
    ConsumerProcess,
    ErrorGroup,
    OutboxMessage,
    ParkedMessage,
    QueueControl,
)
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked import four_eyes
from django_rmq_retry.parked.approvals import ask
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from tests.operators.made import record

_numbers = itertools.count(1)
BODY = b'{"amount": 100.00, "reference": 12345678901234567890, "iban": "DE89370400440532013000"}'
FRAMES = [
    {"file": "django/db/transaction.py", "line": 85, "function": "inner", "code": "return func()", "own": False},
    {"file": "payments/handlers.py", "line": 41, "function": "transfer", "code": "gateway.post(order)", "own": True},
    {"file": "bank/gateway.py", "line": 17, "function": "post", "code": "raise GatewayTimeout(host)", "own": True},
]


def group(**fields: Any) -> ErrorGroup:
    """A cause without messages."""
    number = next(_numbers)
    now = timezone.now()
    values: dict[str, Any] = {
        "fingerprint": f"{number:040x}",
        "title": "GatewayTimeout",
        "culprit": "bank.gateway:post",
        "reason": "retries_exhausted",
        "first_seen": now - timedelta(minutes=52),
        "last_seen": now,
    }
    # Nothing that failed last was a copy of a requeue, unless a test says so.
    newest = {"last_new": fields.get("last_seen", now)}
    return ErrorGroup.objects.create(**(values | newest | fields))


def message(in_group: ErrorGroup | None = None, **fields: Any) -> ParkedMessage:
    """A parked message of a cause, counted there, with all that a page shows."""
    number = next(_numbers)
    parked_at = fields.get("parked_at") or timezone.now() - timedelta(seconds=number % 3000)
    owner = in_group or group()
    values: dict[str, Any] = {
        "group": owner,
        "body": BODY,
        "message_id": f"9f3c-{number}",
        "correlation_id": f"corr-{number}",
        "type": "payment.transfer",
        "handler": "transfer",
        "queue": "payments.main",
        "parked_in": f"{fields.get('queue') or 'payments.main'}.parked"[:255],
        "routing_key": "transfer",
        "properties": properties(message_id=f"9f3c-{number}"),
        "content_type": "application/json",
        "reason": owner.reason,
        "detail": "Gave up after 5 attempts.",
        "error": owner.title,
        "error_text": "no answer within 30 s",
        "published_at": parked_at - timedelta(minutes=21),
        "failed_at": parked_at - timedelta(minutes=20),
        "parked_at": parked_at,
    }
    parked = record(**(values | fields))
    owner.refresh_from_db()
    owner.arrived += 1
    owner.save()
    return parked


def properties(headers: dict[str, object] | None = None, **fields: Any) -> bytes:
    """As the broker writes them."""
    given: dict[str, Any] = {"content_type": "application/json", "delivery_mode": 2} | fields
    return encode_properties(Properties(headers=Headers.of(headers or {"tenant": "north"}), **given))


def attempt(of: ParkedMessage, number: int = 1, *, at: datetime | None = None, **fields: Any) -> Attempt:
    """A failed attempt of a message."""
    started = at or of.parked_at - timedelta(minutes=4 * (of.attempts - number), seconds=30)
    values: dict[str, Any] = {
        "identity": of.identity,
        "queue": of.queue,
        "handler": of.handler,
        "message_id": of.message_id,
        "number": number,
        "started_at": started,
        "seconds": 30.012,
        "verdict": "park" if number == of.attempts else "retry",
        "wait": 0 if number == of.attempts else 210,
        "next_at": None if number == of.attempts else started + timedelta(seconds=240),
        "error": of.error,
        "error_text": of.error_text,
        "chain": [{"error": of.error, "text": of.error_text, "frames": FRAMES}],
        "logs": "INFO payments: posting order 17",
        "host": "worker-3",
        "pid": 812,
        "thread": "rmq-worker-1",
        "deploy": "a1b2c3",
    }
    return Attempt.objects.create(**(values | fields))


def waiting_retries(queue: str, count: int, *, began: timedelta = timedelta(minutes=1)) -> None:
    """Attempts, begun so long ago, after which as many messages wait for their retry."""
    now = timezone.now()
    for number in range(count):
        Attempt.objects.create(
            identity=f"waits {queue} {number}", queue=queue, handler=queue, message_id=str(number), number=1,
            started_at=now - began, seconds=0.1, verdict="retry", wait=600, next_at=now + timedelta(minutes=10),
            error="GatewayTimeout", host="h", pid=1, thread="t",
        )  # fmt: skip


def person(name: str, *permissions: str, superuser: bool = False) -> User:
    """A staff user with these permissions of the app."""
    made = User.objects.create(username=name, is_staff=True, is_superuser=superuser)
    named = Permission.objects.filter(content_type__app_label="rmq_retry", codename__in=permissions)
    found = {permission.codename: permission for permission in named}
    assert set(found) == set(permissions), sorted(set(permissions) - set(found))
    made.user_permissions.add(*found.values())
    return made


def blocked_key(**fields: Any) -> BlockedKey:
    """A blocked key that no message waits behind."""
    number = next(_numbers)
    values = {"handler": "transfer", "key": f"ACC-{number}", "digest": f"{number:064x}", "queue": "payments.main"}
    first = {"blocker": "9f3c-0", "name": "m1", "identity": "message:0", "since": timezone.now()}
    return BlockedKey.objects.create(**(values | first | fields))


def outgoing(**fields: Any) -> OutboxMessage:
    """A row of the outbox that the broker has refused for good."""
    values = {"message_id": "9f3c-7", "routing_key": "payments.main", "body": b"{}", "size": 2, "properties": b"\0\0"}
    now = timezone.now()
    times = {"created_at": now, "due_at": now, "failed_at": now}
    return OutboxMessage.objects.create(**(values | times | {"error": "312 NO_ROUTE", "attempts": 15} | fields))


def in_flight(*, seconds: float = 0, **fields: Any) -> dict[str, Any]:
    """A message that a handler has run with for these seconds."""
    since = (timezone.now() - timedelta(seconds=seconds)).isoformat()
    names = {"queue": "payments.main", "handler": "transfer", "key": "PAY-1", "message_id": "9f3c-7"}
    return {**names, "attempt": 1, "since": since, "timeout": None, **fields}


def consumer(*, seconds: float = 0, **fields: Any) -> ConsumerProcess:
    """The row of a consuming process; ``seconds`` is the age of its last heartbeat."""
    [row] = consumers(1, seconds=seconds, **fields)
    return row


def consumers(count: int, *, seconds: float = 0, **fields: Any) -> list[ConsumerProcess]:
    beat = timezone.now() - timedelta(seconds=seconds)
    of_host = {"host": "worker-3", "pid": 4711, "version": "0.1.0"}
    facts = {"deploy": "2026.11", "broker": "amqp://app@rabbit:5672/bank", "queues": ["payments.main"], "threads": 4}
    times = {"started_at": beat - timedelta(hours=3), "beat_at": beat, "connected": True}
    told = of_host | facts | times | fields
    rows = [ConsumerProcess(**{"name": f"bank-1:4711.{next(_numbers)}"} | told) for _ in range(count)]
    return ConsumerProcess.objects.bulk_create(rows)


def tried_again(message_id: str, *, at: datetime, verdict: str, **fields: Any) -> Attempt:
    """An attempt of a message that another process did not settle, with the names that a search finds it by."""
    identity = f"message:{message_id}"
    AttemptName.objects.create(identity=identity, value=message_id, folded=folded(message_id), at=at)
    facts = {"queue": "payments.main", "host": "worker-4", "pid": 12, "number": 1, "seconds": 0.5, "thread": "t"}
    times = {"started_at": at, "verdict": verdict, "redelivered": True}
    return Attempt.objects.create(identity=identity, message_id=message_id, **{**facts, **times, **fields})


def selected(*messages: ParkedMessage) -> str:
    """The token that a page gets for these messages."""
    return Selection.of_ids([one.pk for one in messages]).token()


def asked(do: Callable[[Actor], object], by: Actor | None = None) -> ApprovalRequest:
    """A request for an act that is put off because it needs a second person, by default of an operator with a shell."""
    author = by or Actor(name="ann", behalf="ann@ops-1", source="cli")
    with patch.object(four_eyes, "needs_second", lambda *_: True), pytest.raises(SecondPersonNeeded) as needed:
        do(author)
    return ask(needed.value.wish, author)


AWAY_FOR = timedelta(seconds=5)
"""The time for which a broker that is away has been so."""


def broker_seen(
    monkeypatch: pytest.MonkeyPatch,
    *levels: Level,
    away: str = "",
    api: bool = True,
    last: broker_look.Look | None = None,
    late: bool = False,
) -> None:
    """Let the pages see these queues, or a broker that cannot be reached for this reason and was seen before."""
    now = timezone.now()
    problem = Problem(code=Code.BROKER_AWAY, values={"address": "amqp://rabbit", "reason": away}) if away else None
    since = now - AWAY_FOR if away else None
    gauged = Gauged(levels=levels, api_set=api)
    seen = broker_look.Look(at=now, away=problem, since=since, last=last, late=late, gauged=gauged)
    for name in ("look", "glimpse"):
        monkeypatch.setattr(broker_look, name, lambda: seen)


def not_parked() -> None:
    """A message of the outbox, one behind a blocked key, one at the head of a halted queue, and two in handlers."""
    outgoing(message_id="OUT-2", order_key="ACC-5")
    now = timezone.now()
    key = blocked_key(key="ACC-6", blocker="PAY-60")
    waiting = {"shown": "PAY-61", "name": "m2", "identity": "message:2", "digest": "2", "waiting_since": now}
    BlockedMessage.objects.create(block=key, body=b"{}", properties=b"", **waiting)
    halt = {"halted_message": "PAY-70", "halted_key": "REF-7"}
    QueueControl.objects.create(queue="bank.main", halted_at=now, halted_seen_at=now, **halt)
    for host, number, beat in (("a", 1, now - timedelta(minutes=5)), ("b", 2, now)):
        entry = {"queue": "bank.main", "key": f"PAY-{7999 + number}", "message_id": f"9f3c-{7999 + number}"}
        row = {"name": host, "host": host, "pid": number, "started_at": beat, "beat_at": beat}
        ConsumerProcess.objects.create(in_flight=[entry], **row)
