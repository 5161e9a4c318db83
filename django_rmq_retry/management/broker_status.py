"""The status of broker, database and topology, as text and JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import connections

from django_rmq_retry.amqp.inspection import LAG_SECONDS
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.arguments import plural
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.conf import settings
from django_rmq_retry.health.condition import Condition, standby, waiting_by_home, waiting_messages
from django_rmq_retry.health.facts import Survey
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.problems import Judged, blind
from django_rmq_retry.health.processes import readers
from django_rmq_retry.health.rules import Code, Severity
from django_rmq_retry.management.findings import Finding
from django_rmq_retry.management.terminal import clock, utc
from django_rmq_retry.models import QueueControl
from django_rmq_retry.parked.held_up import in_few_words
from django_rmq_retry.topology.declarations import Role
from django_rmq_retry.topology.plan import Plan, PlanState
from django_rmq_retry.wording import MOST_IN_A_TEXT, second, span

WATCHING = f"Waiting {LAG_SECONDS:g} s to detect messages in flight: the management API reports them with that delay."
STYLES_OF_QUEUES = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.INFORMATION: ""}


@dataclass(frozen=True, kw_only=True)
class BrokerStatus:
    """One look, and the queues as the table shows them: with an open breaker as their own problem."""

    health: Health
    rows: tuple[Judged, ...]
    waiting: Mapping[str, int]
    """The number of messages that wait until they are due, by their work queue."""

    @classmethod
    def of(cls, health: Health) -> "BrokerStatus":
        breakers = {one.subject: one for one in health.problems if one.code is Code.BREAKER_OPEN}
        open_ones = [breakers.get(one.level.queue) for one in health.judged]
        pairs = zip(health.judged, open_ones, strict=True)
        return cls(
            health=health,
            rows=tuple(replace(one, problems=(*one.problems, more)) if more else one for one, more in pairs),
            waiting=_waiting(health),
        )

    @property
    def survey(self) -> Survey | None:
        return self.health.survey

    @cached_property
    def readers(self) -> Counter[str]:
        """How many processes that reach the broker read each queue, by their heartbeats."""
        return readers(self.survey.processes, self.survey.at) if self.survey else Counter()

    def standby(self, level: Level) -> int:
        return standby(level, self.readers)

    @property
    def consumers(self) -> int | None:
        """The number of living processes, by their heartbeats; None if it is unknown."""
        if self.survey is None or not settings().records:
            return None
        return sum(row.living(self.survey.at) for row in self.survey.processes)

    def stopped(self, row: Judged) -> QueueControl | None:
        """Return why an operator or a breaker has stopped a queue."""
        stopped = self.survey.stopped if self.survey else ()
        return next((control for control in stopped if control.queue == row.level.queue), None)

    def halt(self, row: Judged) -> QueueControl | None:
        """Return the message at which a queue has halted."""
        halted = self.survey.halted if self.survey else ()
        return next((control for control in halted if control.queue == row.level.queue), None)

    def condition(self, row: Judged) -> Condition:
        queue, stopped, halt = row.level.queue, self.stopped(row) is not None, self.health.halts.get(row.level.queue)
        return Condition.of(
            [row],
            stopped=stopped,
            halt=halt,
            waiting=self.waiting.get(queue, 0) + self.behind(row.level),
            parked=self.parked(row.level),
            current=self.stops_known(row),
        )

    def behind(self, level: Level) -> int:
        """Return the number of messages of a queue that wait behind blocked keys."""
        return self.survey.blocked.by_queue.get(level.queue, 0) if self.survey else 0

    def stops_known(self, row: Judged) -> bool:
        """Return False for a work queue while the database does not tell whether it is paused or halted."""
        return not (self.health.trouble and row.level.role is Role.WORK)

    def parked(self, level: Level) -> int:
        """Return the number of parked messages that failed in a queue; they wait in the database."""
        return self.survey.parked_in.get(level.queue, 0) if self.survey else 0


def _waiting(health: Health) -> Mapping[str, int]:
    if health.survey is None:
        return waiting_by_home(health.gauged.levels)
    return {queue: one.count or 0 for queue, one in waiting_messages(health.gauged.levels, health.survey.at)[1].items()}


def _consumers(level: Level, waits: int) -> str:
    if waits:
        return f"1 active, {waits} standby"
    return "-" if level.consumers is None else str(level.consumers)


def heads(seen: BrokerStatus, *, terminal: bool) -> list[tuple[str, ...]]:
    broker = seen.health.broker
    if broker is None:
        away = seen.health.away
        since = f" since {_time(away.since, terminal=terminal)}" if away and away.since else ""
        return [("Broker", "✕", f"no connection{since}"), ("Database", *_database(seen))]
    same, all_seen, unseen = _declared(broker.plan)
    topology = "OK" if same == all_seen else "✕"
    hidden = f", {plural(unseen, 'binding')} not visible" if unseen else ""
    return [
        ("Broker", "OK", f"{broker.name}, round trip {broker.round_trip * 1000:.0f} ms"),
        ("Database", *_database(seen)),
        ("Topology", topology, f"{same}/{all_seen}{hidden}"),
    ]


def _declared(plan: Plan | None) -> tuple[int, int, int]:
    """Return the numbers of items that match their definition, that are visible, and that are not."""
    if plan is None:
        return 0, 0, 0
    same, unseen = len(plan.of(PlanState.SAME)), len(plan.of(PlanState.UNSEEN))
    return same, len(plan.items) - unseen, unseen


def _database(seen: BrokerStatus) -> tuple[str, str]:
    if seen.survey is None:
        return ("✕", "cannot be used") if seen.health.trouble else ("-", "not used")
    alias = seen.survey.alias
    return "OK", f"{alias} {connections[alias].vendor}, round trip {seen.survey.seconds * 1000:.0f} ms"


def state(seen: BrokerStatus, row: Judged, *, terminal: bool = False) -> tuple[str, str]:
    """Return the words of the last column, and the colour of the row."""
    condition, parked = seen.condition(row), seen.parked(row.level)
    words = _words(seen, row, condition, terminal=terminal)
    if parked and condition is not Condition.PARKED:
        words = f"{words}; {Condition.PARKED.word} {parked:,}"
    return words, STYLES_OF_QUEUES[condition.severity]


def _words(seen: BrokerStatus, row: Judged, condition: Condition, *, terminal: bool) -> str:
    if condition is Condition.UNKNOWN:
        return "-" if seen.stops_known(row) else "unknown"
    text = str(condition.word)
    match condition:
        case Condition.FAULTY:
            # The command stands above the table.
            text = "; ".join(problem.row.removesuffix(f": {problem.fix}") for problem in row.errors)
        case Condition.NOTED:
            text = row.remark
        case Condition.STOPPED if stopped := seen.stopped(row):
            text = _why(stopped, terminal=terminal)
        case Condition.PARKED:
            text = f"{text} {seen.parked(row.level):,}"
        case Condition.HALTED | Condition.HALTED_LONG if halt := seen.halt(row):
            text = _halted(halt, terminal=terminal)
    return f"{condition.sign} {text}"


def is_beside(seen: BrokerStatus, row: Judged) -> bool:
    """Return True for an empty queue of an abandoned one, which says all."""
    empty = row.of(Code.EMPTY) or row.of(Code.EMPTY_KEPT)
    home = row.level.home
    return (
        empty and home != row.level.queue and any(one.level.abandoned and one.level.queue == home for one in seen.rows)
    )


def is_quiet(seen: BrokerStatus, row: Judged) -> bool:
    """Return True for an empty queue about which there is nothing to say."""
    return is_beside(seen, row) or (
        row.level.ready == 0 and not row.level.unacked and seen.condition(row) is Condition.RUNNING
    )


def cells(seen: BrokerStatus, row: Judged, *, terminal: bool) -> tuple[str, ...]:
    level = row.level
    return (
        level.queue,
        level.role.value,
        *(("-" if value is None else str(value)) for value in (level.ready, level.unacked)),
        _consumers(level, seen.standby(level)),
        *(("-" if value is None else f"{value:.1f}") for value in (level.arriving, level.leaving)),
        state(seen, row, terminal=terminal)[0],
    )


def _why(switch: QueueControl, *, terminal: bool) -> str:
    """Return the text of an operator's pause; an open breaker is listed as a problem instead."""
    by = f"paused by {switch.by}" if switch.by else "paused"
    reason = f": {switch.reason}" if switch.reason else ""
    until = f", resumes at {_time(switch.until, terminal=terminal)}" if switch.until else ""
    return f"{by}{reason}{until}"


