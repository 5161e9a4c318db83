"""An attempt as it is taken down on the worker's thread, and the row that is made of that later."""

import hashlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.parking import TICKET, identity
from django_rmq_retry.core.tracing import Cause, trace
from django_rmq_retry.core.verdict import Kind, Reason, Verdict, short
from django_rmq_retry.records import capturing
from django_rmq_retry.records.chains import chain_of
from django_rmq_retry.records.tickets import Ticket, bearer
from django_rmq_retry.runtime.events import message_id
from django_rmq_retry.runtime.grouping import named_by_handler, ruled
from django_rmq_retry.runtime.journal import Attempt
from django_rmq_retry.runtime.sources import projects_own

TICKET_MARK = TICKET.encode()
NAME = 255
KEPT = 2048
"""Bodies of more bytes are not kept until a row is made."""
SMALL = 2000
"""Bytes of memory that a draft takes at least, about."""
REMEMBERED = 1000
"""So many messages are known again, for one that fails is soon attempted once more."""
MOST = 2**31 - 1


class Row(NamedTuple):
    """The columns of an attempt."""

    identity: str
    queue: str
    handler: str
    message_id: str
    cycle: int
    number: int
    started_at: datetime
    seconds: float
    verdict: str
    wait: float
    next_at: datetime | None
    reason: str
    error: str
    error_text: str
    chain: str
    logs: str
    fingerprint: str
    host: str
    pid: int
    thread: str
    deploy: str


class Draft(NamedTuple):
    """What a worker takes down: all that is gone when the attempt is over, and nothing that can be worked out later.

    A batch of rows is made in half the time that it takes to make each of them between two messages.
    """

    queue: str
    handler: str
    message_id: str
    body: bytes
    identity: str
    """Made at once where the body is large, which is then not kept."""
    number: int
    ended: float
    seconds: float
    verdict: Verdict
    trace: Sequence[Cause]
    logs: str
    fingerprint: str
    """Where the verdict or the handler tells it; the rule is followed later."""
    ticket: Ticket | None
    thread: str
    size: int
    """About so many bytes of memory."""


def drafted(attempt: Attempt, ticket: Ticket | None) -> Draft:
    """An attempt as it is taken down on the thread that made it."""
    delivery, error = attempt.delivery, attempt.error
    told, large = message_id(attempt) or "", len(delivery.body) > KEPT
    traced = () if error is None else trace(error, projects_own)
    logs = "" if error is None else capturing.text()
    body = b"" if large else delivery.body
    return Draft(
        queue=delivery.queue,
        handler=attempt.subscription.name if attempt.subscription else "",
        message_id=told,
        body=body,
        identity=identity_of(delivery.queue, told, delivery.body) if large else "",
        number=delivery.attempt,
        ended=time.time(),
        seconds=attempt.seconds,
        verdict=attempt.verdict,
        trace=traced,
        logs=logs,
        fingerprint=attempt.verdict.fingerprint or _named(attempt),
        ticket=ticket,
        thread=threading.current_thread().name,
        size=SMALL + len(body) + len(logs) + sum([len(cause.text) for cause in traced]),
    )


def _named(attempt: Attempt) -> str:
    """The group that the handler names for what may yet be parked."""
    subscription = attempt.subscription
    if attempt.error is None or subscription is None or subscription.fingerprint is None:
        return ""
    return named_by_handler(attempt.delivery, subscription, attempt.error) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scribe:
    """Makes rows of drafts; what is the same for a whole process is asked for once."""

    deploy: str = ""
    host: str = field(default_factory=lambda: short(socket.gethostname(), NAME))
    pid: int = field(default_factory=os.getpid)

    def row(self, draft: Draft) -> Row:
        verdict, ended = draft.verdict, draft.ended
        waits = verdict.kind in (Kind.RETRY, Kind.HALT)
        # In the order of the columns: by their names it would take a quarter of the whole time more.
        return Row(
            draft.identity or _identity(draft.queue, draft.message_id, draft.body),
            short(draft.queue, NAME),
            short(draft.handler, NAME),
            short(draft.message_id, NAME),
            min(draft.ticket.cycle, MOST) if draft.ticket else 1,
            min(draft.number, MOST),
            datetime.fromtimestamp(ended - draft.seconds, UTC),
            draft.seconds,
            verdict.kind.value,
            verdict.after,
            datetime.fromtimestamp(ended, UTC) + timedelta(seconds=verdict.after) if waits else None,
            verdict.reason.value if verdict.reason else "",
            verdict.error.kind if verdict.error else "",
            draft.trace[0].text if draft.trace else "",
            chain_of(draft.trace),
            draft.logs,
            draft.fingerprint or _fingerprint(draft),
            self.host,
            self.pid,
            short(draft.thread, 100),
            self.deploy,
        )


def _fingerprint(draft: Draft) -> str:
    """Of a failure that is retried: the group that it comes to if it goes on like this."""
    if not draft.trace:
        return ""
    kind = draft.verdict.error.kind if draft.verdict.error else ""
    return ruled(draft.trace, reason=Reason.EXHAUSTED.value, kind=kind, queue=draft.queue).fingerprint


NAMELESS = "body:"
"""What the identity of an attempt begins with where the message has no id."""


def identity_of(queue: str, told: str, body: bytes) -> str:
    """As its record will have it; for a message without an id, what all with the same bytes share."""
    if told:
        return identity(queue, told, body)
    parts = (queue.encode("utf-8", "surrogateescape"), body)
    return f"{NAMELESS}{hashlib.sha256(b''.join(hashlib.sha256(part).digest() for part in parts)).hexdigest()}"


_identity = lru_cache(maxsize=REMEMBERED)(identity_of)
"""For bodies that are kept anyway."""


def ticket_of(delivery: Delivery) -> Ticket | None:
    """What a requeued copy carries; nothing in any other message, even if it carries the same header."""
    if TICKET_MARK not in delivery.raw:
        return None
    try:
        return Ticket.read(delivery.headers.get(TICKET), bearer(delivery.queue, delivery.id, delivery.body))
    except Exception:  # noqa: BLE001 - headers that nobody can read
        return None
