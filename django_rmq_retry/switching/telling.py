"""Tells the log and the project's signals what is switched: a line when something changes, and none while it lasts."""

import logging
from datetime import datetime

from django_rmq_retry import signals
from django_rmq_retry.core.breaking import Circuit
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.verdict import ErrorNote, short
from django_rmq_retry.switching.standing import QueueState
from django_rmq_retry.switching.valves import Mode, Valve

log = logging.getLogger("django_rmq_retry")


def cause(failures: int, error: BaseException | ErrorNote | None) -> str:
    """Of the runs that have opened a breaker, in a word."""
    note = ErrorNote.of(error) if isinstance(error, BaseException) else error
    said = str(note or "")
    return short(f"{said} (×{failures})" if failures > 1 else said, 600)  # noqa: RUF001 - times, not the letter


def moved(queue: str, before: Circuit, after: Circuit) -> None:
    """This process has opened or closed a breaker, or its probe has failed."""
    names = {"event": "breaker", "queue": queue, "handler": after.handler or before.handler}
    if after.tripped and before.tripped:
        wait = after.probe_at - after.since
        log.info(
            "The breaker of %s stays open: %r; next probe at %s",
            *(after.handler, after.cause, _clock(after.probe_at)),
            extra={**names, "seconds": round(wait, 3)},
        )
    elif after.tripped:
        said = "The breaker of %s has opened: %r. Queue %r waits, and no attempt is counted; next probe at %s"
        log.warning(said, *(after.handler, after.cause, queue, _clock(after.probe_at)), extra=names)
        _send(signals.opened, queue, after)
    else:
        said = "The breaker of %s has closed after %s failed probes; queue %r goes on"
        log.warning(said, *(before.handler, before.failed, queue), extra=names)
        _send(signals.closed, queue, before)


def turned(valve: Valve, before: QueueState, mode: Mode, now: float) -> None:
    """What a person, or a breaker in another process, has switched."""
    extra = {"event": "switched", "queue": valve.queue}
    held = valve.known.held(now)
    if held and not (before.held(now) and mode is Mode.SHUT):
        name = valve.known.by or "?"
        log.warning("Queue %r is paused by %s: %s", valve.queue, name, valve.known.reason or "no reason", extra=extra)
    elif not held and mode is Mode.SHUT and valve.mode is Mode.OPEN:
        log.warning("Queue %r goes on", valve.queue, extra=extra)
    elif not held and mode is Mode.OPEN and valve.mode is not Mode.OPEN:
        said = "Queue %r waits: the breaker of %s was opened elsewhere: %r"
        log.warning(said, *(valve.queue, valve.circuit.handler, valve.circuit.cause), extra=extra)


def alone(error: Exception, *, loud: bool) -> None:
    said = "What is switched for all processes cannot be looked at (%s); breakers and pauses are this process's own"
    words = short(" ".join(str(error).split()) or type(error).__name__, 200)
    log.log(logging.WARNING if loud else logging.DEBUG, said, words, extra={"event": "alone"})


def together(*, loud: bool) -> None:
    level = logging.INFO if loud else logging.DEBUG
    log.log(level, "What is switched for all processes can be looked at again", extra={"event": "together"})


def _send(signal: object, queue: str, circuit: Circuit) -> None:
    try:
        signal.send_robust(Delivery, queue=queue, handler=circuit.handler, cause=circuit.cause)  # type: ignore[attr-defined]
    except BaseException:
        # SystemExit and its like pass through send_robust.
        log.exception("A receiver of a signal raised what it should not")


def _clock(epoch: float) -> str:
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")
