"""How broker, database and topology stand at one moment, and what of it is a problem."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router
from django.utils import timezone

from django_rmq_retry import registry
from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.gauging import Bounds, Gauged, gauge
from django_rmq_retry.broker.plans import Item, Plan, State
from django_rmq_retry.conf import settings
from django_rmq_retry.core.declarations import Role
from django_rmq_retry.management.reaching import declarer
from django_rmq_retry.models import ParkedMessage, Switch
from django_rmq_retry.operating.surveying import Survey, Unmigrated, survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is still healthy, and how long an answer may take."""

    timeout: float
    max_parked: int | None = None
    max_oldest: timedelta | None = None
    min_consumers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One look at everything."""

    broker: str
    round_trip: float
    gauged: Gauged
    plan: Plan
    survey: Survey | None
    """None where the database is not used, or ``trouble`` tells why it could not be asked."""
    trouble: str
    problems: tuple[str, ...]
    of_queues: int
    """So many of the problems stand in the rows of their queues."""

    @property
    def consumers(self) -> int:
        """Those of the work queues; a process counts once for each that it reads."""
        return sum(level.consumers or 0 for level in self.gauged.levels if level.role is Role.WORK)

    @property
    def declared(self) -> tuple[int, int, int]:
        """How much of the topology is as it is written, of how much that can be seen, and what cannot be."""
        same, unseen = len(self.plan.of(State.SAME)), len(self.plan.of(State.UNSEEN))
        return same, len(self.plan.items) - unseen, unseen


def look(limits: Limits) -> Standing:
    """At the database first: it knows which queues nobody shall read for now."""
    found, trouble = _asked(limits.timeout)
    stopped = frozenset(switch.queue for switch in found.stopped) if found else frozenset()
    bounds = Bounds(min_consumers=limits.min_consumers, stopped=stopped)
    with declarer(timeout=limits.timeout) as it:
        round_trip = _round_trip(it.session)
        gauged = gauge(it, registry.topology(), bounds)
        # A management API that is away costs what only it sees, and nothing else.
        plan = (Declarer(it.session) if gauged.blind else it).plan(registry.topology())
        broker = f"{it.session.access.shown} ({it.session.server})"
    opened = [f"{switch.queue}: {tripped(switch)}" for switch in (found.stopped if found else ()) if switch.tripped]
    problems = [*gauged.problems, *opened, *_drift(plan, gauged)]
    if trouble:
        problems.append(f"database: {trouble}")
    return Standing(
        broker=broker,
        round_trip=round_trip,
        gauged=gauged,
        plan=plan,
        survey=found,
        trouble=trouble,
        of_queues=len(gauged.problems) + len(opened),
        problems=(*problems, *_beyond(limits, gauged, found)),
    )


def _round_trip(session: Session) -> float:
    session.channel()
    began = time.monotonic()
    session.ask(lambda channel, done: channel.basic_qos(prefetch_count=1, callback=done))
    return time.monotonic() - began


def _asked(timeout: float) -> tuple[Survey | None, str]:
    """What the database says; or why not, in one line."""
    answers: list[tuple[Survey | None, str]] = []
    broken: list[Exception] = []
    alias = router.db_for_read(ParkedMessage)
    if only(alias):
        return _surveyed()

    def ask() -> None:
        try:
            answers.append(_surveyed())
        except Exception as error:  # noqa: BLE001 - told in the thread that asked
            broken.append(error)
        finally:
            connections.close_all()

    asking = threading.Thread(target=ask, name="rmq-survey", daemon=True)
    asking.start()
    asking.join(timeout)
    if broken:
        raise broken[0]
    return answers[0] if answers else (None, f"{alias!r} did not answer within {timeout:g} s")


def only(alias: str) -> bool:
    """Whether no other connection sees what this thread's one does."""
    connection = connections[alias]
    return connection.in_atomic_block or bool(getattr(connection, "is_in_memory_db", bool)())


def _surveyed() -> tuple[Survey | None, str]:
    used = settings().records
    try:
        return survey(), ""
    except Unmigrated as error:
        return None, str(error) if used else ""
    except (DatabaseError, ImproperlyConfigured) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        return None, said if used or isinstance(error, DatabaseError) else ""


def _drift(plan: Plan, gauged: Gauged) -> Iterator[str]:
    """What differs from how it is written; a queue that has a problem of its own has told it already."""
    told = {level.queue for level in gauged.levels if level.problems}
    for item in plan.of(State.CREATE, State.DIFFERS, State.MISSING, State.REFUSED):
        if item.kind == "queue" and item.name in told and item.state is not State.DIFFERS:
            continue
        yield f"{item.kind} {item.name}: {_drifted(item)}"


def _drifted(item: Item) -> str:
    if item.state is State.CREATE:
        return "it does not exist: manage.py rmq_declare"
    return f"differs, {item.said}" if item.state is State.DIFFERS else item.said


def _beyond(limits: Limits, gauged: Gauged, found: Survey | None) -> Iterator[str]:
    """What is more, or older, than it may be."""
    unrecorded = sum(level.ready or 0 for level in gauged.levels if level.role is Role.PARKED)
    parked = unrecorded + (found.parked.count if found else 0)
    if limits.max_parked is not None and parked > limits.max_parked:
        yield f"{parked} parked, more than {limits.max_parked}"
    if found is None:
        return
    now = timezone.now()
    for what, oldest in (("parked message", found.parked.oldest), ("message in the outbox", found.outbox.oldest)):
        if limits.max_oldest is not None and oldest is not None and now - oldest > limits.max_oldest:
            waited, most = (now - oldest).total_seconds(), limits.max_oldest.total_seconds()
            yield f"the oldest {what} has waited {waited:.0f} s, longer than {most:g} s"
    if found.outbox.stuck:
        yield f"{counted(found.outbox.stuck, 'message')} in the outbox cannot be sent: manage.py rmq_relay list --stuck"
    if found.held.messages >= settings().held_in_all:
        yield f"{found.held.messages} messages are held behind failed ones, as many as may be: HELD_IN_ALL"
    if found.held.most >= settings().held_per_key:
        yield f"{found.held.most} messages are held behind one key, as many as may be: HELD_PER_KEY"


def tripped(switch: Switch) -> str:
    """Of a queue whose breaker is open."""
    return f"its breaker is open: {switch.cause}" if switch.cause else "its breaker is open"


def counted(number: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
