"""Makes the rows of the history from finished attempts."""

import json
import linecache
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import router

from django_rmq_retry import database_clock
from django_rmq_retry.attempts import captured_log
from django_rmq_retry.handlers.business_keys import known_keys
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.handlers.grouping import named_by_handler, ruled
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.messages.message import message_id
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.messages.tracebacks import ChainedError, Frame, Stack, projects_own, trace
from django_rmq_retry.models import parked
from django_rmq_retry.policies.verdict import Kind, Verdict

CHAIN_BYTES = 64 * 1024
CAUSE_TEXT_LIMIT = 2000
CODE_LIMIT = 200
KEPT_BODY_BYTES = 2048
"""Largest body, in bytes, that a draft keeps until its row is made."""
DRAFT_BYTES = 2000
"""Approximate minimum memory of a draft, in bytes."""
CACHED_IDENTITIES = 1000
"""Number of cached identities: a message that fails is soon attempted again."""
LARGEST_INTEGER = 2**31 - 1
WAITING = (Kind.RETRY, Kind.HALT)
"""The verdicts after which a message waits for its next attempt."""


def chain_of(causes: Sequence[ChainedError]) -> str:
    """Return the causes as JSON, newest first: error, link, frames, number of frames left out, and text of each."""
    parts = [_cause(cause, cause.stack) for cause in causes]
    if sum(len(part) + 1 for part in parts) > CHAIN_BYTES - 2:
        parts = _shortened(causes, parts)
    return f"[{','.join(parts)}]"


def _shortened(causes: Sequence[ChainedError], parts: Sequence[str]) -> list[str]:
    """Return the causes within the size limit: as many as fit without frames, then frames, the newest cause first."""
    bare = [_cause(one, Stack(left_out=one.stack.left_out + len(one.stack.frames))) for one in causes]
    room = CHAIN_BYTES - 2 - sum(len(part) + 1 for part in bare)
    while room < 0:
        room += len(bare.pop()) + 1
    kept: list[str] = []
    for whole, short_one in zip(parts, bare, strict=False):
        more = len(whole) - len(short_one)
        kept.append(whole if more <= room else short_one)
        room -= more if more <= room else 0
    return kept


def _cause(cause: ChainedError, stack: Stack) -> str:
    """Return a cause as JSON in ASCII, which every database can store, regardless of its character set."""
    text = cause.text if len(cause.text) <= CAUSE_TEXT_LIMIT else short(cause.text, CAUSE_TEXT_LIMIT)
    return f"{_head(cause.kind, cause.link, stack)}{json.dumps(text)}}}"


@lru_cache(maxsize=512)
def _head(kind: str, link: str, stack: Stack) -> str:
    """Return a cause's JSON up to its text. This part is the same for all failures in one place, so it is cached."""
    frames = [_frame(stack, place) for place in range(len(stack.frames))]
    facts = json.dumps({"error": kind, "link": link, "frames": frames, "left_out": stack.left_out})
    return f'{facts[:-1]}, "text": '


def _below_its_root(frame: Frame) -> str:
    """Return the file's path within the project, which is the same on every machine."""
    tail = frame.module.replace(".", "/")
    ends = (f"{tail}.py", f"{tail}/__init__.py")
    return next((end for end in ends if frame.file.endswith(f"/{end}")), frame.file)


def _frame(stack: Stack, place: int) -> dict[str, Any]:
    frame = stack.frames[place]
    named = {name: getattr(frame, name) for name in ("line", "module", "function", "own")}
    facts: dict[str, Any] = {"file": _below_its_root(frame), **named}
    # For code outside the project, keep only the source line that raised.
    if frame.own or place == len(stack.frames) - 1:
        facts["code"] = short(linecache.getline(frame.file, frame.line).strip(), CODE_LIMIT)
    return facts


class AttemptRow(NamedTuple):
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
    traceparent: str
    redelivered: bool
    published_at: datetime | None


class NameRow(NamedTuple):
    identity: str
    value: str
    folded: str
    at: datetime


