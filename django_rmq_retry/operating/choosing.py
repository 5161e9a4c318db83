"""Which messages of a run are next: in their order, not into a full queue, and one after another for each key."""

from collections.abc import Callable, Iterator
from datetime import timedelta

from django.db.models import QuerySet
from django.utils import timezone

from django_rmq_retry.models import Item, ItemState, RequeueRun
from django_rmq_retry.operating import words
from django_rmq_retry.operating.locking import database

MOST_BYTES = 16 * 1024 * 1024
"""Of the bodies of one slice."""
PAGE = 200
PAGES = 25
"""So far a slice looks behind messages that have to wait; the next one looks again."""
OUTCOME = timedelta(hours=1)
"""After which an outcome is not waited for any more."""

Room = Callable[[str], int]
"""How many messages a queue takes now."""


class Choice:
    """The next items, and what has to become of others on the way to them."""

    def __init__(self, run: RequeueRun, most: int, room: Room) -> None:
        self.items: list[Item] = []
        self.blocked: dict[int, str] = {}
        """Items that are left out, each with why."""
        self.waits_for_key = False
        self.waits_for_queue = False
        self._run = run
        self._most = most
        self._room = room
        self._taken: dict[str, int] = {}
        self._busy: set[str] = set()
        self._failed: set[str] = set()
        self._bytes = 0
        self._choose()

    def _choose(self) -> None:
        for page in _pages(self._run):
            if self._run.one_by_one:
                self._look_up([item.message.business_key for item in page])
            for item in page:
                if self._full(item):
                    return
                self._judge(item)
            if len(self.items) >= self._most or (self.waits_for_queue and self._run.target):
                return

    def _full(self, item: Item) -> bool:
        return len(self.items) >= self._most or (bool(self.items) and self._bytes + item.message.size > MOST_BYTES)

    def _judge(self, item: Item) -> None:
        key, queue = item.message.business_key, self._run.target or item.message.queue
        ordered = bool(key) and self._run.one_by_one
        if ordered and key in self._failed:
            self.blocked[item.pk] = words.KEY_FAILED
            return
        if ordered and key in self._busy:
            self.waits_for_key = True
            return
        if ordered:
            # Whatever becomes of it now: the ones behind it wait for it.
            self._busy.add(key)
        if self._room(queue) <= self._taken.get(queue, 0):
            self.waits_for_queue = True
            return
        self._taken[queue] = self._taken.get(queue, 0) + 1
        self._bytes += item.message.size
        self.items.append(item)

    def _look_up(self, keys: list[str]) -> None:
        """Which of these keys have a message under way, and which have one that did not hold."""
        mine = Item.objects.using(database()).filter(run=self._run, message__business_key__in=set(keys) - {""})
        under_way = mine.filter(state__in=(ItemState.CLAIMED, ItemState.SENT))
        ended = mine.filter(state__in=(ItemState.FAILED, ItemState.UNCONFIRMED))
        overdue = timezone.now() - OUTCOME
        for key, sent_at in under_way.values_list("message__business_key", "sent_at"):
            (self._failed if sent_at and sent_at < overdue else self._busy).add(key)
        self._failed.update(ended.values_list("message__business_key", flat=True))


def pending(run: int) -> QuerySet[Item]:
    """What of a run is not sent yet, in its order."""
    return Item.objects.using(database()).filter(run=run, state=ItemState.PENDING).order_by("place")


def _pages(run: RequeueRun) -> Iterator[list[Item]]:
    columns = ("run_id", "place", "revision", "message_id", "state")
    of_message = ("message__id", "message__business_key", "message__queue", "message__size")
    after = -1
    for _ in range(PAGES):
        rows = pending(run.pk).filter(place__gt=after).select_related("message").only(*columns, *of_message)
        page = list(rows[:PAGE])
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1].place
