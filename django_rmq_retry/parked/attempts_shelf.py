"""Messages that were tried or delivered again, as a search looks for them: by name, then by their attempts."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.history import first_keys, handlings
from django_rmq_retry.attempts.since_then import ENDED
from django_rmq_retry.messages.identity import NAMELESS
from django_rmq_retry.models import Attempt, AttemptName, EarlyRetry, ItemState, ParkedMessage, QueueControl
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.key_match import Keys, Wanted
from django_rmq_retry.parked.may_have_run import handlers_with_once
from django_rmq_retry.parked.outcome_texts import handled_after_another, times_of
from django_rmq_retry.parked.shelves import named
from django_rmq_retry.policies.verdict import ACK, DUPLICATE, Kind
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import minute, span


class AttemptsShelf:
    """One look at the messages that were tried before they were parked, or delivered more than once.

    What became of each, its last attempt tells.
    """

    read, stopped, cut = 0, False, False

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._using = wanted, records_alias()
        self._handled = dict[str, list[Attempt]]()
        """The attempts of a message that did its work."""
        self._once = handlers_with_once()
        self._stops = dict[str, QueueControl]()
        """The queues that a breaker or a pause stops."""
        self._early = dict[str, EarlyRetry]()
        """The retries that a run sent before they were due, each by the last run that did."""

    @classmethod
    def look(cls, wanted: Wanted) -> "AttemptsShelf":
        return cls(wanted)

    @classmethod
    def told(cls, identities: Collection[str]) -> dict[str, str]:
        """Return what became of messages without a record, or is to come of their retries, by their identities."""
        shelf = cls(Keys(()))
        return {identity: shelf._words(row) for identity, row in shelf._last(set(identities)).items()}

    def found(self) -> Iterator[tuple[str, Found]]:
        rows = AttemptName.objects.using(self._using).values_list("identity", "value")
        known, self.cut = self._wanted.folded(rows)
        names = dict.fromkeys(known)
        last = self._last({identity for identity, _name in names})
        first = first_keys({identity: row.message_id for identity, row in last.items()})
        for identity, name in names:
            if one := self._said(last[identity], first.get(identity, ""), name) if identity in last else None:
                yield from ((key, one) for key in self._wanted.of_name(name))

    def _last(self, identities: set[str]) -> Mapping[str, Attempt]:
        """Return the last attempt of each message; of one with a record only if a retry of it, or of a copy, waits."""
        records, using = with_one_of(ParkedMessage.objects.using(self._using), "identity", identities), self._using
        parked = {one: at for some in records for one, at in some.values_list("identity", "parked_at")}
        now, waiting = database_clock.now(using), Attempt.objects.using(using).filter(verdict=Kind.RETRY.value)
        due = (some.filter(next_at__gt=now) for some in with_one_of(waiting, "identity", parked))
        waits = {one for some in due for one in some.values_list("identity", flat=True)}
        rows = Attempt.objects.using(self._using).only(
            *("identity", "queue", "message_id", "cycle", "number", "verdict", "error", "next_at"),
            *("started_at", "seconds", "host", "pid", "redelivered", "handler"),
        )
        attempts = [row for some in with_one_of(rows, "identity", identities - parked.keys() | waits) for row in some]
        for row in handlings(attempts):
            self._handled.setdefault(row.identity, []).append(row)
        retried = {row.identity for row in attempts if row.verdict == Kind.RETRY.value}
        if retried:
            sent = EarlyRetry.objects.using(using).exclude(state=ItemState.SKIPPED).order_by("pk")
            self._early = {row.identity: row for some in with_one_of(sent, "identity", retried) for row in some}
            stopped = QueueControl.objects.using(using).stopped(now)
            queues = {row.queue for row in attempts}
            self._stops = {one.queue: one for some in with_one_of(stopped, "queue", queues) for one in some}
        last = {row.identity: row for row in sorted(attempts, key=lambda row: (row.started_at, row.pk))}
        return {one: row for one, row in last.items() if one not in parked or _comes_after(row, parked[one], now)}

    def _said(self, row: Attempt, first: str, name: str) -> Found | None:
        words, done = self._words(row), row.verdict in ENDED
        again = done and row.verdict == ACK.name and row.handler not in self._once
        found = Found(
            name=named((first, row.message_id), name, row.queue),
            words=words,
            room=Room.RETRIES,
            place=row.queue,
            done=done,
            doubtful=again and row.redelivered,
            twice=again and len(self._handled.get(row.identity, ())) > 1,
        )
        return found if words else None

    def _words(self, row: Attempt) -> str:
        if row.verdict == Kind.RETRY.value and row.next_at is not None:
            return self._waits(row, row.next_at)
        # Of messages without an id, those with one body have the same attempts: another one may still wait.
        return "" if row.verdict not in ENDED or row.identity.startswith(NAMELESS) else self._ended(row)

    def _ended(self, row: Attempt) -> str:
        handled = self._handled.get(row.identity, ())
        if len(handled) > 1:
            return _("Handled more than once: %(times)s") % {"times": ", ".join(times_of(handled))}
        facts = {"number": row.number, "time": minute(row.ended_at)}
        if row.verdict == Kind.DISCARD.value:
            return _("Discarded by its handler at %(time)s, at attempt %(number)d") % facts
        if row.verdict == DUPLICATE.name:
            return _("Delivered again at %(time)s, and not handled again (once=True)") % facts
        if row.redelivered:
            return handled_after_another(row, minute(row.ended_at))
        return _("Handled at %(time)s by attempt %(number)d") % facts

    def _waits(self, row: Attempt, due: datetime) -> str:
        """Say when the next attempt is due, or for how long it has been, and what keeps it back."""
        now, facts = database_clock.now(self._using), {"number": row.number, "error": row.error}
        sent = self._early.get(row.identity)
        if sent is not None and sent.sent_at > row.started_at:
            text = _(
                "Attempt %(number)d failed (%(error)s), and requeue run %(run)d sent it at %(time)s, before it was "
                "due: what became of it is not known"
            )
            return text % {**facts, "run": sent.run_id, "time": minute(sent.sent_at)}
        if due > now:
            text = _("Attempt %(number)d failed (%(error)s), and the next one is due at %(time)s")
            return text % {**facts, "time": minute(due)}
        stop = self._stops.get(row.queue)
        if stop is not None and stop.opened and stop.probe_at is not None:
            text = _(
                "Attempt %(number)d failed (%(error)s), and the next one waits: the breaker of its queue is open, and "
                "tries one at %(time)s"
            )
            return text % {**facts, "time": minute(stop.probe_at)}
        if stop is not None:
            return _("Attempt %(number)d failed (%(error)s), and the next one waits: its queue is paused") % facts
        text = _("Attempt %(number)d failed (%(error)s), and the next one has been due for %(span)s")
        return text % {**facts, "span": span(now - due)}


def _comes_after(row: Attempt, parked_at: datetime, now: datetime) -> bool:
    """Return True if the retry of a message with a record waits, and had not come when the message was parked."""
    return row.verdict == Kind.RETRY.value and row.next_at is not None and row.next_at > max(now, parked_at)