class AttemptDraft(NamedTuple):
    """The facts about an attempt that are lost once it ends; everything else is computed later.

    Making rows in a batch takes half the time of making each row between two messages.
    """

    queue: str
    handler: str
    place: str
    """The place of the handler's function."""
    message_id: str
    keys: Sequence[str]
    """The business keys, if the message is to be tried again, or was delivered more than once."""
    body: bytes
    identity: str
    """Computed immediately if the body is too large to keep; otherwise empty."""
    number: int
    ended: float
    seconds: float
    verdict: Verdict
    trace: Sequence[ChainedError]
    logs: str
    fingerprint: str
    """Set if the verdict or the handler names one; otherwise the grouping rule is applied later."""
    ticket: Ticket | None
    thread: str
    traceparent: str
    redelivered: bool
    published_at: datetime | None
    size: int
    """Approximate memory, in bytes."""


def draft_of(attempt: FinishedAttempt, ticket: Ticket | None, *, ended: float | None = None) -> AttemptDraft:
    """Return the draft of an attempt; called on the thread that made the attempt."""
    delivery, error = attempt.delivery, attempt.error
    name, large = message_id(delivery) or "", len(delivery.body) > KEPT_BODY_BYTES
    traced = () if error is None else trace(error, projects_own)
    logs = "" if error is None else captured_log.text()
    body = b"" if large else delivery.body
    redelivered = attempt.redelivered
    named = redelivered or attempt.verdict.kind in WAITING
    keys = known_keys(attempt.subscription, delivery, error) if named else ()
    return AttemptDraft(
        queue=delivery.queue,
        handler=attempt.subscription.name if attempt.subscription else "",
        place=attempt.subscription.place if attempt.subscription else "",
        message_id=name,
        keys=keys,
        body=body,
        identity=attempt_identity(delivery.queue, name, delivery.body) if large else "",
        number=delivery.attempt,
        ended=database_clock.epoch(router.db_for_write(parked.Attempt)) if ended is None else ended,
        seconds=attempt.seconds,
        verdict=attempt.verdict,
        trace=traced,
        logs=logs,
        # Named now, in case the message is parked later.
        fingerprint=attempt.verdict.fingerprint or named_by_handler(delivery, attempt.subscription, error),
        ticket=ticket,
        thread=threading.current_thread().name,
        traceparent=attempt.traceparent,
        redelivered=redelivered,
        published_at=database_clock.published_at(delivery.properties) if redelivered else None,
        size=DRAFT_BYTES + len(body) + len(logs) + sum([len(cause.text) for cause in traced]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBuilder:
    """Makes rows from drafts; values that are the same for the whole process are looked up once."""

    deploy: str = ""
    host: str = field(default_factory=lambda: short(socket.gethostname(), COLUMN_BYTES))
    pid: int = field(default_factory=os.getpid)

    def row(self, draft: AttemptDraft) -> AttemptRow:
        verdict, ended = draft.verdict, draft.ended
        waits = verdict.kind in WAITING
        # Positional, in the order of the columns: naming them makes the whole step a quarter slower.
        return AttemptRow(
            draft.identity or _identity(draft.queue, draft.message_id, draft.body),
            short(draft.queue, COLUMN_BYTES),
            short(draft.handler, COLUMN_BYTES),
            short(draft.message_id, COLUMN_BYTES),
            min(draft.ticket.cycle, LARGEST_INTEGER) if draft.ticket else 1,
            min(draft.number, LARGEST_INTEGER),
            database_clock.stored(ended - draft.seconds),
            draft.seconds,
            verdict.name,
            verdict.after,
            database_clock.stored(ended + verdict.after) if waits else None,
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
            draft.traceparent,
            draft.redelivered,
            draft.published_at,
        )


def names_of(draft: AttemptDraft, row: AttemptRow) -> list[NameRow]:
    """Return the names by which a search finds the message of a row."""
    names = dict.fromkeys(filter(None, (row.message_id, *draft.keys)))
    return [NameRow(row.identity, name, parked.folded(name), row.started_at) for name in names]


def _fingerprint(draft: AttemptDraft) -> str:
    """Return the fingerprint of the group that the message joins if its retries run out; empty without an error."""
    if not draft.trace:
        return ""
    kind = draft.verdict.error.kind if draft.verdict.error else ""
    reason = Reason.EXHAUSTED.value
    return ruled(draft.trace, reason=reason, kind=kind, queue=draft.queue, handler=draft.place).fingerprint


_identity = lru_cache(maxsize=CACHED_IDENTITIES)(attempt_identity)
"""The cached form, for bodies that are small enough to keep."""
