"""The relay: sends what commits have left in the outbox of one database, a batch at a time."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from django.db import Error, OperationalError

from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.conf import settings
from django_rmq_retry.outbox import claiming, judging, reach, settling
from django_rmq_retry.outbox.claiming import Wanted
from django_rmq_retry.outbox.denying import Denied
from django_rmq_retry.outbox.judging import Fault
from django_rmq_retry.outbox.leaving import lease
from django_rmq_retry.outbox.posting import Answer, Posting
from django_rmq_retry.outbox.rows import Row

LOSSES = 3
GRACE = 2.0
"""Seconds beyond its deadline within which a publish has ended; and for those under way when the relay is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one batch came to."""

    sent: int = 0
    failed: int = 0
    away: str = ""
    """Why the broker took nothing; then it makes no sense to go on at once."""

    @property
    def nothing(self) -> bool:
        return not (self.sent or self.failed or self.away)


class Relay:
    """One for a database. Several relays, in whatever processes, may serve the same one."""

    def __init__(self, using: str, *, ended: threading.Event) -> None:
        self._using = using
        self._ended = ended
        self._ended_at = 0.0
        self._away = False
        self._under_way: set[int] = set()
        self._confirmed: set[int] = set()
        """Rows that could not be deleted yet."""
        self._losses: Counter[int] = Counter()
        """How often a row that was sent alone had no answer."""
        self._suspects: list[int] = []
        """Rows one of which has made the broker close the channel: they are sent one by one."""
        self._denied = Denied()

    def turn(self) -> Turn:
        """Send one batch."""
        self.forget()
        wanted = self._wanted()
        try:
            with claiming.claimed(self._using, wanted, lease=lease()) as rows:
                if not rows:
                    return Turn(failed=len(wanted.only))
                answers = self._sent(rows)
                turn = self._settled(rows, answers, alone=len(rows) == 1)
        except OperationalError:
            # Rolled back, as by a deadlock: what was sent must be gone before another relay finds it.
            with suppress(Error):
                self.forget()
            raise
        self._confirmed -= {answer.row.id for answer in answers}
        return turn

    def _wanted(self) -> Wanted:
        asking = self._denied.next()
        if asking is not None:
            return Wanted(most=1, only=[asking], without=self._denied.exchanges)
        only, self._suspects = self._suspects[:1], self._suspects[1:]
        most = 1 if only or self._away else claiming.MOST
        return Wanted(most=most, only=only, without=self._denied.exchanges)

    def forget(self) -> None:
        """Delete what is known to be confirmed from before: a database that was away must not have it sent again."""
        if self._confirmed:
            known = list(self._confirmed)
            settling.delete(known, using=self._using)
            self._confirmed.difference_update(known)

    def _sent(self, rows: Sequence[Row]) -> list[Answer]:
        timeout = settings().publish_timeout
        until = time.monotonic() + lease() - timeout
        posting = Posting(rows, timeout=timeout, until=until, late=self._late)
        posting.begin()
        answers = posting.wait(lease() - GRACE, self._has_no_time)
        self._under_way = posting.under_way()
        self._confirmed |= {answer.row.id for answer in answers if answer.outcome is Outcome.CONFIRMED}
        return answers

    def _late(self, answer: Answer) -> None:
        if answer.outcome is Outcome.CONFIRMED:
            self._confirmed.add(answer.row.id)

    def _has_no_time(self) -> bool:
        """Once it is to end, it waits for confirms only a moment, and not at all for a broker that is away."""
        if not self._ended.is_set():
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return self._away or time.monotonic() - self._ended_at > GRACE

    def _settled(self, rows: Sequence[Row], answers: Sequence[Answer], *, alone: bool) -> Turn:
        sent = [answer.row.id for answer in answers if answer.outcome is Outcome.CONFIRMED]
        if sent:
            settling.delete(sent, using=self._using)
        away, failed, settled = "", 0, set(sent)
        for answer in answers:
            if answer.outcome is Outcome.CONFIRMED:
                continue
            whose, why = self._fault(answer, alone=alone), answer.said or answer.outcome.value
            if whose is Fault.BROKER:
                away = away or why
            elif whose is Fault.SHARED:
                self._suspects.append(answer.row.id)
            else:
                seconds = judging.failed(answer.row, using=self._using, why=why, whose=whose)
                settled.add(answer.row.id)
                if whose is Fault.RIGHT:
                    self._denied.note(answer.row.message.exchange, answer.row.id, seconds=seconds)
            failed += whose is not Fault.BROKER
        if not claiming.skips_locked(self._using):
            self._give_back(rows, settled)
        self._note(sent=bool(sent), away=away)
        return Turn(sent=len(sent), failed=failed, away="" if sent or failed else away or "nothing was answered")

    def _fault(self, answer: Answer, *, alone: bool) -> Fault:
        """As judged; but one with which alone the connection is lost again and again must not hold up all others."""
        whose = judging.fault(answer, alone=alone)
        if alone and whose is Fault.BROKER and answer.outcome is Outcome.UNKNOWN:
            self._losses[answer.row.id] += 1
            if self._losses[answer.row.id] >= LOSSES:
                del self._losses[answer.row.id]
                return Fault.FULL
        return whose

    def _give_back(self, rows: Sequence[Row], settled: set[int]) -> None:
        """End the lease of what was not sent, or not for its own fault."""
        free = [row for row in rows if row.id not in settled | self._under_way]
        if free:
            settling.release(free, using=self._using)

    def _note(self, *, sent: bool, away: str) -> None:
        if sent:
            self._away = False
            self._losses.clear()
            reach.reach.found()
        elif away:
            self._away = True
            reach.reach.lost(away)
