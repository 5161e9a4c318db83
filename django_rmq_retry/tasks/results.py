"""The results of tasks: a row is written as a task is enqueued, and completed as it succeeds.

Everything else that a result tells comes from what is recorded of any message: its attempts, and its parked record.
"""

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db import Error, connections, router, transaction
from django.utils import timezone

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.history import NO_FAILURE
from django_rmq_retry.handlers.contracts import FinishedAttempt, Kept
from django_rmq_retry.handlers.ticket import ticket_of
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import Attempt, ParkedMessage, State, StoredResult
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.policies.verdict import ACK, Kind
from django_rmq_retry.publishing import outbox
from django_rmq_retry.tasks import known
from django_rmq_retry.tasks.api import AnyResult, AnyTask, InvalidTask, TaskError, TaskResult, TaskResultDoesNotExist
from django_rmq_retry.tasks.api import TaskResultStatus as Status
from django_rmq_retry.tasks.calls import CALLS

log = logging.getLogger("django_rmq_retry")

COMPLETED = ("expires_at", "started_at", "finished_at", "worker", "answer")
"""The columns that the success of a task writes."""
ROW_BYTES = 1000
"""Approximate memory of a row without its body and answer."""
ENDS = {State.PROCESSED: Status.SUCCESSFUL, **dict.fromkeys((*OPEN, State.DISCARDED), Status.FAILED)}
"""What the states of a parked message that are an end mean for its task; in any other state it is on its way."""


def worker_id() -> str:
    """Return the name of this thread, as the attempts of its messages have it."""
    return _worker(_host(), os.getpid(), threading.current_thread().name)


@lru_cache(maxsize=1)
def _host() -> str:
    return short(socket.gethostname(), COLUMN_BYTES)


def _worker(host: str, pid: int, thread: str) -> str:
    return short(f"{host}:{pid}:{thread}", COLUMN_BYTES)


def results_alias() -> str:
    return router.db_for_write(StoredResult)


def send_and_store(result: AnyResult, message: Message, *, kept: timedelta, send: Callable[[], object]) -> None:
    """Send the message of a task and store its row: with the message, if that waits for a commit in this database.

    If it is sent at once, the row follows it: its consumer adds the row of a task that has succeeded before.
    """
    using, open_in = results_alias(), outbox.writer.open_transaction()
    queue, now = result.task.queue_name, result.enqueued_at or timezone.now()
    row = StoredResult(
        id=result.id,
        identity=message_identity(queue, result.id, message.body),
        backend=result.backend,
        task=result.task.module_path,
        queue=queue,
        priority=result.task.priority,
        body=message.body,
        enqueued_at=now,
    )
    # Both times are by the clock of this host, which may be wrong; what remains is their distance.
    lasts = max(now, _aware_like(now, result.task.run_after)) - now + kept
    if open_in == using:
        _insert(row, using, lasts)
        send()
        return
    send()
    if open_in is not None:
        transaction.on_commit(lambda: _insert_late(row, using, lasts), using=open_in, robust=True)
    else:
        _insert_late(row, using, lasts)


def _aware_like(now: datetime, moment: datetime | None) -> datetime:
    """Return a moment that can be compared with ``now``: with USE_TZ=False Django takes aware ones, too."""
    if moment is None or (moment.tzinfo is None) == (now.tzinfo is None):
        return moment or now
    return moment.astimezone(now.tzinfo) if now.tzinfo else moment.astimezone().replace(tzinfo=None)


def _insert(row: StoredResult, using: str, lasts: timedelta) -> None:
    row.expires_at = database_clock.now(using) + lasts
    # A consumer may have stored the row of a task that was sent before it.
    StoredResult.objects.using(using).bulk_create([row], ignore_conflicts=True)


def _insert_late(row: StoredResult, using: str, lasts: timedelta) -> None:
    try:
        _insert(row, using, lasts)
    except Error as error:
        text = "Task %s %r was sent, and its result cannot be read before it has succeeded: %s"
        log.error(text, row.task, row.pk, error, extra={"event": "result_unstored", "message_id": row.pk})  # noqa: TRY400


def can_store(name: str | None) -> bool:
    """True for an id that a row can have; a foreign sender may write any, or none."""
    return bool(name) and short(name, COLUMN_BYTES) == name


def kept_row(attempt: FinishedAttempt, task: AnyTask, *, backend: str, kept: timedelta) -> Kept:
    """Return the row of a task that has succeeded, with what it returned."""
    delivery, answer = attempt.delivery, json.dumps(attempt.answer, allow_nan=False)
    ended = database_clock.epoch(results_alias())
    row = StoredResult(
        id=delivery.id or "",
        identity=message_identity(delivery.queue, delivery.id, delivery.body),
        backend=backend,
        task=task.module_path,
        queue=delivery.queue,
        priority=task.priority,
        body=delivery.body,
        enqueued_at=database_clock.published_at(delivery.properties) or database_clock.stored(ended - attempt.seconds),
        expires_at=database_clock.stored(ended) + kept,
        started_at=database_clock.stored(ended - attempt.seconds),
        finished_at=database_clock.stored(ended),
        worker=worker_id(),
        answer=answer,
    )
    row.requeued = ticket_of(delivery) is not None
    return Kept(store=store, row=row, queue=delivery.queue, size=ROW_BYTES + len(delivery.body) + len(answer))


