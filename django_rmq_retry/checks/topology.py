"""Checks of queues, exchanges and bindings."""

from collections.abc import Iterable, Iterator

from django.core.checks import CheckMessage, register

from django_rmq_retry.checks.settings import TAG, error, warning, with_settings
from django_rmq_retry.conf import Settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.topology.declarations import NO_LIMIT, QueueDeclaration, Role, Topology, met_limit

PREDEFINED = {f"amq.{kind}": kind for kind in ("direct", "fanout", "topic", "headers")} | {"amq.match": "headers"}
DEAD_LETTERS = "x-dead-letter-exchange"
LENGTHS = {"x-max-length", "x-max-length-bytes"}


@register(TAG)
@with_settings
def check_topology(settings: Settings) -> Iterator[CheckMessage]:  # noqa: ARG001
    topology = registry.topology()
    dropping = {work_queue.queue.name for work_queue in registry.work_queues() if work_queue.queue.drops}
    yield from _ends(registry.work_queues())
    yield from _drops(registry.work_queues())
    for queue in topology.queues.values():
        for check in (_vanishes, _crosses_types, _dead_ends):
            yield from check(queue, topology)
        if queue.name not in dropping:
            yield from _gives_up(queue)
            yield from _drops_oldest(queue)
    yield from _exchanges(topology)
    yield from _loops(topology)
    yield from _lines(topology)


def _gives_up(queue: QueueDeclaration) -> Iterable[CheckMessage]:
    if queue.role is Role.WORK and not queue.existing and DEAD_LETTERS not in queue.arguments:
        yield warning(
            "W003",
            f"Work queue {queue.name!r} has no dead-letter exchange: messages that the broker removes (expired, over "
            "a limit, rejected) are dropped silently.",
            hint=f"Remove {DEAD_LETTERS!r} from the queue's arguments: the layout then sets it.",
        )


def _ends(work_queues: Iterable[WorkQueue]) -> Iterable[CheckMessage]:
    for queue in (work_queue.queue for work_queue in work_queues if not work_queue.queue.lasting):
        when, refused = "is deleted with its messages when the broker restarts", ""
        if queue.exclusive or queue.auto_delete:
            lost = "messages in it, and messages published while no consumer runs, are lost"
            when = f"is deleted with its consumer: {lost}"
        if not queue.durable and not queue.exclusive:
            refused = ". RabbitMQ 4 deprecates transient queues that are not exclusive, and from 4.3 on may refuse them"
        yield warning(
            "W018",
            f"Queue {queue.name!r} {when}{refused}.",
            hint="If that is intended, silence this check. Otherwise use a durable queue: Queue(…), the default.",
        )


def _drops(work_queues: Iterable[WorkQueue]) -> Iterable[CheckMessage]:
    for queue in (work_queue.queue for work_queue in work_queues):
        if queue.drops:
            yield warning(
                "W016",
                f"Queue {queue.name!r} drops {' and '.join(queue.drops)}: no handler gets them, and no record or log "
                "line names them.",
                hint="If that is intended, silence this check. Otherwise use expired='park', the default.",
            )


def _drops_oldest(queue: QueueDeclaration) -> Iterable[CheckMessage]:
    arguments = queue.arguments
    drops = arguments.get("x-overflow", "drop-head") == "drop-head"
    if arguments.get("x-queue-type") == "quorum" and LENGTHS & arguments.keys() and drops:
        yield warning(
            "W002",
            f"Quorum queue {queue.name!r} drops its oldest message when it is full (drop-head), so its dead-lettering "
            "is at most once: messages on their way to the parked queue are lost when the broker stops.",
            hint="Use overflow='reject-publish': the publisher gets an error and keeps the message.",
        )


def _vanishes(queue: QueueDeclaration, topology: Topology) -> Iterable[CheckMessage]:  # noqa: ARG001
    if "x-expires" in queue.arguments:
        yield warning(
            "W007",
            f"Queue {queue.name!r} has x-expires: the broker deletes it with its messages once it is unused.",
            hint="Remove x-expires from queues whose messages you need.",
        )


def _crosses_types(queue: QueueDeclaration, topology: Topology) -> Iterable[CheckMessage]:
    if queue.arguments.get("x-queue-type", "classic") != "classic" or queue.existing:
        return
    for name in _targets(queue, topology):
        target = topology.queues.get(name)
        if target is not None and target.arguments.get("x-queue-type") == "quorum":
            yield warning(
                "W006",
                f"Classic queue {queue.name!r} dead-letters into quorum queue {name!r}: most messages on that way "
                "are lost when the broker restarts.",
                hint="Give both the same type, preferably quorum.",
            )


