"""The status of broker, database and topology, as text and JSON."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections

from django_rmq_retry import server
from django_rmq_retry.amqp.declarer import Bounds, Declarer, Gauged, Level, gauge
from django_rmq_retry.amqp.inspection import LAG
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.arguments import plural
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.facts import Survey, surveyed
from django_rmq_retry.management.command import RmqCommand, clock, declarer
from django_rmq_retry.models import QueueControl
from django_rmq_retry.parked.declared import Place, former_queues
from django_rmq_retry.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Role
from django_rmq_retry.topology.plan import Item, Plan, PlanState, shown

WATCHING = f"Waiting {LAG:g} s to detect messages in flight: the management API reports them with that delay."
SIGNS = {
    PlanState.CREATE: "+",
    PlanState.SAME: "=",
    PlanState.DIFFERS: "!",
    PlanState.MISSING: "!",
    PlanState.REFUSED: "!",
    PlanState.UNSEEN: "?",
    PlanState.LEFT: "!",
}
STYLES = {"+": "SUCCESS", "!": "ERROR", "?": "NOTICE", "=": ""}
_WORDS = {
    PlanState.SAME: "unchanged",
    PlanState.DIFFERS: "differs",
    PlanState.MISSING: "missing",
    PlanState.REFUSED: "refused",
    PlanState.UNSEEN: "not visible",
    PlanState.LEFT: "left by a move",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a healthy state, and the seconds that an answer may take."""

    timeout: float
    max_parked: int | None = None
    max_oldest: timedelta | None = None
    min_consumers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """The result of one look at broker, database and topology."""

    broker: str
    round_trip: float
    gauged: Gauged
    plan: Plan
    survey: Survey | None
    """None if the database is not used, or if it could not be queried and ``trouble`` has the reason."""
    trouble: str
    problems: tuple[str, ...]
    of_queues: int
    """The number of problems that are shown in the rows of their queues; they come first in ``problems``."""

    @property
    def consumers(self) -> int:
        """The consumers of the work queues; a process counts once for each queue that it consumes."""
        return sum(level.consumers or 0 for level in self.gauged.levels if level.role is Role.WORK)

    @property
    def declared(self) -> tuple[int, int, int]:
        """Return the numbers of items that match their definition, that are visible, and that are not."""
        same, unseen = len(self.plan.of(PlanState.SAME)), len(self.plan.of(PlanState.UNSEEN))
        return same, len(self.plan.items) - unseen, unseen


def look(limits: Limits) -> BrokerStatus:
    """Query the database first: it has the queues that are stopped on purpose."""
    survey, trouble = surveyed(limits.timeout)
    stopped = frozenset(switch.queue for switch in survey.stopped) if survey else frozenset()
    bounds = Bounds(min_consumers=limits.min_consumers, stopped=stopped)
    with declarer(timeout=limits.timeout) as it:
        seconds = round_trip(it.session)
        topology = registry.topology()
        former = former_queues(survey.declared, topology, Place.of(it.session)) if survey else ()
        gauged = gauge(it, topology, bounds, former)
        # Without a management API that answers, only the facts that it alone has are missing.
        plan = (Declarer(it.session) if gauged.blind else it).plan(topology)
        broker = f"{it.session.access.shown} ({it.session.server})"
    opened = [
        f"{switch.queue}: {opened_since(switch)}" for switch in (survey.stopped if survey else ()) if switch.opened
    ]
    problems = [*gauged.problems, *opened, *_drift(plan, gauged)]
    if trouble:
        problems.append(f"database: {trouble}")
    return BrokerStatus(
        broker=broker,
        round_trip=seconds,
        gauged=gauged,
        plan=plan,
        survey=survey,
        trouble=trouble,
        of_queues=len(gauged.problems) + len(opened),
        problems=(*problems, *_exceeded_limits(limits, gauged, survey)),
    )


def round_trip(session: Session) -> float:
    session.channel()
    began = time.monotonic()
    session.ask(lambda channel, done: channel.basic_qos(prefetch_count=1, callback=done))
    return time.monotonic() - began


def _drift(plan: Plan, gauged: Gauged) -> Iterator[str]:
    """Yield the items that differ from their definition, except queues whose own problem is shown already."""
    shown = {level.queue for level in gauged.levels if level.problems}
    for item in plan.of(PlanState.CREATE, PlanState.DIFFERS, PlanState.MISSING, PlanState.REFUSED):
        if item.kind == "queue" and item.name in shown and item.state is not PlanState.DIFFERS:
            continue
        yield f"{item.kind} {item.name}: {_drifted(item)}"


def _drifted(item: Item) -> str:
    if item.state is PlanState.CREATE:
        return "it does not exist: manage.py rmq_declare"
    return f"differs, {item.text}" if item.state is PlanState.DIFFERS else item.text


