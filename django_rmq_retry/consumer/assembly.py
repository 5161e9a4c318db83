"""Builds a consumer and a drainer from the project's settings."""

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, DataError, IntegrityError, InterfaceError

from django_rmq_retry import __version__, conf, hooks
from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.attempts.captured_log import FreshConnectionsAndLog
from django_rmq_retry.breakers.gate import BreakerGate
from django_rmq_retry.breakers.halts import Halts
from django_rmq_retry.breakers.let_go import LetGo
from django_rmq_retry.breakers.rates import RateGate
from django_rmq_retry.breakers.table import BreakerTable, RateTable, controls_alias, process_name
from django_rmq_retry.breakers.watch import Watch
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.consumer import Consumer, ConsumerLimits, Watchers
from django_rmq_retry.consumer.drainer import Chore, Drainer, DrainerParts
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.consumer.heartbeat import Heartbeat
from django_rmq_retry.consumer.put_aside import PutAside
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.consumer.surroundings import Surroundings, machine_fails
from django_rmq_retry.consumer.with_threads import ConsumerWithThreads
from django_rmq_retry.database_clock import epoch, epoch_ms
from django_rmq_retry.database_connections import FreshConnections, interrupted, roll_back_left_open
from django_rmq_retry.embedded.wire.server import Keeper
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.contracts import Gate
from django_rmq_retry.handlers.layout import homes_of, needed
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.health.doubts import end_doubts
from django_rmq_retry.health.processes import tidy_vanished
from django_rmq_retry.inbox import retention
from django_rmq_retry.inbox.once import once
from django_rmq_retry.inbox.once_batch import once_batch
from django_rmq_retry.inbox.retention import EntryRetention
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.ordering.gate import OrderGate
from django_rmq_retry.ordering.keys import SEARCH_SECONDS, unblock_resolved
from django_rmq_retry.parked.retention import delete_old
from django_rmq_retry.parked.store import RecordStore
from django_rmq_retry.parked.withheld import withheld
from django_rmq_retry.policies.verdict import Verdict
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.telemetry.meter import Meter
from django_rmq_retry.topology.declarations import Server

KEY_SECONDS = 10.0
"""Seconds for ``order_by``, for whose result the later messages of its queue wait."""
DRAINER_PREFETCH = 500
MINUTE_SECONDS, HOUR_SECONDS = 60.0, 3600.0


def consumer(
    work_queues: Sequence[WorkQueue],
    events: Events,
    *,
    threads: int,
    prefetch: int,
    asynchronous: int,
    limits: ConsumerLimits,
    watchers: Watchers = Watchers(),  # noqa: B008 - a frozen value
    meter: Meter | None = None,
    number: int = 0,
) -> ConsumerWithThreads:
    """Build a consumer with its connections and threads; its handlers publish over the same I/O thread."""
    settings, name = conf.settings(), process_name()
    recorder = Recorder() if settings.records else None
    # A project with neither records nor breakers need not have migrated this app: missing tables are no error there.
    warn = settings.records or any(one.breaker for work_queue in work_queues for one in work_queue.subscriptions)
    seconds = partial(epoch, _clock())
    breaker_gate = BreakerGate(work_queues, BreakerTable(), now=seconds, chance=random.random, who=name, warn=warn)
    pace = RateGate(work_queues, RateTable(), now=seconds)
    surroundings = _surroundings(events, recorder, (breaker_gate, pace, OrderGate()), meter)
    access, opened = settings.access(port_of=Keeper().port), broker_connections.connections
    source = PikaSource(
        opened.io("rmq-io"), access, opened.publisher, needs=needed(work_queues, extra=settings.topology)
    )
    made = Consumer(
        work_queues,
        source,
        BatchPipeline(work_queues, surroundings),
        threads=threads,
        prefetch=prefetch,
        asynchronous=asynchronous,
        limits=limits,
        refusal=lambda broker: _refusal(work_queues, broker),
        watchers=watchers,
        acks_lost=(lambda _messages: None) if recorder is None else recorder.acks_lost,
    )
    # The attempts need the gate, the consumer needs the attempts, and the gate pauses queues of the consumer.
    breaker_gate.control = made.pauses
    made.unread = lambda: breaker_gate.unread
    heartbeat = None
    if settings.records:
        at_once = sum(made.sizes)
        facts: dict[str, Any] = {"name": name, "number": number, "package": __version__, "threads": at_once}
        heartbeat = Heartbeat(made, **facts, queues=made.pauses.queues)
        breaker_gate.let_go = LetGo(name, left_of=made.pauses.left_of)
    halts = Halts(
        lambda: events.halts,
        name,
        holds=source.holds,
        let_go=events.let_go,
        connected=lambda: made.lost_since is None,
        moved_on=lambda: events.moved_on(breaker_gate.halted),
    )
    watch = Watch(breaker_gate, halts, with_connections=FreshConnections)
    return ConsumerWithThreads(consumer=made, watch=watch, heartbeat=heartbeat, recorder=recorder)


