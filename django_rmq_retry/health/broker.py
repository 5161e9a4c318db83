"""What the broker answers: which one it is, how fast, its queues, and what differs from their definitions."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.levels import Gauged
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.declared import gauged
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import Declared
from django_rmq_retry.topology.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    name: str
    round_trip: float
    """Seconds."""
    gauged: Gauged
    plan: Plan | None = None
    """What differs from the definitions; None if that was not asked for."""


def ask(declarer: Declarer, known: Iterable[Declared], *, plan: bool) -> BrokerFacts:
    """Ask over one session; ``known`` is what this project has declared before."""
    seconds, topology = round_trip(declarer.session), registry.topology()
    read = gauged(declarer, known)
    return BrokerFacts(
        name=f"{declarer.session.access.shown} ({declarer.session.server})",
        round_trip=seconds,
        gauged=read,
        # Without a management API that answers, only the facts that it alone has are missing.
        plan=(Declarer(declarer.session) if read.blind else declarer).plan(topology) if plan else None,
    )


def round_trip(session: Session) -> float:
    """Return the seconds that one question and its answer take."""
    session.channel()
    began = time.monotonic()
    session.ask(lambda channel, done: channel.basic_qos(prefetch_count=1, callback=done))
    return time.monotonic() - began