def store(rows: Sequence[StoredResult]) -> None:
    """Complete the rows of tasks, or add them where none was stored; of equal ids the last one counts."""
    using = results_alias()
    known = StoredResult.objects.using(using).filter(pk__in={row.pk for row in rows})
    owners = {pk: owner for pk, *owner in known.values_list("pk", "queue", "identity")}
    latest = {row.pk: row for row in rows if row.requeued or _is_of(row, *owners.get(row.pk, ()))}
    targets = connections[using].features.supports_update_conflicts_with_target
    StoredResult.objects.using(using).bulk_create(
        # In one order: two processes that complete the same rows must not deadlock.
        [latest[pk] for pk in sorted(latest)],
        update_conflicts=True,
        update_fields=COMPLETED,
        unique_fields=["id"] if targets else None,
    )


def _is_of(row: StoredResult, queue: str = "", identity: str = "") -> bool:
    """True if a row is of the task that was enqueued with its id: another sender may use the id for another message.

    A copy that an operator has requeued may have been edited. One that was moved has another queue.
    """
    return not identity or message_identity(queue, row.pk, bytes(row.body)) == identity


def read(result_id: str, *, backend: str) -> AnyResult:
    """Return the result of a task; TaskResultDoesNotExist if there is none, or none any more."""
    using, name = results_alias(), str(result_id)
    # Not every database takes any text.
    rows = StoredResult.objects.using(using).filter(pk=name, backend=backend)
    row = rows.first() if can_store(name) else None
    if row is None or row.expires_at <= database_clock.now(using):
        raise TaskResultDoesNotExist(result_id)
    task = known.find(row.task)
    if task is None:
        raise TaskResultDoesNotExist(f"{result_id}: its task {row.task!r} is not defined in this process.")
    attempts = list(Attempt.objects.using(using).filter(identity=row.identity).order_by("started_at", "pk"))
    status = _status(row, attempts, using)
    failed = [one for one in attempts if one.verdict not in NO_FAILURE]
    done = [one for one in attempts if one.verdict == ACK.name]
    begins = [one.started_at for one in attempts] + ([row.started_at] if row.started_at else [])
    ends = [one.ended_at for one in (done if status is Status.SUCCESSFUL else failed)]
    data = CALLS.decode(bytes(row.body))
    # The attempt that succeeded is in both tables, if it was not the first one.
    workers = [_worker(one.host, one.pid, one.thread) for one in (failed if row.finished_at else attempts)]
    result = TaskResult(
        task=_variant(task, row),
        id=row.pk,
        status=status,
        enqueued_at=row.enqueued_at,
        started_at=min(begins, default=None),
        finished_at=(row.finished_at or max(ends, default=None)) if _ended(status) else None,
        last_attempted_at=max(begins, default=None),
        args=data["args"],
        kwargs=data["kwargs"],
        backend=backend,
        errors=[task_error(one.chain) for one in failed if one.chain],
        worker_ids=[*workers, *([row.worker] if row.finished_at else [])],
    )
    object.__setattr__(result, "_return_value", json.loads(row.answer) if row.finished_at else None)
    return result


def _variant(task: AnyTask, row: StoredResult) -> AnyTask:
    """Return the task with the queue and priority with which it was enqueued."""
    if (task.queue_name, task.priority) == (row.queue, row.priority):
        return task
    try:
        return task.using(queue_name=row.queue, priority=row.priority)
    except InvalidTask:
        # The settings have changed since.
        return task


def _ended(status: Status) -> bool:
    return status in (Status.SUCCESSFUL, Status.FAILED)


def _status(row: StoredResult, attempts: Sequence[Attempt], using: str) -> Status:
    """Return where a task is. RUNNING is not recorded: a task that runs is READY until its attempt has ended."""
    last = attempts[-1].verdict if attempts else ""
    if row.finished_at or last == ACK.name:
        return Status.SUCCESSFUL
    parked = ParkedMessage.objects.using(using).filter(identity=row.identity).values_list("state", flat=True).first()
    if parked is not None:
        return ENDS.get(State(parked), Status.READY)
    return Status.FAILED if last in (Kind.PARK, Kind.DISCARD) else Status.READY


def task_error(chain: Sequence[Mapping[str, Any]]) -> TaskError:
    """Return an error from the causes of an attempt, the newest first."""
    kind = chain[0]["error"]
    path = kind if "." in kind else f"builtins.{kind}"
    return TaskError(exception_class_path=path, traceback=_traceback(chain))


def _traceback(chain: Sequence[Mapping[str, Any]]) -> str:
    """Return the traceback as Python writes it, as far as it was recorded: the newest exception last."""
    parts = []
    for cause in reversed(chain):
        lines = ["Traceback (most recent call last):"]
        for frame in cause["frames"]:
            lines.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
            lines += [f"    {frame['code']}"] if frame.get("code") else []
        lines.append(f"{cause['error']}: {cause['text']}" if cause["text"] else cause["error"])
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