def _surroundings(
    events: Events, recorder: Recorder | None, gates: Sequence[Gate], meter: Meter | None
) -> Surroundings:
    settings = conf.settings()
    journals = (recorder, events, meter)
    return Surroundings(
        with_connections=FreshConnections if recorder is None else FreshConnectionsAndLog,
        # Records before signals: a receiver of a signal may read the record of the attempt.
        journals=[journal for journal in journals if journal is not None],
        acked=None if meter is None else meter.acked,
        keep=(lambda _kept: None) if recorder is None else recorder.buffer.add,
        unparked=None if recorder is None else recorder.unparked,
        withheld=(lambda _delivery: None) if recorder is None else partial(_withheld, recorder),
        clock=time.monotonic,
        now_ms=partial(epoch_ms, _clock()),
        chance=random.random,
        crash_limit=settings.crash_limit,
        reply_to=settings.reply_to,
        refused=events.refuse_answer,
        once=once,
        once_batch=once_batch,
        key_timeout=KEY_SECONDS,
        interrupted=interrupted,
        roll_back_left_open=roll_back_left_open,
        check=check_writable,
        away=_away,
        gates=gates,
        hooks=hooks.project_hooks() if settings.around else None,
    )


def _withheld(recorder: Recorder, delivery: Delivery) -> Verdict | None:
    """Ask the database of a copy; while it is known to be away, only one from quarantine waits for its answer."""
    return None if recorder.buffer.away and not delivery.quarantined else withheld(delivery)


def _refusal(work_queues: Sequence[WorkQueue], broker: Server) -> str | None:
    """Return the reason why this broker's version lacks a feature that a handler's carrier needs, or None."""
    for work_queue in work_queues:
        for subscription in work_queue.subscriptions:
            reason = subscription.policy.via.version_refusal(broker)
            if reason:
                return f"Handler {subscription.name}: {reason}"
    return None


def _clock() -> str:
    """Return the database whose clock all processes share; stamps of messages are compared with its times."""
    try:
        return controls_alias()
    except Exception:  # noqa: BLE001 - a project's database router may fail: without a time no failure can be settled
        return DEFAULT_DB_ALIAS


def _away(error: BaseException) -> bool:
    """True if the error means that the database or the machine is unavailable, not that the data are invalid."""
    if isinstance(error, DatabaseError):
        return not isinstance(error, DataError | IntegrityError)
    return isinstance(error, InterfaceError | ImproperlyConfigured) or machine_fails(error)


def drainer(queues: Sequence[str]) -> Drainer:
    """Build a drainer of these parked queues with a connection of its own, on the I/O thread of the process."""
    access, opened = conf.settings().access(port_of=Keeper().port), broker_connections.connections
    work_queues = registry.work_queues()
    parts = DrainerParts(
        source=lambda: PikaSource(opened.io("rmq-io"), access, opened.publisher, patient=True),
        storage=RecordStore(homes_of(work_queues), work_queues),
        aside=PutAside(),
        with_connections=FreshConnections,
        chores=(
            Chore(name="Retention", every=HOUR_SECONDS, run=delete_old),
            Chore(name="Retention of handled messages", every=HOUR_SECONDS, run=EntryRetention()),
            Chore(
                name="Closing messages that another copy has handled",
                every=retention.TWINS_SECONDS,
                run=retention.Twins(),
            ),
            Chore(name="Unblocking ordering keys", every=SEARCH_SECONDS, run=unblock_resolved),
            Chore(name="Deletion of consumers that have vanished", every=MINUTE_SECONDS, run=tidy_vanished),
            Chore(name="Ending the doubts of requeue runs", every=MINUTE_SECONDS, run=end_doubts),
        ),
    )
    return Drainer([Line(queue=name, prefetch=DRAINER_PREFETCH) for name in queues], parts)