def _exceeded_limits(limits: Limits, gauged: Gauged, survey: Survey | None) -> Iterator[str]:
    """Yield the figures that exceed a limit."""
    unrecorded = sum(level.ready or 0 for level in gauged.levels if level.role is Role.PARKED)
    parked = unrecorded + (survey.parked.count if survey else 0)
    if limits.max_parked is not None and parked > limits.max_parked:
        yield f"{plural(parked, 'message')} parked, more than {limits.max_parked}"
    if survey is None:
        return
    if abs(survey.apart) > server.TOLERANCE:
        yield f"clocks: {server.difference(survey.apart, survey.alias)} Synchronize both by NTP."
    now = server.now(survey.alias)
    for what, oldest in (("parked message", survey.parked.oldest), ("message in the outbox", survey.outbox.oldest)):
        if limits.max_oldest is not None and oldest is not None and now - oldest > limits.max_oldest:
            waited, most = (now - oldest).total_seconds(), limits.max_oldest.total_seconds()
            yield f"the oldest {what} has waited {waited:.0f} s, longer than {most:g} s"
    yield from _halted_lines(limits, survey, now)
    if survey.outbox.failed:
        count = plural(survey.outbox.failed, "message")
        yield f"{count} in the outbox failed: manage.py rmq_relay list --failed"
    if survey.blocked.messages >= settings().blocked_total:
        yield f"{survey.blocked.messages} messages wait behind blocked keys, which reaches the limit BLOCKED_TOTAL"
    if survey.blocked.most >= settings().blocked_per_key:
        yield f"{survey.blocked.most} messages wait behind one key, which reaches the limit BLOCKED_PER_KEY"


def _halted_lines(limits: Limits, survey: Survey, now: datetime) -> Iterator[str]:
    for line in survey.halted:
        stood = now - (line.halted_at or now)
        if limits.max_oldest is not None and stood > limits.max_oldest:
            most = limits.max_oldest.total_seconds()
            text = f"{line.queue}: halted for {stood.total_seconds():.0f} s, longer than {most:g} s"
            yield f"{text}: {line.halted_error}"


def opened_since(switch: QueueControl) -> str:
    """Return the problem text of a queue whose breaker is open."""
    return f"its breaker is open: {switch.cause}" if switch.cause else "its breaker is open"


def heads(seen: BrokerStatus) -> list[tuple[str, ...]]:
    """Return a row each for broker, database and topology."""
    same, all_seen, unseen = seen.declared
    topology = "ok" if same == all_seen else "✕"
    hidden = f", {plural(unseen, 'binding')} not visible" if unseen else ""
    return [
        ("Broker", "ok", f"{seen.broker}, round trip {seen.round_trip * 1000:.0f} ms"),
        ("Database", *_database(seen)),
        ("Topology", topology, f"{same}/{all_seen}{hidden}"),
    ]


def _database(seen: BrokerStatus) -> tuple[str, str]:
    if seen.survey is None:
        return ("✕", seen.trouble) if seen.trouble else ("-", "not used")
    alias = seen.survey.alias
    return "ok", f"{alias} {connections[alias].vendor}, round trip {seen.survey.seconds * 1000:.0f} ms"


def row(level: Level, seen: BrokerStatus) -> tuple[str, ...]:
    """Return a queue's row of the table."""
    stopped = _stopped(level, seen)
    state = "ok"
    problems = [*level.problems, *([opened_since(stopped)] if stopped and stopped.opened else [])]
    if problems:
        state = f"✕ {'; '.join(problems)}"
    elif stopped:
        state = f"‖ {_why(stopped)}"
    elif halt := _halted(level, seen):
        at = clock(halt.halted_at, terminal=False) if halt.halted_at else ""
        state = f"■ halted since {at}, attempt {halt.halted_attempt}: {halt.halted_error}"
    elif level.remark:
        state = f"! {level.remark}"
    return (
        level.queue,
        level.role.value,
        *(("-" if value is None else str(value)) for value in (level.ready, level.unacked, level.consumers)),
        *(("-" if value is None else f"{value:.1f}") for value in (level.arriving, level.leaving)),
        state,
    )


def style(level: Level, seen: BrokerStatus) -> str:
    """Return the colour of the queue's row."""
    stopped = _stopped(level, seen)
    return (
        "ERROR"
        if level.problems or (stopped and stopped.opened)
        else "WARNING"
        if stopped or level.remark or _halted(level, seen)
        else ""
    )


def _stopped(level: Level, seen: BrokerStatus) -> QueueControl | None:
    stopped = seen.survey.stopped if seen.survey else ()
    return next((switch for switch in stopped if switch.queue == level.queue), None)


def _halted(level: Level, seen: BrokerStatus) -> QueueControl | None:
    halted = seen.survey.halted if seen.survey else ()
    return next((switch for switch in halted if switch.queue == level.queue), None)


def _why(switch: QueueControl) -> str:
    """Return the text of an operator's pause; an open breaker is listed as a problem instead."""
    by = f"paused by {switch.by}" if switch.by else "paused"
    reason = f": {switch.reason}" if switch.reason else ""
    until = f", resumes at {clock(switch.until, terminal=False)}" if switch.until else ""
    return f"{by}{reason}{until}"


