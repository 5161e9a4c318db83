"""Which items of a requeue run are sent next, in their order, and which are skipped on the way to them."""

from collections.abc import Callable, Iterator

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.models import ItemReason, ItemState, RequeueItem, RequeueRun
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.items import pending
from django_rmq_retry.parked.overdue import OUTCOME_LIMIT

MOST_SLICE_BYTES = 16 * 1024 * 1024
"""Largest total size of the bodies of one slice, in bytes."""
PAGE_ITEMS = 200
MOST_PAGES = 25
"""Pages that a slice searches past messages that have to wait; the next slice searches them again."""

Capacity = Callable[[str], int]
"""Returns the number of messages that a queue may receive now."""


class ItemChoice:
    """The next items to send, and those to skip on the way to them."""

    def __init__(self, run: RequeueRun, most: int, room: Capacity) -> None:
        self.items: list[RequeueItem] = []
        self.blocked: dict[int, ItemReason] = {}
        """Items to skip, each with the reason."""
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

    @property
    def takes_more(self) -> bool:
        """True if it would have taken more."""
        return len(self.items) < self._most

    def _choose(self) -> None:
        queue = queue_of_test(self._run) if self._run.awaits_canary else ""
        for page in _pages(self._run, queue):
            if self._run.one_by_one:
                self._look_up([item.message.business_key for item in page])
            for item in page:
                if len(self.items) >= self._most or (self.items and self._bytes + item.message.size > MOST_SLICE_BYTES):
                    return
                self._judge(item)
            if len(self.items) >= self._most or (self.waits_for_queue and self._run.target):
                return

    def _judge(self, item: RequeueItem) -> None:
        key, queue = item.message.business_key, self._run.target or item.message.queue
        ordered = bool(key) and self._run.one_by_one
        if ordered and key in self._failed:
            self.blocked[item.pk] = ItemReason.KEY_FAILED
            return
        if ordered and key in self._busy:
            self.waits_for_key = True
            return
        if ordered:
            # Later items with this business key wait for this one, even if it cannot be sent now.
            self._busy.add(key)
        if self._room(queue) <= self._taken.get(queue, 0):
            self.waits_for_queue = True
            return
        self._taken[queue] = self._taken.get(queue, 0) + 1
        self._bytes += item.message.size
        self.items.append(item)

    def _look_up(self, keys: list[str]) -> None:
        """Note the keys that have a message in flight, and those that have a failed, unconfirmed or overdue one."""
        mine = RequeueItem.objects.using(records_alias()).filter(
            run=self._run, message__business_key__in=set(keys) - {""}
        )
        in_flight = mine.filter(state__in=(ItemState.CLAIMED, ItemState.SENT))
        ended = mine.filter(state__in=(ItemState.FAILED, ItemState.UNCONFIRMED))
        overdue = database_clock.now(records_alias()) - OUTCOME_LIMIT
        for key, sent_at in in_flight.values_list("message__business_key", "sent_at"):
            (self._failed if sent_at and sent_at < overdue else self._busy).add(key)
        self._failed.update(ended.values_list("message__business_key", flat=True))


def queue_of_test(run: RequeueRun) -> str:
    """Return the queue of which the next message tests whether the cause is gone: that in which most failed.

    One of a queue that works would show nothing. Empty if none has failed, or nothing is left of it that may be next.
    """
    if not run.failed or run.retries_of:
        return ""
    failed = RequeueItem.objects.using(records_alias()).filter(run=run.pk, state=ItemState.FAILED).order_by()
    by_queue = failed.values_list("message__queue").annotate(count=Count("pk")).order_by("-count", "message__queue")
    queue: str = next((one for one, _count in by_queue[:1]), "")
    return queue if queue and _of_queue(run, queue).exists() else ""


def _of_queue(run: RequeueRun, queue: str) -> QuerySet[RequeueItem]:
    """Return what is left to send of a queue, without what waits for an earlier message of its key from another one."""
    mine = pending(run.pk).filter(message__queue=queue)
    if not run.one_by_one:
        return mine
    key = OuterRef("message__business_key")
    before = (
        pending(run.pk).filter(message__business_key=key, place__lt=OuterRef("place")).exclude(message__queue=queue)
    )
    return mine.filter(~Exists(before) | Q(message__business_key=""))


def _pages(run: RequeueRun, queue: str) -> Iterator[list[RequeueItem]]:
    columns = ("run_id", "place", "revision", "message_id", "state")
    of_message = ("message__id", "message__business_key", "message__queue", "message__size", "message__content")
    after = -1
    for _ in range(MOST_PAGES):
        left = _of_queue(run, queue) if queue else pending(run.pk)
        rows = left.filter(place__gt=after).select_related("message").only(*columns, *of_message)
        page = list(rows[:PAGE_ITEMS])
        if page:
            yield page
        if len(page) < PAGE_ITEMS:
            return
        after = page[-1].place