def _time(at: datetime, *, terminal: bool) -> str:
    """Return a time as the findings above write it, or for a program."""
    return second(at) if terminal else clock(at, terminal=False)


def _halted(control: QueueControl, *, terminal: bool) -> str:
    at = _time(control.halted_at, terminal=terminal) if control.halted_at else ""
    return f"halted since {at}, attempt {control.halted_attempt}: {control.halted_error}"


def _unheard(seen: BrokerStatus) -> str:
    """Return how many of the consumers miss heartbeats, for the end of their number: they may be gone already."""
    known = seen.survey
    if known is None or not seen.consumers:
        return ""
    ages = [known.at - row.beat_at for row in known.processes if row.living(known.at) and row.silent(known.at)]
    which = "" if len(ages) == seen.consumers else f"{len(ages)} of them "
    return f", {which}not heard of for {span(min(ages))}" if ages else ""


def totals(seen: BrokerStatus, *, terminal: bool) -> Iterator[str]:
    """Yield the totals, then lines for the outbox and for blocked keys if any messages wait there.

    ``Consumers 3 · parked 226 (+38 in 10 min) · requeue runs 1 active``
    """
    words = [f"Consumers {'unknown' if seen.consumers is None else seen.consumers}{_unheard(seen)}"]
    if seen.survey is None:
        yield words[0]
        return
    parked, outbox, blocked = seen.survey.parked, seen.survey.outbox, seen.survey.blocked

    def age(oldest: datetime | None) -> str:
        return f", oldest {clock(oldest, terminal=terminal)}" if oldest else ""

    again = f", {parked.recent_again} of them again" if parked.recent_again else ""
    lately = f" (+{parked.recent} in 10 min{again})" if parked.recent else ""
    latest = sorted(seen.survey.held.items(), reverse=True)[:MOST_IN_A_TEXT]
    held = "; ".join(f"{run} waits: {in_few_words(stopped)}" for run, stopped in latest)
    runs = f"requeue runs {len(seen.survey.runs)} active" + (f" ({held})" if held else "")
    words += [f"parked {parked.count}{lately}{age(parked.oldest)}", runs]
    yield " · ".join(words)
    if outbox.waiting or outbox.failed:
        yield f"Outbox {outbox.waiting} waiting{age(outbox.oldest)} · {outbox.failed} failed"
    if blocked.keys:
        counts = f"{blocked.messages} waiting, at most {blocked.most} behind one key"
        yield f"Blocked {plural(blocked.keys, 'key')}{age(blocked.oldest)} · {counts}"


