"""What a commit does: send its rows at once, wait a moment for the confirms, and delete what was confirmed."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.models import Min

from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.conf import settings
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.outbox import late, settling
from django_rmq_retry.outbox.judging import Fault, fault
from django_rmq_retry.outbox.posting import Answer, Posting
from django_rmq_retry.outbox.reach import reach
from django_rmq_retry.outbox.rows import Row, stored_name

log = logging.getLogger("django_rmq_retry")

SPARE = 10.0
"""Seconds beyond the longest publish for which rows are their writer's."""


def lease() -> float:
    """Seconds for which nobody but its writer sends a row."""
    return settings().publish_timeout + SPARE


class Leaving:
    """The rows of one transaction, or of a savepoint of it; each lives and dies with what it was written in."""

    def __init__(self, using: str, *, begun: float) -> None:
        self.rows: list[Row] = []
        self.waits_in: Sequence[Sequence[Any]] = ()
        """Django's list of what is called after the commit, as it was when this was added to it."""
        self.done = False
        self._using = using
        self._begun = begun
        self._waits_for: set[int] = set()

    def __call__(self) -> None:
        """After the commit. What was committed stays so whatever happens here: nothing is raised."""
        self.done = True
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - the rows are there, and a relay sends them
            said = "Committed; %s messages stay in the outbox of %r and are sent by a relay: %s"
            log.warning(said, len(self.rows), self._using, error, extra={"event": "outbox waits"})

    def _leave(self) -> None:
        self.rows = self._written()
        if not self.rows:
            return
        mine = self._in_turn() if reach.worth_trying() and self._still_ours() else []
        answers = self._sent(mine) if mine else []
        confirmed = [answer.row for answer in answers if answer.outcome is Outcome.CONFIRMED]
        if confirmed:
            settling.delete([row.id for row in confirmed], using=self._using)
        missing = [answer for answer in answers if answer.outcome is not Outcome.CONFIRMED]
        if missing:
            late.written(missing, using=self._using)
        free = self._unsent(answers)
        if free:
            settling.release(free, using=self._using)
        elif any(row.order_key for row in confirmed):
            self._call_followers([row.order_key for row in confirmed])

    def _still_ours(self) -> bool:
        """After a long transaction its rows may be in a relay's hands."""
        if time.monotonic() - self._begun < SPARE / 2:
            return True
        self._begun = time.monotonic()
        renewed = settling.renew(self.rows, using=self._using, seconds=lease())
        self.rows = renewed or self.rows
        return bool(renewed)

    def _sent(self, rows: Sequence[Row]) -> list[Answer]:
        until = self._begun + lease() - settings().publish_timeout
        told = lambda answer: late.clerk.take(self._using, answer)  # noqa: E731 - as of a fork
        posting = Posting(rows, timeout=settings().publish_timeout, until=until, late=told)
        posting.begin()
        answers = posting.wait(reach.patience)
        self._waits_for = posting.under_way()
        lost = next((answer for answer in answers if fault(answer, alone=False) is Fault.BROKER), None)
        if any(answer.outcome is Outcome.CONFIRMED for answer in answers):
            reach.found()
        elif self._waits_for or lost:
            reach.lost(lost.said if lost else "no confirm in time")
        return answers

    def _unsent(self, answers: Sequence[Answer]) -> list[Row]:
        answered = {answer.row.id for answer in answers} | self._waits_for
        return [row for row in self.rows if row.id not in answered]

    def _written(self) -> list[Row]:
        """The rows that are there: what a savepoint made by hand takes back, it takes back without telling us."""
        # Whenever one is rolled back Django makes a new list; of the one that it works off we have been taken.
        same = connections[self._using].run_on_commit is self.waits_in
        if same or all(entry[1] is not self for entry in self.waits_in):
            return self.rows
        ids = [row.id for row in self.rows]
        found = OutboxMessage.objects.using(self._using).filter(pk__in=ids).values_list("id", "message_id")
        # SQLite gives a number that was taken back to another row.
        there = set(found)
        return [row for row in self.rows if (row.id, stored_name(row.message)) in there]

    def _in_turn(self) -> list[Row]:
        """All but those that have an earlier one of their key before them: these are the relay's."""
        firsts: dict[str, int] = {}
        for row in self.rows:
            firsts.setdefault(row.order_key, row.id)
        firsts.pop("", None)
        if not firsts:
            return self.rows
        found = OutboxMessage.objects.using(self._using).filter(order_key__in=firsts)
        earliest = dict(found.values_list("order_key").annotate(first=Min("id")))
        return [row for row in self.rows if not row.order_key or earliest.get(row.order_key) == firsts[row.order_key]]

    def _call_followers(self, keys: Sequence[str]) -> None:
        """What others have left behind ours may go now."""
        if settling.heard(self._using):
            left = OutboxMessage.objects.using(self._using).filter(order_key__in=set(keys))
            if left.exists():
                settling.notify(self._using)
