"""Which waiting retries are meant: by key, handler, error or group, and without those that are left out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from django.db.models import QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.withdrawal import Withdrawn
from django_rmq_retry.attempts.history import waiting
from django_rmq_retry.handlers.business_keys import readable_keys
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.messages.message import message_id
from django_rmq_retry.messages.stamp import at_origin
from django_rmq_retry.models import Attempt, BlockedKey, ErrorGroup
from django_rmq_retry.ordering.keys import MessageNames, keys_alias
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.key_lists import keys_of
from django_rmq_retry.parked.keys_shelf import behind_keys
from django_rmq_retry.parked.released import Waiting
from django_rmq_retry.parked.selection import EXCEPT
from django_rmq_retry.statements import in_slices

READ_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFilter:
    """The conditions on waiting retries of one work queue; without any, all of them."""

    key: tuple[str, ...] = ()
    """Business keys or message ids."""
    handler: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    """The error groups that their last attempts belong to."""
    without: tuple[str, ...] = ()
    """Business keys or message ids of those that are left out."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "RetryFilter":
        """Return the filter that a run has stored."""
        given = {one.name: tuple(facts.get(one.name) or ()) for one in fields(cls)}
        return cls(**{**given, "without": tuple(keys_of(facts[EXCEPT]["list"]))} if EXCEPT in facts else given)

    def facts(self) -> dict[str, list[Any]]:
        """Return the conditions that are stored with a run; those to leave out are a list of keys of its own."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "without"}
        return {name: list(values) for name, values in given.items() if values}

    @property
    def looks(self) -> bool:
        """True if only the messages tell which of them are meant."""
        return bool(self.key or self.without)

    def __bool__(self) -> bool:
        return bool(self.facts() or self.without)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRetry:
    """A waiting retry as an operator knows it."""

    withdrawn: Withdrawn
    identity: str
    message_id: str
    handler: str
    keys: tuple[str, ...]
    nameless: bool
    """True if its handler names business keys, and none could be read."""

    @property
    def shown(self) -> str:
        return next(iter(self.keys), self.message_id)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.keys, self.message_id)


def recognized(work_queue: WorkQueue, seen: Iterable[Withdrawn]) -> Iterator[WaitingRetry]:
    for one in seen:
        delivery = at_origin(one.delivery, came_by=one.delivery)
        subscription = work_queue.presumed(delivery)
        known, keys = message_id(delivery) or "", tuple(readable_keys(subscription, delivery))
        yield WaitingRetry(
            withdrawn=one,
            identity=attempt_identity(delivery.queue, known, delivery.body),
            message_id=known,
            handler=subscription.name if subscription else "",
            keys=keys,
            nameless=not keys and (subscription is None or subscription.keys is not None),
        )


class RetryChoice:
    """The retries that a filter means, found by looking at them. What waits behind blocked keys is read once."""

    def __init__(self, work_queue: WorkQueue, wanted: RetryFilter) -> None:
        self._work_queue = work_queue
        self._wanted = wanted
        self._without = frozenset(wanted.without)
        self._behind = _behind(work_queue.queue.name, wanted.without)
        self.left_out: dict[str, None] = {}
        """The identities of those that were left out by key."""
        self.nameless: dict[str, None] = {}
        """Those that were left out because their keys cannot be read: one may be on the list."""
        self.in_front: dict[str, tuple[str, Waiting]] = {}
        """Those that were left out because one to leave out waits behind them: their names, and what waits."""
        self.names: set[str] = set()
        """All names that were seen while some are to be left out."""

    def of(self, seen: Sequence[Withdrawn]) -> list[WaitingRetry]:
        """Return those of the retries that are meant."""
        retries = list(recognized(self._work_queue, seen))
        fit = self._narrowed([one for one in retries if self._fits(one)])
        if not self._without:
            return fit
        self.names.update(name for one in retries for name in one.names)
        return [one for one in fit if not self._leaves_out(one)]

    def _fits(self, retry: WaitingRetry) -> bool:
        wanted = self._wanted
        named = not wanted.key or not set(wanted.key).isdisjoint(retry.names)
        return named and (not wanted.handler or retry.handler in wanted.handler)

    def _narrowed(self, fit: list[WaitingRetry]) -> list[WaitingRetry]:
        if not (self._wanted.error or self._wanted.group):
            return fit
        rows = narrowed(waiting(database_clock.now(records_alias())), self._wanted)
        known: set[str] = set()
        for some in in_slices([one.identity for one in fit], READ_AT_ONCE):
            known.update(rows.filter(identity__in=some).values_list("identity", flat=True))
        return [one for one in fit if one.identity in known]

    def _leaves_out(self, retry: WaitingRetry) -> bool:
        if not self._without.isdisjoint(retry.names):
            self.left_out[retry.identity] = None
            return True
        if retry.nameless:
            self.nameless[retry.identity] = None
            return True
        delivery = retry.withdrawn.delivery
        behind = self._behind.get(MessageNames.of(delivery).identity) if self._behind else None
        if behind is not None:
            self.in_front[retry.identity] = retry.shown, behind
        return behind is not None


def narrowed(rows: QuerySet[Attempt], wanted: RetryFilter) -> QuerySet[Attempt]:
    """Return the attempts that meet the conditions which attempts tell."""
    rows = rows.filter(handler__in=wanted.handler) if wanted.handler else rows
    rows = rows.filter(error__in=wanted.error) if wanted.error else rows
    groups = ErrorGroup.objects.filter(pk__in=wanted.group).values("fingerprint")
    return rows.filter(fingerprint__in=groups) if wanted.group else rows


def _behind(queue: str, keys: Sequence[str]) -> dict[str, Waiting]:
    """Return what waits behind the first messages of blocked keys and is to be left out, by their identities."""
    blocked = BlockedKey.objects.using(keys_alias()).filter(queue=queue, waiting__gt=0)
    if not keys or not blocked.exists():
        return {}
    named = behind_keys(keys)
    rows = blocked.in_bulk(named)
    return {row.identity: Waiting(key=named[row.pk], ordering_key=row.key) for row in rows.values()}
