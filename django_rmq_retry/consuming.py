"""Builds a consumer: the only module of Django's side that knows the runtime. The web process never imports it."""

import random
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from django_rmq_retry import wiring
from django_rmq_retry.broker.base import Server
from django_rmq_retry.broker.capabilities import carrier_refusal
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.conf import settings
from django_rmq_retry.core.layout import needed
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.embedded.starting import Keeper
from django_rmq_retry.inbox.running import once
from django_rmq_retry.ordering.gating import Order
from django_rmq_retry.records import capturing
from django_rmq_retry.records.recorder import Recorder
from django_rmq_retry.runtime.attempt import Attempts
from django_rmq_retry.runtime.consumer import Consumer
from django_rmq_retry.runtime.events import Events
from django_rmq_retry.runtime.gating import Gates
from django_rmq_retry.runtime.journal import Journals
from django_rmq_retry.runtime.limits import Limits
from django_rmq_retry.runtime.surroundings import Surroundings
from django_rmq_retry.switching.board import Board
from django_rmq_retry.switching.meters import MeterTable
from django_rmq_retry.switching.pacing import Pace
from django_rmq_retry.switching.table import Table, me
from django_rmq_retry.switching.watching import Watch

LAST_WORDS = 5.0
"""Seconds that the database has at the end to hear what was switched."""


def consumer(intakes: Sequence[Intake], events: Events, *, threads: int, prefetch: int, limits: Limits) -> Consumer:
    """A consumer with its connections; its handlers publish over the same I/O thread."""
    now = settings()
    recorder = Recorder() if now.records else None
    board = Board(intakes, Table(), now=time.time, chance=random.random, who=me())
    # Whoever has neither records nor breakers may well have none of our tables.
    board.loud = now.records or any(one.breaker for intake in intakes for one in intake.subscriptions)
    pace = Pace(intakes, MeterTable(), now=time.time)
    surroundings = Surroundings(
        around=Around if recorder is None else Heard,
        # Records before signals: whoever is told of an outcome may look at its record.
        journal=events if recorder is None else Journals((recorder, events)),
        clock=time.monotonic,
        today=_today,
        chance=random.random,
        crash_limit=now.crash_limit,
        reply_to=now.reply_to,
        once=once,
        gate=Gates((board, pace, Order())),
    )
    access = now.access(port_of=Keeper().port)
    source = PikaSource(wiring.io("rmq-io"), access, wiring.publisher(), needs=needed(intakes))
    made = Recorded(
        intakes,
        source,
        Attempts(intakes, surroundings),
        recorder=recorder,
        watch=Watch(board, around=Around),
        threads=threads,
        prefetch=prefetch,
        limits=limits,
        refusal=lambda server: _refusal(intakes, server),
    )
    board.hands = made.valves
    return made


class Recorded(Consumer):
    """A consumer that follows what is switched, and whose attempts are remembered, if a recorder is given."""

    def __init__(self, *args: Any, recorder: Recorder | None, watch: Watch, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorder = recorder
        self._watch = watch

    def run(self) -> int:
        self._watch.start()
        try:
            with self._recorder.recording() if self._recorder else nullcontext():
                return super().run()
        finally:
            self._watch.stop(LAST_WORDS)


def _refusal(intakes: Sequence[Intake], server: Server) -> str | None:
    """What a carrier needs that this broker, which is known only now, cannot do."""
    for intake in intakes:
        for subscription in intake.subscriptions:
            reason = carrier_refusal(server, subscription.policy.via)
            if reason:
                return f"Handler {subscription.name}: {reason}"
    return None


def _today() -> int:
    """Milliseconds of the epoch."""
    return time.time_ns() // 1_000_000


class _Thread(threading.local):
    """Whether this thread has ever connected to a database: asking all of Django's connections costs more."""

    connects = False


_thread = _Thread()


def _connected(**_: object) -> None:
    _thread.connects = True


connection_created.connect(_connected, dispatch_uid="django_rmq_retry.consuming")


class Around:
    """Cares for Django's connections around one attempt, as a request does: old ones are closed before and after."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _thread.connects:
            _renew()

    def __exit__(self, *_error: object) -> None:
        if not _thread.connects:
            return
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


class Heard(Around):
    """The same, and what is logged meanwhile is kept until it is known how the attempt ends."""

    __slots__ = ()

    def __enter__(self) -> None:
        capturing.begin()
        if _thread.connects:
            _renew()


def _renew() -> None:
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()