def as_data(seen: BrokerStatus) -> Mapping[str, Any]:
    survey, broker = seen.survey, seen.health.broker
    same, all_seen, unseen = _declared(broker.plan) if broker else (None, None, None)
    database = {
        "alias": survey.alias if survey else None,
        "round_trip_seconds": round(survey.seconds, 6) if survey else None,
        "clock_ahead_seconds": round(survey.apart.total_seconds(), 3) if survey else None,
        "problem": seen.health.trouble or None,
    }
    return {
        "broker": broker.name if broker else None,
        "round_trip_seconds": round(broker.round_trip, 6) if broker else None,
        "database": database,
        "topology": {"as_declared": same, "of": all_seen, "not_visible": unseen},
        "queues": [_queue_data(seen, row) for row in seen.rows],
        "consumers": seen.consumers,
        **_survey_data(survey),
        "problems": [problem.line for problem in seen.health.of_severity(Severity.ERROR)],
        "findings": [Finding.of(problem).as_data() for problem in seen.health.needs],
        "blind": str(blind(broker.gauged)) if broker else "",
    }


def _survey_data(survey: Survey | None) -> Mapping[str, object]:
    """Return the database's figures as JSON data; None stands for an unknown value."""
    if survey is None:
        return dict.fromkeys(("parked", "runs", "outbox", "blocked", "stopped", "halted"))
    stopped = [_stopped_data(one, survey.at) for one in survey.stopped]
    halted = [
        {
            "queue": one.queue,
            "since": utc(one.halted_at),
            "attempt": one.halted_attempt,
            "error": one.halted_error,
            "message_id": one.halted_message or None,
            "by": one.halted_by,
        }
        for one in survey.halted
    ]
    parts = {name: asdict(getattr(survey, name)) for name in ("parked", "outbox", "blocked")}
    for part in parts.values():
        part.update({name: utc(at) for name, at in part.items() if name in ("oldest", "failed_since")})
    return {**parts, "runs": len(survey.runs), "stopped": stopped, "halted": halted}


def _stopped_data(control: QueueControl, now: datetime) -> Mapping[str, object]:
    """Return what stops a queue; of a pause that has ended while the breaker is open nothing is said."""
    paused = state_of(control).is_paused(now.timestamp())
    return {
        "queue": control.queue,
        "paused": paused,
        "by": control.by if paused else "",
        "reason": control.reason if paused else "",
        "since": utc(control.since) if paused else None,
        "until": utc(control.until) if paused else None,
        "breaker_open": control.opened,
        "cause": control.cause,
        "open_since": utc(control.opened_at) if control.opened else None,
    }


def _queue_data(seen: BrokerStatus, row: Judged) -> Mapping[str, object]:
    level = row.level
    return {
        "name": level.queue,
        "role": level.role.value,
        "ready": level.ready,
        "unacked": level.unacked,
        "consumers": level.consumers,
        "standby": seen.standby(level),
        "in_per_second": level.arriving,
        "out_per_second": level.leaving,
        "stopped": seen.stopped(row) is not None if seen.stops_known(row) else None,
        "problems": [problem.row for problem in row.errors if problem.code is not Code.BREAKER_OPEN],
        "abandoned": level.abandoned,
        "remark": row.remark,
    }
