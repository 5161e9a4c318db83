"""Messages that a requeue would give to no handler, or to one that they were not made for."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry.handlers import registry
from django_rmq_retry.models import ParkedMessage

MOST_NAMED = 3
"""The most queues, types or handlers that the sentence on such messages names."""


def strangers(target: str) -> Q:
    """Match the messages of other queues whose handler is none of those that take messages in the target queue.

    A message that reached no handler was made for those of its queue; if there are none, nothing is known of it.
    """
    names = _names()
    there = names.get(target, ())
    foreign = [queue for queue, handlers in names.items() if not {*handlers} & {*there}]
    made_for = ~Q(handler="") & ~Q(handler__in=there) | Q(handler="", queue__in=foreign)
    return ~Q(queue=target) & made_for


def untaken(target: str) -> Q:
    """Match the messages whose type no handler takes in the queue they go to: there they would be parked again.

    It is empty if no queue tells its handlers' messages by their types alone.
    """
    found = Q()
    for queue, types in _types().items():
        if target in ("", queue):
            found |= ~Q(type__in=types) & (Q() if target else Q(queue=queue))
    return found


def who_takes(target: str, rows: QuerySet[ParkedMessage]) -> str:
    """Return which handlers take messages in the target queue, and which ones these were made for."""
    present = handlers_of_queues()
    made_for: dict[str, None] = {}
    for handler, queue in _commonest(rows, "handler", "queue"):
        made_for |= dict.fromkeys([handler] if handler else present.get(queue, ()))
    told = {"taker": " / ".join(present.get(target, ())), "made": _some(made_for), "queue": target}
    if not told["taker"]:
        return _("No handler of this project reads %(queue)s. Made for: %(made)s.") % told
    return _("In %(queue)s %(taker)s takes what was made for %(made)s.") % told


def _names() -> Mapping[str, tuple[str, ...]]:
    """Return the names, also former ones, of the handlers of each queue."""
    queues = registry.work_queues()
    return {one.queue.name: tuple(name for taker in one.subscriptions for name in taker.names) for one in queues}


def handlers_of_queues() -> Mapping[str, Sequence[str]]:
    """Return the names of the handlers of each queue."""
    return {one.queue.name: [taker.name for taker in one.subscriptions] for one in registry.work_queues()}


def why_unread(rows: QuerySet[ParkedMessage]) -> str:
    """Return in which unread queues these messages would lie, and which handlers they were made for."""
    found = _commonest(rows, "queue", "handler")
    made_for = _some(dict.fromkeys(handler for _queue, handler in found if handler))
    told = {"queues": _some(dict.fromkeys(queue for queue, _handler in found)), "made": made_for}
    if not made_for:
        return _("In %(queues)s they would lie until a program reads it.") % told
    return _("In %(queues)s they would lie until a program reads it. Made for: %(made)s.") % told


def why_untaken(target: str, rows: QuerySet[ParkedMessage]) -> str:
    """Return which types no handler takes in the queue of most of these messages, and which ones its handlers do."""
    found = _commonest(rows, "queue", "type")
    queue = target or next((queue for queue, _kind in found), "")
    kinds = [kind or _("messages without a type") for own, kind in found if target or own == queue]
    takers = [taker for one in registry.work_queues() if one.queue.name == queue for taker in one.subscriptions]
    told = {
        "queue": queue,
        "types": _some(dict.fromkeys(kinds)),
        "takers": ", ".join(f"{taker.match.type} ({taker.name})" for taker in takers),
    }
    return _("No handler of %(queue)s takes %(types)s. Its handlers take: %(takers)s.") % told


def _types() -> Mapping[str, Collection[str]]:
    """Return the types that the handlers of each queue take, if none of them takes messages of any type."""
    found = {one.queue.name: [taker.match.type for taker in one.subscriptions] for one in registry.work_queues()}
    return {queue: [kind for kind in types if kind] for queue, types in found.items() if None not in types}


def _commonest(rows: QuerySet[ParkedMessage], *by: str) -> Sequence[tuple[str, str]]:
    """Return the commonest pairs of two columns, one more than are named."""
    counts = rows.order_by().values_list(*by).annotate(n=Count("*")).order_by("-n", *by)
    return [(first, second) for first, second, _count in counts[: MOST_NAMED + 1]]


def _some(names: Iterable[str]) -> str:
    some = list(names)
    return ", ".join(some[:MOST_NAMED]) + "…" * (len(some) > MOST_NAMED)
