"""The consuming processes and their messages in flight, as tables and JSON."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django_rmq_retry.health.process_list import ProcessRow
from django_rmq_retry.health.processes import InFlight, Process
from django_rmq_retry.management.terminal import clock, utc
from django_rmq_retry.wording import span

_PROCESSES = ("PROCESS", "STATE", "VERSION", "PROJECT", "QUEUES", "BUSY", "WAITING", "STARTED", "HEARTBEAT")
_IN_FLIGHT = ("PROCESS", "HANDLER", "KEY", "MESSAGE", "ATTEMPT", "SINCE", "STATE")
_STYLES = {"parked": "ERROR", "on-hold": "WARNING"}
_BY_ITSELF = ("✓", "…")
"""Signs that a word needs beside it on the page only."""
Table = tuple[list[Sequence[object]], list[str]]
"""Rows with the head, and the style of each."""


def process_rows(found: Sequence[ProcessRow], *, terminal: bool) -> Table:
    rows: list[Sequence[object]] = [_PROCESSES]
    for one in found:
        row = one.process.row
        times = (clock(at, terminal=terminal) for at in (row.started_at, row.beat_at))
        queues = ",".join(f"{queue} ({word})" if word else queue for queue, _sign, word in one.queues) or "-"
        # A dead process is not busy, and nothing waits in it.
        heard, had = one.process.heard, one.process.busy
        has = (f"{had}/{row.threads}" if heard else f"had {had}", row.waiting if heard else "-")
        facts = (row.version or "-", row.deploy or "-", queues, *has)
        rows.append((_name(one.process), _state(one), *facts, *times))
    return rows, ["", *(_STYLES.get(one.kind, "") for one in found)]


def in_flight_rows(found: Sequence[ProcessRow], *, terminal: bool) -> Table:
    """Return one row for each message in flight, those of vanished processes and the late ones first.

    Of processes whose work others do those are left out that others have handled, once, or have in flight.
    """
    rows: list[Sequence[object]] = [_IN_FLIGHT]
    styles = [""]
    every = ((row, message) for row in found for message in row.process.in_flight)
    pairs = [(row.process, one) for row, one in every if not (row.replaced and _is_settled(one))]
    for process, message in sorted(pairs, key=lambda pair: not _needs_somebody(*pair)):
        names = (message.handler or message.queue or "-", message.key or "-", message.message_id or "-")
        state = _outcome(process, message)
        rows.append((_name(process), *names, message.attempt, clock(message.since, terminal=terminal), state))
        styles.append("ERROR" if _needs_somebody(process, message) else "WARNING" if message.before else "")
    return rows, styles


def _is_settled(message: InFlight) -> bool:
    return bool(message.processed_since or message.also) and not message.perhaps_twice_by


def as_data(one: Process) -> Mapping[str, object]:
    row = one.row
    names = ("host", "pid", "number", "version", "deploy", "broker", "queues", "threads", "waiting")
    return {
        "state": "ended" if one.ended else one.state.value,
        **{name: getattr(row, name) for name in names},
        "started_at": utc(row.started_at),
        "beat_at": utc(row.beat_at),
        "ended_at": utc(row.ended_at),
        "end": row.why_ended or None,
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
        "begun_before_by": [str(one) for one in message.begun_by],
        "processed_since": message.processed_since,
        "perhaps_twice_by": message.perhaps_twice_by or None,
    }


def _state(one: ProcessRow) -> str:
    text = one.label if one.sign in _BY_ITSELF else f"{one.sign} {one.label}"
    why = one.process.row.why_ended
    return f"{text}: {why}" if one.process.ended and why else text


def _became(message: InFlight) -> str:
    known = message.record
    if message.auto_ack:
        return '✕ lost: ack="auto"'
    if known:
        return f"✕ record #{known.pk}: {known.state.replace('_', ' ')}"
    if message.later is None:
        return "✕ outcome unknown"
    return "failed, a retry follows" if message.later.own else f"tried again by {message.later.process}"


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
    return _running(message)


def _running(message: InFlight) -> str:
    if message.blocks is not None:
        return f"✕ blocks the event loop for {span(timedelta(seconds=message.blocks))}"
    if message.timeout and message.late:
        return f"✕ beyond its deadline of {message.timeout:g} s"
    return f"! {message.before.removesuffix('.')}" if message.before else "running"