def _dead_ends(queue: QueueDeclaration, topology: Topology) -> Iterable[CheckMessage]:
    exchange = queue.arguments.get(DEAD_LETTERS)
    if exchange is None or _targets(queue, topology):
        return
    known = topology.exchanges.get(str(exchange))
    if known is not None and known.existing:
        return
    problem = "which has no binding" if known else "which is not declared"
    named = f"the exchange {exchange!r}, {problem}" if exchange else "a queue that is not declared"
    yield warning(
        "W009",
        f"Queue {queue.name!r} dead-letters into {named}: the broker silently drops such messages.",
        hint="Declare it with a bound queue in RMQ_RETRY['TOPOLOGY'], or add Exchange(…, existing=True) there.",
    )


def _targets(queue: QueueDeclaration, topology: Topology) -> list[str]:
    """Return the queues that dead letters of this queue may reach; with an unknown key, all bound ones."""
    exchange = queue.arguments.get(DEAD_LETTERS)
    if exchange is None:
        return []
    key = queue.arguments.get("x-dead-letter-routing-key", queue.name)
    if not exchange:
        return [str(key)] if key in topology.queues else []
    return [bound.destination for bound in topology.bindings if bound.source == exchange]


def _exchanges(topology: Topology) -> Iterable[CheckMessage]:
    for exchange in topology.exchanges.values():
        if exchange.existing:
            continue
        if exchange.name.startswith("amq.") and PREDEFINED.get(exchange.name) != exchange.type:
            yield error(
                "E006",
                f"Exchange {exchange.name!r} of type {exchange.type!r} cannot be declared: names with 'amq.' are the "
                "broker's own.",
                hint="Choose another name, or one of " + ", ".join(f"{n} ({t})" for n, t in PREDEFINED.items()) + ".",
            )
        if not exchange.durable or exchange.auto_delete:
            yield warning(
                "W010",
                f"Exchange {exchange.name!r} is not durable: after a restart of the broker, or without a binding, "
                "it is deleted, and messages published to it are returned.",
                hint="Use durable=True and auto_delete=False, the defaults.",
            )


def _loops(topology: Topology) -> Iterable[CheckMessage]:
    for work_queue in registry.work_queues():
        parks = all(subscription.policy.via.parks for subscription in work_queue.subscriptions)
        leaving = None if parks else _leaves_by_itself(topology.queues[work_queue.queue.name])
        if leaving:
            yield error(
                "E005",
                f"Queue {work_queue.queue.name!r} has {leaving}, and a dead-letter loop: messages that RabbitMQ "
                "removes for that circulate without an attempt, and are dropped or stay where no consumer can reach "
                "them.",
                hint=f"Omit it, so that the layout sets it (x-delivery-limit={NO_LIMIT}, no TTL, "
                "x-overflow='reject-publish'), or use via=Ladder().",
            )


def _leaves_by_itself(queue: QueueDeclaration) -> str | None:
    """Return the reason why the broker may dead-letter a message before any attempt, or None."""
    arguments = queue.arguments
    if "x-message-ttl" in arguments:
        return f"x-message-ttl={arguments['x-message-ttl']!r}"
    overflow = arguments.get("x-overflow", "drop-head")
    if LENGTHS & arguments.keys() and overflow != "reject-publish":
        return f"a length with x-overflow={overflow!r}"
    return met_limit(arguments)


def _lines(topology: Topology) -> Iterable[CheckMessage]:
    """Check the queues that keep an order."""
    for work_queue in registry.work_queues():
        if work_queue.ordered or work_queue.keyed:
            by = "StopTheLine" if work_queue.ordered else "order_by"
            yield from _line(topology.queues[work_queue.queue.name], by)


def _line(queue: QueueDeclaration, by: str) -> Iterable[CheckMessage]:
    if queue.arguments.get("x-single-active-consumer") is not True:
        yield error(
            "E007",
            f"Queue {queue.name!r} must keep its order ({by}), but its arguments remove "
            "x-single-active-consumer: two consumers would process messages at the same time.",
            hint=f"Remove x-single-active-consumer from the arguments: {by} sets it.",
        )
    limit = met_limit(queue.arguments)
    if limit:
        yield error(
            "E008",
            f"Queue {queue.name!r} must keep its order ({by}), but has {limit}: after that number of returns, "
            "including those of clean stops, the broker removes a message and later ones pass it.",
            hint=f"Omit the delivery limit, so that the layout sets it ({NO_LIMIT}). If the queue should give up a "
            "message that stops its worker repeatedly, silence this check.",
        )
    unlimited = not {"x-queue-type", "x-delivery-limit"} & queue.arguments.keys()
    if unlimited and not queue.existing:
        yield warning(
            "W015",
            f"Queue {queue.name!r} must keep its order ({by}), but leaves its type to the broker: if that "
            "is quorum, no x-delivery-limit is set, and returned messages lose their place.",
            hint="Set type='quorum' or type='classic'.",
        )
