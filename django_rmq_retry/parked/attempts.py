"""Rows of attempts, written and read."""

import hashlib
import json
import linecache
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Exists, OuterRef, QuerySet

from django_rmq_retry import server
from django_rmq_retry.handlers.attempt import FinishedAttempt, message_id, named_by_handler, ruled
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages.deaths import Reason
from django_rmq_retry.messages.parked import identity
from django_rmq_retry.messages.tracebacks import Cause, Frame, Stack, projects_own, short, trace
from django_rmq_retry.models import Attempt, ParkedMessage, parked
from django_rmq_retry.policies.policy import Kind, Verdict

LINES = 100
LINE_LIMIT, LOGGED_LIMIT = 2000, 16_000
OURS = "django_rmq_retry"
Lines = deque[logging.LogRecord]

# A context variable, for what a handler awaits runs in another thread, with a copy of the worker's context.
_lines: ContextVar[Lines | None] = ContextVar("rmq_lines", default=None)


def begin() -> None:
    """An attempt begins in this thread."""
    lines = _lines.get()
    if lines is None:
        _lines.set(deque(maxlen=LINES))
    elif lines:
        lines.clear()


def text() -> str:
    """What was logged since the attempt began, the latest lines if there are many."""
    lines = _lines.get()
    if not lines:
        return ""
    kept: list[str] = []
    room = LOGGED_LIMIT
    for record in reversed(lines):
        line = _line(record)
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


@contextmanager
def captured() -> Iterator[None]:
    """Lines of all loggers that propagate are kept, in the threads in which attempts begin."""
    keeper = _Keeper()
    root = logging.getLogger()
    root.addHandler(keeper)
    try:
        yield
    finally:
        root.removeHandler(keeper)


class _Keeper(logging.Handler):
    """Keeps records as they are: most attempts succeed, and then no line was formatted in vain."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is not None and record.name.partition(".")[0] != OURS:
            lines.append(record)
        # Without a handler of the project's, Python shows warnings by itself, but not beside a handler of ours.
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._alone(record.name):
            last.handle(record)

    def _alone(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


def _line(record: logging.LogRecord) -> str:
    try:
        said = record.getMessage()
    except Exception as broken:  # noqa: BLE001 - the project's own arguments
        said = f"({type(broken).__name__} while this line was written) {record.msg!s}"
    at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
    error = record.exc_info[0] if record.exc_info else None
    failed = f" ({error.__name__})" if error else ""
    return short(f"{at} {record.levelname} {record.name}: {said}{failed}", LINE_LIMIT)


LIMIT = 64 * 1024
TEXT_LIMIT = 2000
CODE_LIMIT = 200


def chain_of(causes: Sequence[Cause]) -> str:
    """A list of causes, the newest first: error, link, frames, how many frames were left out, and text."""
    parts = [_cause(cause, cause.stack) for cause in causes]
    if sum(len(part) + 1 for part in parts) > LIMIT - 2:
        parts = _shortened(causes, parts)
    return f"[{','.join(parts)}]"


def _shortened(causes: Sequence[Cause], parts: Sequence[str]) -> list[str]:
    """All that were thrown are told, and as many frames of the newest as there is room for."""
    bare = [_cause(one, Stack(left_out=one.stack.left_out + len(one.stack.frames))) for one in causes]
    room = LIMIT - 2 - sum(len(part) + 1 for part in bare)
    while room < 0:
        room += len(bare.pop()) + 1
    kept: list[str] = []
    for whole, short_one in zip(parts, bare, strict=False):
        more = len(whole) - len(short_one)
        kept.append(whole if more <= room else short_one)
        room -= more if more <= room else 0
    return kept


def _cause(cause: Cause, stack: Stack) -> str:
    """In ASCII: such a text fits into every database, whatever its character set."""
    text = cause.text if len(cause.text) <= TEXT_LIMIT else short(cause.text, TEXT_LIMIT)
    return f"{_head(cause.kind, cause.link, stack)}{json.dumps(text)}}}"


@lru_cache(maxsize=512)
def _head(kind: str, link: str, stack: Stack) -> str:
    """All but the text, which is the same for all failures in one place."""
    frames = [_frame(stack, place) for place in range(len(stack.frames))]
    told = json.dumps({"error": kind, "link": link, "frames": frames, "left_out": stack.left_out})
    return f'{told[:-1]}, "text": '


def _below_its_root(frame: Frame) -> str:
    """The file as it stands in the project, not where this machine has it: the same on all of them."""
    tail = frame.module.replace(".", "/")
    ends = (f"{tail}.py", f"{tail}/__init__.py")
    return next((end for end in ends if frame.file.endswith(f"/{end}")), frame.file)


def _frame(stack: Stack, place: int) -> dict[str, Any]:
    frame = stack.frames[place]
    told: dict[str, Any] = {
        "file": _below_its_root(frame),
        "line": frame.line,
        "module": frame.module,
        "function": frame.function,
        "own": frame.own,
    }
    # Of others' code only the line that raised.
    if frame.own or place == len(stack.frames) - 1:
        told["code"] = short(linecache.getline(frame.file, frame.line).strip(), CODE_LIMIT)
    return told


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


def drafted(attempt: FinishedAttempt, ticket: Ticket | None, *, ended: float | None = None) -> Draft:
    """An attempt as it is taken down on the thread that made it."""
    delivery, error = attempt.delivery, attempt.error
    told, large = message_id(attempt) or "", len(delivery.body) > KEPT
    traced = () if error is None else trace(error, projects_own)
    logs = "" if error is None else text()
    body = b"" if large else delivery.body
    return Draft(
        queue=delivery.queue,
        handler=attempt.subscription.name if attempt.subscription else "",
        message_id=told,
        body=body,
        identity=identity_of(delivery.queue, told, delivery.body) if large else "",
        number=delivery.attempt,
        ended=server.epoch(router.db_for_write(parked.Attempt)) if ended is None else ended,
        seconds=attempt.seconds,
        verdict=attempt.verdict,
        trace=traced,
        logs=logs,
        fingerprint=attempt.verdict.fingerprint or _named(attempt),
        ticket=ticket,
        thread=threading.current_thread().name,
        size=SMALL + len(body) + len(logs) + sum([len(cause.text) for cause in traced]),
    )


def _named(attempt: FinishedAttempt) -> str:
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


def attempts_of(record: ParkedMessage) -> QuerySet[Attempt]:
    """All that is known, the latest first.

    Attempts after a requeue are found by the record itself, whatever was edited; those before it by the message's id.
    Without an id, messages of the same bytes in one queue cannot be told apart: they share these attempts.
    """
    identities = [record.identity]
    if not record.message_id:
        identities.append(identity_of(record.queue or record.parked_in, "", bytes(record.body)))
    return Attempt.objects.filter(identity__in=identities).order_by("-started_at", "-pk")


OVERDUE = timedelta(hours=1)
"""So long after its time a message still counts as waiting: consumers may be away, or busy."""


def waiting(at: datetime, *, overdue: timedelta = OVERDUE) -> QuerySet[Attempt]:
    """The last attempts of messages that are to be tried again, the next ones first; ``next_at`` says when."""
    later = Attempt.objects.filter(identity=OuterRef("identity"), started_at__gt=OuterRef("started_at"))
    return Attempt.objects.filter(next_at__gt=at - overdue).exclude(Exists(later)).order_by("next_at", "pk")
