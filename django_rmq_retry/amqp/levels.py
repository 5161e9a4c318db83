"""Measures queues: their messages, consumers and rates. Whether something is wrong is judged elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django_rmq_retry.amqp.declarer import MOVING, Declarer
from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.rows import Row
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.topology.declarations import AbandonedQueue, QueueDeclaration, Role, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One queue as it was found; None marks a value that is unknown."""

    queue: str
    role: Role
    ready: int | None = None
    consumers: int | None = None
    unacked: int | None = None
    arriving: float | None = None
    """Messages a second."""
    leaving: float | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    """The arguments that the project declares."""
    missing: bool = False
    existing: bool = False
    """True if another program declares the queue."""
    refusal: str = ""
    """The broker's reason for not showing the queue."""
    moving: int | None = None
    """The messages of this queue that an interrupted move holds."""
    dead_letters: int = 0
    """Dead letters of this queue that wait because their target does not take them."""
    abandoned: bool = False
    """True if the project declared the queue but no handler consumes it any longer."""
    home: str = ""
    """The work queue to which an abandoned queue belonged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauged:
    """The levels of all queues, and whether the management API added what it alone knows."""

    levels: tuple[Level, ...]
    api_set: bool
    api_error: str = ""
    vhost: str = "/"
    """The virtual host of the queues."""

    @property
    def blind(self) -> bool:
        return not self.api_set or bool(self.api_error)


def gauge(declarer: Declarer, topology: Topology, abandoned: Sequence[AbandonedQueue] = ()) -> Gauged:
    """Measure each queue of the topology and each abandoned one that exists, reading no message: 4.0 could lose it."""
    rows: Mapping[str, Row] = {}
    error = ""
    if declarer.inspector is not None:
        try:
            rows = declarer.inspector.queues()
        except (BrokerUnreachable, BrokerRefused) as failure:
            error = str(failure)
    levels = [_level(declarer, queue, rows.get(queue.name)) for queue in topology.queues.values()]
    for one in abandoned:
        level = _measure(declarer, one.queue, rows.get(one.queue.name), abandoned=True, home=one.home)
        levels += [] if level.missing else [level]
    vhost = declarer.session.access.vhost
    return Gauged(levels=tuple(levels), api_set=declarer.inspector is not None, api_error=error, vhost=vhost)


def _level(declarer: Declarer, queue: QueueDeclaration, row: Row | None) -> Level:
    if not queue.lasting:
        # A consumer creates and removes it. Other connections have no access to an exclusive queue.
        return Level(queue=queue.name, role=queue.role)
    moving = None
    if queue.role is Role.WORK:
        try:
            aside = counted(declarer.session, None, queue.name + MOVING)
            moving = None if aside is None else aside.ready
        except Refusal:
            pass
    return _measure(declarer, queue, row, moving=moving)


def _measure(
    declarer: Declarer,
    queue: QueueDeclaration,
    row: Row | None,
    *,
    moving: int | None = None,
    abandoned: bool = False,
    home: str = "",
) -> Level:
    refusal, holding = "", None
    try:
        holding = counted(declarer.session, row, queue.name)
    except Refusal as error:
        refusal = error.sentence()
    return Level(
        queue=queue.name,
        role=queue.role,
        ready=None if holding is None else holding.ready,
        consumers=None if holding is None else holding.consumers,
        unacked=None if row is None else row.get("messages_unacknowledged"),
        arriving=_rate(row, "publish"),
        leaving=_rate(row, "deliver_get"),
        arguments=queue.arguments,
        missing=holding is None and not refusal,
        existing=queue.existing,
        refusal=refusal,
        moving=moving,
        dead_letters=(row or {}).get("messages_dlx") or 0,
        abandoned=abandoned,
        home=home,
    )


def _rate(row: Row | None, name: str) -> float | None:
    """Return a rate in messages per second; the API omits rates without traffic and right after the broker's start."""
    if row is None:
        return None
    details = row.get("message_stats", {}).get(f"{name}_details", {})
    return float(details.get("rate", 0.0))
