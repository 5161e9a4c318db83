"""Builds a consumer: the only module of Django's side that knows the runtime. The web process never imports it."""

import random
import time
from collections.abc import Sequence

from django.db import connections

from django_rmq_retry import wiring
from django_rmq_retry.broker.base import Server
from django_rmq_retry.broker.capabilities import carrier_refusal
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.conf import settings
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.runtime.attempt import Attempts, Surroundings
from django_rmq_retry.runtime.consumer import Consumer, Limits
from django_rmq_retry.runtime.events import Events


def consumer(intakes: Sequence[Intake], events: Events, *, threads: int, prefetch: int, limits: Limits) -> Consumer:
    """A consumer with its connections; its handlers publish over the same I/O thread."""
    now = settings()
    surroundings = Surroundings(
        around=_Around,
        journal=events,
        clock=time.monotonic,
        today=_today,
        chance=random.random,
        crash_limit=now.crash_limit,
        reply_to=now.reply_to,
    )
    source = PikaSource(wiring.io("rmq-io"), now.access(), wiring.publisher())
    return Consumer(
        intakes,
        source,
        Attempts(intakes, surroundings),
        threads=threads,
        prefetch=prefetch,
        limits=limits,
        refusal=lambda server: _refusal(intakes, server),
    )


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


class _Around:
    """Cares for Django's connections around one attempt, as a request does: old ones are closed before and after."""

    __slots__ = ()

    def __enter__(self) -> None:
        for connection in connections.all(initialized_only=True):
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()

    def __exit__(self, *_error: object) -> None:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()
