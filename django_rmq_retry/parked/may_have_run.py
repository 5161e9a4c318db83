"""Parked messages whose handler may have done its work: a consumer had them, and did not acknowledge them."""

from typing import Any

from django.db.models import Case, Count, Exists, OuterRef, Q, QuerySet, Subquery, Sum, TextChoices, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.verdicts import returns_told
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.models import ParkedMessage, ParkedOrigin, RequeueItem
from django_rmq_retry.models.parked import OPEN, State


class Doubt(TextChoices):
    """What is in doubt of the work of a message: for programs, and in the reader's language."""

    HANDLED_TWICE = "handled_twice", pgettext_lazy("message", "handled twice")
    PERHAPS_TWICE = "perhaps_twice", gettext_lazy("perhaps handled twice")
    MAY_BE_DONE = "may_have_been_handled", gettext_lazy("may have been handled")


def may_have_run(target: str = "") -> Q:
    """Match the messages that came back from consumers, perhaps after their handler did its work.

    A handler with ``once`` does it once: its transaction was rolled back, or recognizes the message. This holds if all
    handlers of the queue have it, because the record does not say which of them took the message, and if the message
    goes to its own queue again, because another handler knows nothing of what the first one did.
    """
    queues = queues_with_once()
    safe = queues & {target} if target else queues
    came_back = Q(reason__in=MAY_HAVE_RUN) | Q(unacked=True)
    return came_back & ~Q(queue__in=sorted(safe)) if safe else came_back


def what_may_remain(message: ParkedMessage) -> str:
    """Return a sentence on what a message may have done whose worker stopped; empty for any other message."""
    once = message.queue in queues_with_once()
    if message.reason not in MAY_HAVE_RUN:
        if once or not message.unacked:
            return ""
        return _(
            "Before one of its attempts a consumer had it and did not acknowledge it, as one that dies: what that "
            "consumer had begun may be done."
        )
    if once:
        return _(
            "Its handler has once=True: after a requeue its database changes are there once; what it did elsewhere "
            "may be done twice."
        )
    return _("Its handler may have begun before its worker stopped, and what it did may remain.")


def with_perhaps_handled(groups: "QuerySet[Any]") -> "QuerySet[Any]":
    """Add how many parked messages of each group may have been handled: from an index, and from the counters."""
    safe = queues_with_once()
    rows = ParkedMessage.objects.filter(unacked=True, state=State.PARKED, group=OuterRef("pk")).exclude(queue__in=safe)
    origins = ParkedOrigin.objects.filter(group=OuterRef("pk"), count__gt=0).exclude(queue__in=safe)
    some = rows.order_by().values("group").annotate(n=Count("*")).values("n")
    every = origins.order_by().values("group").annotate(n=Sum("count")).values("n")
    died = When(reason__in=MAY_HAVE_RUN, then=Coalesce(Subquery(every), 0))
    found: QuerySet[Any] = groups.annotate(perhaps=Case(died, default=Coalesce(Subquery(some), 0)))
    return found


def with_doubts(rows: "QuerySet[ParkedMessage]") -> "QuerySet[Any]":
    """Let the rows of a list know whether a copy of theirs was handled twice, or perhaps was."""
    items = RequeueItem.objects.filter(message=OuterRef("pk"))
    return rows.annotate(
        handled_twice=Exists(items.filter(handled__gt=1)),
        perhaps_twice=Exists(items.filter(handled=1, redelivered=True)),
    )


FACTS_OF_DOUBT = ("state", "queue", "reason", "unacked")
"""What ``doubt_of`` reads of a message, besides the doubts."""


def doubt_of(message: Any) -> Doubt | None:
    """Return what a row of a list has to say of the work of a message: that it was done twice, or perhaps was done.

    The row is a message, or its facts by name.
    """
    if getattr(message, "handled_twice", False):
        return Doubt.HANDLED_TWICE
    if getattr(message, "perhaps_twice", False):
        return Doubt.PERHAPS_TWICE
    came_back = message.state in OPEN and (message.unacked or message.reason in MAY_HAVE_RUN)
    return Doubt.MAY_BE_DONE if came_back and message.queue not in queues_with_once() else None


def doubt_about(message: ParkedMessage) -> str:
    """Return the same in words; empty if nothing is in doubt."""
    doubt = doubt_of(message)
    return str(doubt.label) if doubt else ""


def attempts_counted(message: ParkedMessage, failed: int) -> str:
    """Return how often it failed; what consumers had besides, and did not say how it ended, are attempts more."""
    unended = message.open and (message.unacked or message.reason in MAY_HAVE_RUN)
    return f"{failed + (returns_told(message.detail) or 1)}+" if unended else str(failed)


def handlers_with_once() -> list[str]:
    return [taker.name for one in registry.work_queues() for taker in one.subscriptions if taker.once]


def queues_with_once() -> set[str]:
    """Return the queues of which all handlers have ``once``."""
    return {one.queue.name for one in registry.work_queues() if all(taker.once for taker in one.subscriptions)}
