"""How things stand, as people and programs read it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import connections

from django_rmq_retry.broker.gauging import Level
from django_rmq_retry.management.choosing import clock
from django_rmq_retry.management.standing import Standing, counted, tripped
from django_rmq_retry.models import Switch
from django_rmq_retry.operating.surveying import Survey


def heads(seen: Standing) -> list[tuple[str, ...]]:
    """A row each for broker, database and topology."""
    same, all_seen, unseen = seen.declared
    topology = "ok" if same == all_seen else "✕"
    hidden = f", {counted(unseen, 'binding')} not visible" if unseen else ""
    return [
        ("Broker", "ok", f"{seen.broker}, round trip {seen.round_trip * 1000:.0f} ms"),
        ("Database", *_database(seen)),
        ("Topology", topology, f"{same}/{all_seen}{hidden}"),
    ]


def _database(seen: Standing) -> tuple[str, str]:
    if seen.survey is None:
        return ("✕", seen.trouble) if seen.trouble else ("-", "not used")
    alias = seen.survey.alias
    return "ok", f"{alias} {connections[alias].vendor}, round trip {seen.survey.seconds * 1000:.0f} ms"


def row(level: Level, seen: Standing) -> tuple[str, ...]:
    """A queue in the table."""
    stopped = _stopped(level, seen)
    state = "ok"
    problems = [*level.problems, *([tripped(stopped)] if stopped and stopped.tripped else [])]
    if problems:
        state = f"✕ {'; '.join(problems)}"
    elif stopped:
        state = f"‖ {_why(stopped)}"
    return (
        level.queue,
        level.role.value,
        *(("-" if value is None else str(value)) for value in (level.ready, level.unacked, level.consumers)),
        *(("-" if value is None else f"{value:.1f}") for value in (level.arriving, level.leaving)),
        state,
    )


def style(level: Level, seen: Standing) -> str:
    """The colour of its row."""
    stopped = _stopped(level, seen)
    return "ERROR" if level.problems or (stopped and stopped.tripped) else "WARNING" if stopped else ""


def _stopped(level: Level, seen: Standing) -> Switch | None:
    stopped = seen.survey.stopped if seen.survey else ()
    return next((switch for switch in stopped if switch.queue == level.queue), None)


def _why(switch: Switch) -> str:
    """By a person's word; an open breaker is a problem, and told as one."""
    by = f"paused by {switch.by}" if switch.by else "paused"
    reason = f": {switch.reason}" if switch.reason else ""
    until = f", goes on at {clock(switch.until, terminal=False)}" if switch.until else ""
    return f"{by}{reason}{until}"


def totals(seen: Standing, *, terminal: bool) -> Iterator[str]:
    """``Consumers 3 · parked 226 (+38 in 10 min) · runs 1 active``, and what else waits, where anything does."""
    words = [f"Consumers {seen.consumers}"]
    found = seen.survey
    if found is not None:
        parked = found.parked
        lately = f" (+{parked.recent} in 10 min)" if parked.recent else ""
        oldest = f", oldest {clock(parked.oldest, terminal=terminal)}" if parked.oldest else ""
        words += [f"parked {parked.count}{lately}{oldest}", f"runs {found.runs} active"]
    yield " · ".join(words)
    if found is not None:
        yield from _waiting(found, terminal=terminal)


def _waiting(found: Survey, *, terminal: bool) -> Iterator[str]:
    outbox, held = found.outbox, found.held
    if outbox.waiting or outbox.stuck:
        oldest = f", oldest {clock(outbox.oldest, terminal=terminal)}" if outbox.oldest else ""
        yield f"Outbox {outbox.waiting} waiting{oldest} · {outbox.stuck} stuck"
    if held.keys:
        oldest = f", oldest {clock(held.oldest, terminal=terminal)}" if held.oldest else ""
        yield f"Held {held.messages}{oldest} · behind {counted(held.keys, 'key')}, at most {held.most} behind one"


def as_data(seen: Standing) -> Mapping[str, Any]:
    """All of it for programs."""
    same, all_seen, unseen = seen.declared
    return {
        "broker": seen.broker,
        "round_trip_seconds": round(seen.round_trip, 6),
        "database": _database_data(seen),
        "topology": {"as_declared": same, "of": all_seen, "not_visible": unseen},
        "queues": [_queue_data(level, seen) for level in seen.gauged.levels],
        "consumers": seen.consumers,
        **_survey_data(seen.survey),
        "problems": seen.problems,
        "blind": seen.gauged.blind,
    }


def _database_data(seen: Standing) -> Mapping[str, object]:
    found = seen.survey
    return {
        "alias": found.alias if found else None,
        "round_trip_seconds": round(found.seconds, 6) if found else None,
        "problem": seen.trouble or None,
    }


def _survey_data(found: Survey | None) -> Mapping[str, object]:
    """None is what cannot be known."""
    if found is None:
        return dict.fromkeys(("parked", "runs", "outbox", "held", "stopped"))
    stopped = [
        {
            "queue": one.queue,
            "paused": one.paused,
            "by": one.by,
            "reason": one.reason,
            "since": _time(one.since),
            "until": _time(one.until),
            "breaker_open": one.tripped,
            "cause": one.cause,
            "open_since": _time(one.tripped_at) if one.tripped else None,
        }
        for one in found.stopped
    ]
    parts = {name: asdict(getattr(found, name)) for name in ("parked", "outbox", "held")}
    for part in parts.values():
        part["oldest"] = _time(part["oldest"])
    return {**parts, "runs": found.runs, "stopped": stopped}


def _time(at: datetime | None) -> str | None:
    return None if at is None else clock(at, terminal=False)


def _queue_data(level: Level, seen: Standing) -> Mapping[str, object]:
    return {
        "name": level.queue,
        "role": level.role.value,
        "ready": level.ready,
        "unacked": level.unacked,
        "consumers": level.consumers,
        "in_per_second": level.arriving,
        "out_per_second": level.leaving,
        "stopped": _stopped(level, seen) is not None,
        "problems": list(level.problems),
    }
