"""The consuming processes and their messages in flight, as tables and JSON."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django_rmq_retry.health.processes import InFlight, Process, ProcessState
from django_rmq_retry.management.terminal import clock, utc
from django_rmq_retry.wording import span

_PROCESSES = ("PROCESS", "STATE", "VERSION", "PROJECT", "QUEUES", "BUSY", "WAITING", "STARTED", "HEARTBEAT")
_IN_FLIGHT = ("PROCESS", "HANDLER", "KEY", "MESSAGE", "ATTEMPT", "SINCE", "STATE")
_SIGNS = {
    ProcessState.RUNNING: ("running", ""),
    ProcessState.STARTING: ("starting", ""),
    ProcessState.STOPPING: ("stopping", "NOTICE"),
    ProcessState.NO_BROKER: ("! no broker", "WARNING"),
    ProcessState.SILENT: ("! no heartbeat for", "WARNING"),
    ProcessState.VANISHED: ("✕ vanished", "ERROR"),
    ProcessState.REPLACED: ("↻ replaced", ""),
    ProcessState.TAKEN_OVER: ("↻ taken over", ""),
}
Table = tuple[list[Sequence[object]], list[str]]
"""Rows with the head, and the style of each."""


def process_rows(found: Sequence[Process], *, terminal: bool) -> Table:
    rows: list[Sequence[object]] = [_PROCESSES]
    for one in found:
        row = one.row
        times = (clock(at, terminal=terminal) for at in (row.started_at, row.beat_at))
        queues, busy = ",".join(row.queues) or "-", f"{one.busy}/{row.threads}"
        facts = (row.version or "-", row.deploy or "-", queues, busy, row.waiting)
        rows.append((_name(one), _state(one), *facts, *times))
    return rows, ["", *(_SIGNS[one.state][1] for one in found)]


def in_flight_rows(found: Sequence[Process], *, terminal: bool) -> Table:
    """Return one row for each message in flight, those of vanished processes and the late ones first.

    Those of processes whose work others do are left out, unless they were perhaps done twice: others have handled them,
    or have them in flight.
    """
    rows: list[Sequence[object]] = [_IN_FLIGHT]
    styles = [""]
    every = ((one, message) for one in found for message in one.in_flight)
    pairs = [(one, message) for one, message in every if not one.settled_by_others or message.perhaps_twice_by]
    for one, message in sorted(pairs, key=lambda pair: not _needs_somebody(*pair)):
        names = (message.handler or message.queue or "-", message.key or "-", message.message_id or "-")
        state = _outcome(one, message)
        rows.append((_name(one), *names, message.attempt, clock(message.since, terminal=terminal), state))
        styles.append("ERROR" if _needs_somebody(one, message) else "")
    return rows, styles


def as_data(one: Process) -> Mapping[str, object]:
    row = one.row
    names = ("host", "pid", "number", "version", "deploy", "broker", "queues", "threads", "waiting")
    return {
        "state": one.state.value,
        **{name: getattr(row, name) for name in names},
        "started_at": utc(row.started_at),
        "beat_at": utc(row.beat_at),
        "busy": one.busy,
        "in_flight": [_message(message) for message in one.in_flight],
    }


def _message(message: InFlight) -> dict[str, Any]:
    return {
        **{name: getattr(message, name) for name in ("queue", "handler", "key", "message_id", "attempt")},
        "since": utc(message.since),
        "seconds": round(message.length.total_seconds(), 3),
        "timeout": message.timeout,
        "late": message.late,
        "blocks": message.blocks,
        "delivered_again": not message.auto_ack,
        "record": message.record and message.record.pk,
        "also": message.also or None,
        "processed_since": message.processed_since,
        "perhaps_twice_by": message.perhaps_twice_by or None,
    }


def _state(one: Process) -> str:
    text = "✕ ended" if one.ended else _SIGNS[one.state][0]
    return f"{text} {span(one.unheard)}" if one.state is ProcessState.SILENT else text


def _became(message: InFlight) -> str:
    known = message.record
    if message.auto_ack:
        return '✕ lost: ack="auto"'
    if known:
        return f"✕ record #{known.pk}: {known.state.replace('_', ' ')}"
    return f"tried again by {message.later.process}" if message.later else "✕ outcome unknown"


def _name(one: Process) -> str:
    return f"{one.row} #{one.row.number}" if one.row.number else str(one.row)


def _needs_somebody(one: Process, message: InFlight) -> bool:
    if one.vanished:
        return not message.processed_since or bool(message.perhaps_twice_by)
    return message.late or message.blocks is not None


def _outcome(one: Process, message: InFlight) -> str:
    if message.perhaps_twice_by:
        return f"! handled again by {message.perhaps_twice_by}: perhaps done twice"
    if message.processed_since or message.also:
        return "processed since" if message.processed_since else f"✕ {message.also} has it now"
    if one.vanished:
        return _became(message)
    if not one.heard:
        return "! at the last heartbeat"
    if message.blocks is not None:
        return f"✕ blocks the event loop for {span(timedelta(seconds=message.blocks))}"
    return f"✕ beyond its deadline of {message.timeout:g} s" if message.timeout and message.late else "running"
