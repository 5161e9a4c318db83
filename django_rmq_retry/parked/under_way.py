"""The active requeue runs that have still to send some of the messages of a page or of a command."""

from typing import NamedTuple

from django.db.models import QuerySet
from django.utils.translation import ngettext

from django_rmq_retry.models import ParkedMessage, RequeueItem, RequeueRun, RunState
from django_rmq_retry.models.runs import ACTIVE, STILL_TO_SEND
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.items import MOST_UNSENT_COUNTED
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import number


class UnderWay(NamedTuple):
    """An active run that has not sent some of the messages, and their number."""

    run: RequeueRun
    unsent: int

    def __str__(self) -> str:
        return f"{self.sentence} {self.why}".rstrip()

    @property
    def paused(self) -> bool:
        return self.run.state == RunState.PAUSED

    @property
    def sentence(self) -> str:
        """Return whose run it is, and how many of the messages on the same page it has not sent."""
        text = ngettext(
            "Requeue run %(number)s by %(who)s is to send %(counter)s of these.",
            "Requeue run %(number)s by %(who)s is to send %(counter)s of these.",
            self.unsent,
        )
        if self.paused:
            text = ngettext(
                "Requeue run %(number)s by %(who)s is paused with %(counter)s of these.",
                "Requeue run %(number)s by %(who)s is paused with %(counter)s of these.",
                self.unsent,
            )
        return text % {"number": self.run.pk, "who": self.run.by, "counter": number(self.unsent)}

    @property
    def why(self) -> str:
        """Why it is paused."""
        return self.run.explanation if self.paused else ""


def under_way(rows: QuerySet[ParkedMessage], *, counted: int = 0) -> list[UnderWay]:
    """Return the active runs that have not sent some of these messages, each with their number.

    The only one that sends now has the number that a finding has ``counted``: it goes on between two queries.
    """
    active = RequeueRun.objects.using(records_alias()).filter(state__in=ACTIVE).order_by("pk")
    runs = [one for one in (UnderWay(run, _still_to_send(run, rows.order_by())) for run in active) if one.unsent]
    sending = [one.run for one in runs if not one.paused]
    if len(sending) != 1 or not counted:
        return runs
    return [UnderWay(run, counted if run in sending else unsent) for run, unsent in runs]


def _still_to_send(run: RequeueRun, rows: QuerySet[ParkedMessage]) -> int:
    """Return how many of these messages an active run has not sent; a few are read by their numbers, without a join."""
    if run.listing:
        # It has no items for its rest yet.
        return rows.filter(pk__in=Selection.of_facts(run.selection).queryset().order_by().values("pk")).count()
    items = RequeueItem.objects.using(records_alias()).filter(run=run, state__in=STILL_TO_SEND)
    numbers = list(items.values_list("message_id", flat=True)[: MOST_UNSENT_COUNTED + 1])
    if len(numbers) > MOST_UNSENT_COUNTED:
        return rows.filter(pk__in=items.values("message")).count()
    return sum(some.count() for some in with_one_of(rows, "pk", numbers))


def paused_too(runs: list[UnderWay]) -> str:
    """Return how many messages paused runs have, too, which a new one is to send; empty if none."""
    count = sum(one.unsent for one in runs if one.paused)
    text = ngettext(
        "%(counter)s of them is in a paused requeue run, too: the run that comes first sends it, the other leaves it "
        "out",
        "%(counter)s of them are in a paused requeue run, too: the run that comes first sends them, the other leaves "
        "them out",
        count,
    )
    return text % {"counter": number(count)} if count else ""
