"""How the queues of a topology are doing: counts by passive declares, more by the management API, problems in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from django_rmq_retry.broker.declaring import MOVING, Declarer
from django_rmq_retry.broker.holding import Holding, counted
from django_rmq_retry.broker.inspecting import Row
from django_rmq_retry.broker.refusing import BrokerUnreachable, Refusal
from django_rmq_retry.core.declarations import QueueDeclaration, Role, Topology
from django_rmq_retry.core.errors import BrokerRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is still healthy."""

    min_consumers: int = 0
    stopped: frozenset[str] = frozenset()
    """Queues that somebody has stopped: nobody has to read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One queue; None is what cannot be known."""

    queue: str
    role: Role
    ready: int | None = None
    consumers: int | None = None
    unacked: int | None = None
    arriving: float | None = None
    """Messages a second."""
    leaving: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauged:
    """All queues; blind tells why the management API could not be asked."""

    levels: tuple[Level, ...]
    blind: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{level.queue}: {problem}" for level in self.levels for problem in level.problems)


def gauge(declarer: Declarer, topology: Topology, bounds: Bounds) -> Gauged:
    """Every queue of the topology. No message is taken: looking at one can cost it (RabbitMQ 4.0, quorum)."""
    rows: Mapping[str, Row] = {}
    blind = 'Unacked messages and rates are seen only with RMQ_RETRY["MANAGEMENT_URL"].'
    if declarer.inspector is not None:
        try:
            rows, blind = declarer.inspector.queues(), ""
        except (BrokerUnreachable, BrokerRefused) as error:
            blind = str(error)
    levels = [_level(declarer, queue, rows.get(queue.name), bounds) for queue in topology.queues.values()]
    return Gauged(levels=tuple(levels), blind=blind)


def _level(declarer: Declarer, queue: QueueDeclaration, row: Row | None, bounds: Bounds) -> Level:
    try:
        holding = counted(declarer.session, row, queue.name)
    except Refusal as refusal:
        return Level(queue=queue.name, role=queue.role, problems=(refusal.sentence(),))
    if holding is None:
        missing = "it does not exist: manage.py rmq_declare"
        return Level(queue=queue.name, role=queue.role, problems=(missing, *_left(declarer, queue)))
    return Level(
        queue=queue.name,
        role=queue.role,
        ready=holding.ready,
        consumers=holding.consumers,
        unacked=None if row is None else row.get("messages_unacknowledged"),
        arriving=_rate(row, "publish"),
        leaving=_rate(row, "deliver_get"),
        problems=(*_problems(queue, holding, row or {}, bounds), *_left(declarer, queue)),
    )


def _problems(queue: QueueDeclaration, holding: Holding, row: Row, bounds: Bounds) -> list[str]:
    found = []
    read = queue.name not in bounds.stopped
    if holding.ready and not holding.consumers and _is_read(queue) and read:
        found.append("nobody reads this queue")
    if queue.role is Role.WORK and holding.consumers < bounds.min_consumers and read:
        found.append(f"{holding.consumers} of at least {bounds.min_consumers} consumers")
    if queue.role is Role.WAITING and holding.consumers:
        found.append("somebody consumes it: retries come too early")
    if _full(queue.arguments, holding.ready):
        found.append("full: it refuses or gives up messages")
    if row.get("messages_dlx"):
        found.append(f"{row['messages_dlx']} dead letters wait: where they go to is full or missing")
    return found


def _is_read(queue: QueueDeclaration) -> bool:
    """Whether a consumer belongs to it; a queue with a TTL may be there for the delay alone."""
    return queue.role in (Role.WORK, Role.SUSPECTS, Role.REPLY) or (
        queue.role is Role.OTHER and "x-message-ttl" not in queue.arguments
    )


def _full(arguments: Mapping[str, object], ready: int) -> bool:
    most = arguments.get("x-max-length")
    return isinstance(most, int) and ready >= most


def _left(declarer: Declarer, queue: QueueDeclaration) -> list[str]:
    if queue.role is not Role.WORK:
        return []
    try:
        aside = counted(declarer.session, None, queue.name + MOVING)
    except Refusal:
        return []
    if aside is None:
        return []
    return [f"a move of it was interrupted, {aside.ready} messages wait: manage.py rmq_declare --recreate {queue.name}"]


def _rate(row: Row | None, name: str) -> float | None:
    """Without traffic the API leaves these out, and right after the start too."""
    if row is None:
        return None
    details = row.get("message_stats", {}).get(f"{name}_details", {})
    return float(details.get("rate", 0.0))