def totals(seen: BrokerStatus, *, terminal: bool) -> Iterator[str]:
    """Yield the totals, then lines for the outbox and for blocked keys if any messages wait there.

    ``Consumers 3 · parked 226 (+38 in 10 min) · requeue runs 1 active``
    """
    words = [f"Consumers {seen.consumers}"]
    survey = seen.survey
    if survey is not None:
        parked = survey.parked
        lately = f" (+{parked.recent} in 10 min)" if parked.recent else ""
        oldest = f", oldest {clock(parked.oldest, terminal=terminal)}" if parked.oldest else ""
        words += [f"parked {parked.count}{lately}{oldest}", f"requeue runs {survey.runs} active"]
    yield " · ".join(words)
    if survey is not None:
        yield from _waiting(survey, terminal=terminal)


def _waiting(survey: Survey, *, terminal: bool) -> Iterator[str]:
    outbox, blocked = survey.outbox, survey.blocked
    if outbox.waiting or outbox.failed:
        oldest = f", oldest {clock(outbox.oldest, terminal=terminal)}" if outbox.oldest else ""
        yield f"Outbox {outbox.waiting} waiting{oldest} · {outbox.failed} failed"
    if blocked.keys:
        oldest = f", oldest {clock(blocked.oldest, terminal=terminal)}" if blocked.oldest else ""
        counts = f"{blocked.messages} waiting, at most {blocked.most} behind one key"
        yield f"Blocked {plural(blocked.keys, 'key')}{oldest} · {counts}"


def as_data(seen: BrokerStatus) -> Mapping[str, Any]:
    """Return the whole status as JSON data."""
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


def _database_data(seen: BrokerStatus) -> Mapping[str, object]:
    survey = seen.survey
    return {
        "alias": survey.alias if survey else None,
        "round_trip_seconds": round(survey.seconds, 6) if survey else None,
        "clock_ahead_seconds": round(survey.apart.total_seconds(), 3) if survey else None,
        "problem": seen.trouble or None,
    }


def _survey_data(survey: Survey | None) -> Mapping[str, object]:
    """Return the database's figures as JSON data; None stands for an unknown value."""
    if survey is None:
        return dict.fromkeys(("parked", "runs", "outbox", "blocked", "stopped", "halted"))
    stopped = [
        {
            "queue": one.queue,
            "paused": one.paused,
            "by": one.by,
            "reason": one.reason,
            "since": _time(one.since),
            "until": _time(one.until),
            "breaker_open": one.opened,
            "cause": one.cause,
            "open_since": _time(one.opened_at) if one.opened else None,
        }
        for one in survey.stopped
    ]
    halted = [
        {
            "queue": one.queue,
            "since": _time(one.halted_at),
            "attempt": one.halted_attempt,
            "error": one.halted_error,
            "message_id": one.halted_message or None,
            "by": one.halted_by,
        }
        for one in survey.halted
    ]
    parts = {name: asdict(getattr(survey, name)) for name in ("parked", "outbox", "blocked")}
    for part in parts.values():
        part["oldest"] = _time(part["oldest"])
    return {**parts, "runs": survey.runs, "stopped": stopped, "halted": halted}


def _time(at: datetime | None) -> str | None:
    return None if at is None else clock(at, terminal=False)


def _queue_data(level: Level, seen: BrokerStatus) -> Mapping[str, object]:
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
        "abandoned": level.abandoned,
        "remark": level.remark,
    }


def show_plan(command: RmqCommand, plan: Plan) -> None:
    """Write one line for each item: sign, kind, name and details."""
    rows = [(f"  {SIGNS[item.state]}", item.kind, item.name, _detail(item)) for item in plan.items]
    command.table(rows, [STYLES[SIGNS[item.state]] for item in plan.items])


def summary(plan: Plan, *, done: bool) -> str:
    """Return the counts of a plan: ``1 created, 8 unchanged, 1 differs.``"""
    counts = plan.counts
    words = {PlanState.CREATE: "created" if done else "to create", **_WORDS}
    if counts[PlanState.DIFFERS] > 1:
        words[PlanState.DIFFERS] = "differ"
    text = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{', '.join(text) or 'Nothing to declare'}."


def plan_as_data(plan: Plan) -> Iterator[dict[str, object]]:
    for item in plan.items:
        yield {
            "kind": item.kind,
            "name": item.name,
            "state": item.state.value,
            "differences": [
                {"argument": one.argument, "here": one.here, "broker": one.broker if one.reported else "unknown"}
                for one in item.differences
            ],
            "problem": item.problem,
        }


def _detail(item: Item) -> str:
    if item.text:
        return item.text
    declaration = item.declaration
    if isinstance(declaration, ExchangeDeclaration):
        words = [declaration.type, "durable" if declaration.durable else "transient"]
        return " ".join([*words, *(["existing"] if declaration.existing else [])])
    if isinstance(declaration, QueueDeclaration):
        kind = item.type if declaration.existing else declaration.arguments.get("x-queue-type", "")
        ttl = declaration.arguments.get("x-message-ttl")
        words = [declaration.role.value, str(kind), "existing" if declaration.existing else ""]
        return " ".join(word for word in (*words, f"ttl {ttl} ms" if ttl else "") if word)
    return _arguments(declaration)


def _arguments(binding: BindingDeclaration) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in binding.arguments.items())
