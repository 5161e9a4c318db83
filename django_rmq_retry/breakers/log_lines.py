"""The log lines and signals of breakers and pauses."""

import logging

from django_rmq_retry import signals
from django_rmq_retry.breakers.local_queue import Consuming, LocalQueue
from django_rmq_retry.breakers.queue_state import QueueState, clock
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.policies.breaker import Circuit

log = logging.getLogger("django_rmq_retry")


def announce(queue: str, before: Circuit, after: Circuit) -> None:
    """Log a breaker that this process opened, closed or kept open after a failed probe; send the signal of a change."""
    names = {"event": "breaker", "queue": queue, "handler": after.handler or before.handler}
    if after.opened and before.opened:
        wait = after.probe_at - after.since
        log.info(
            "The breaker of %s stays open: %r. Next probe at %s",
            *(after.handler, after.cause, clock(after.probe_at)),
            extra={**names, "seconds": round(wait, 3)},
        )
    elif after.opened:
        text = "The breaker of %s has opened: %r. Queue %r is not consumed, and no attempt is counted. Next probe at %s"
        log.warning(text, after.handler, after.cause, queue, clock(after.probe_at), extra=names)
        _send(signals.breaker_opened, queue, after)
    else:
        text = "The breaker of %s has closed after %s failed probes. Queue %r resumes"
        log.warning(text, before.handler, before.failed, queue, extra=names)
        _send(signals.breaker_closed, queue, before)


def log_change(local: LocalQueue, before: QueueState, mode: Consuming, now: float) -> None:
    """Log a change made by an operator, or by a breaker in another process."""
    extra = {"event": "switched", "queue": local.queue}
    held = local.stored.is_paused(now)
    if held and not (before.is_paused(now) and mode is Consuming.NONE):
        name = local.stored.by or "?"
        log.warning("Queue %r is paused by %s: %s", local.queue, name, local.stored.reason or "no reason", extra=extra)
    elif not held and mode is Consuming.NONE and local.mode is Consuming.ALL:
        log.warning("Queue %r resumes", local.queue, extra=extra)
    elif not held and mode is Consuming.ALL and local.mode is not Consuming.ALL:
        text = "Queue %r is not consumed. Another process has opened the breaker of %s: %r"
        log.warning(text, local.queue, local.circuit.handler, local.circuit.cause, extra=extra)


def log_store_away(error: Exception, *, warn: bool) -> None:
    text = "The shared state of breakers and pauses cannot be read (%s). Until it can, this process uses its own state"
    log.log(logging.WARNING if warn else logging.DEBUG, text, one_line(error), extra={"event": "unshared"})


def log_unread(cause: str, since: float) -> None:
    text = (
        "No message is taken until the pauses of the queues have been read once: an operator may have paused one. "
        "Waiting for the database since %s: %s"
    )
    log.warning(text, clock(since), cause, extra={"event": "unread"})


def log_read(since: float) -> None:
    text = "The pauses of the queues have been read; messages are taken now. The wait began at %s"
    log.warning(text, clock(since), extra={"event": "read"})


def log_store_back(*, warn: bool) -> None:
    level = logging.INFO if warn else logging.DEBUG
    log.log(level, "The shared state of breakers and pauses can be read again", extra={"event": "shared"})


def _send(signal: object, queue: str, circuit: Circuit) -> None:
    try:
        signal.send_robust(Delivery, queue=queue, handler=circuit.handler, cause=circuit.cause)  # type: ignore[attr-defined]
    except BaseException:
        # send_robust does not catch SystemExit and other exceptions that are not an Exception.
        log.exception("A receiver of a signal raised an exception that send_robust() does not catch")
