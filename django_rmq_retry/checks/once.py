"""Checks of ``once=True``, breakers and rates."""

import datetime
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from django.apps import apps
from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.models import Model

from django_rmq_retry import conf
from django_rmq_retry.arguments import spelled
from django_rmq_retry.checks.settings import TAG, error, joined, no_outbox, warning, with_settings, written_databases
from django_rmq_retry.conf import Settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.policies.backoff import MOST_WAITS_LOOKED_AT
from django_rmq_retry.policies.carriers import AckFirst
from django_rmq_retry.policies.policy import RetryThenPark, StopTheLine
from django_rmq_retry.policies.verdict import error_types
from django_rmq_retry.statements import missing_tables

DAY_SECONDS = 86400.0
TABLE = "rmq_retry_inboxentry"
MOST_NAMES_SHOWN = 3
RELEASE_OVERLAP = datetime.timedelta(hours=1)
"""The time for which an old and a new release may handle messages side by side."""
NEVER_HANDLED = datetime.datetime.max.replace(tzinfo=datetime.UTC)
MOST_ENTRIES = 10_000
"""The latest entries whose handlers are looked up: more would take time on a large table."""
LONG_HOLD_SECONDS = 600.0
"""Seconds after which an unacked message returns to its queue, if it may; RabbitMQ takes it back after 1800."""


@register(TAG)
@with_settings
def check_once(settings: Settings) -> Iterator[CheckMessage]:
    handlers = [one for one in map(registry.subscription, joined()) if one.once]
    for one in handlers:
        yield from _forgets(one, settings)
        if isinstance(one.policy.via, AckFirst):
            yield warning(
                "W032",
                "Runs once with AckFirst: a message whose worker dies between its ack and its copy is lost, and is "
                "not handled.",
                hint="Use the default, via=Ladder(): once=True skips the second copy of a message.",
                at=one.name,
            )
    if handlers and settings.inbox_days < settings.operators.resolved_days:
        yield warning(
            "W031",
            f"INBOX_DAYS is {settings.inbox_days}, but closed messages can be requeued for RESOLVED_DAYS, "
            f"{settings.operators.resolved_days}: a handled message may then be handled again.",
            hint="Set RMQ_RETRY['INBOX_DAYS'] to at least RESOLVED_DAYS.",
        )
    for alias, names in _databases(handlers).items():
        yield from _database(alias, names)


@register(Tags.database)
def check_inbox_tables(*, databases: Collection[str] | None = None, **_: object) -> list[CheckMessage]:
    """Run with ``--database``; silent in ``migrate``, which runs such checks before it creates the table."""
    if sys.argv[1:2] == ["migrate"]:
        return []
    try:
        handlers = [one for one in map(registry.subscription, joined()) if one.once]
    except ImproperlyConfigured:
        # check_settings reports the invalid settings.
        return []
    found = _databases(handlers)
    return [
        problem for alias in databases or () if alias in found for problem in _entries(alias, found[alias], handlers)
    ]


@register(Tags.database)
def check_outbox_tables(*, databases: Collection[str] | None = None, **_: object) -> list[CheckMessage]:
    """Run with ``--database``, and by the doctor: a database that is written to lacks the outbox's table."""
    if sys.argv[1:2] == ["migrate"]:
        return []
    try:
        if conf.settings().outbox is not True:
            return []
        written = written_databases()
    except ImproperlyConfigured:
        return []
    why, fix = "because it lacks the table", "Run `manage.py migrate --database {}`"
    model = apps.get_model("rmq_retry", "OutboxMessage")
    return [
        no_outbox(alias, written[alias], why, fix.format(alias))
        for alias in databases or ()
        if alias in written and router.allow_migrate_model(alias, model) and not _has_table(alias, model)
    ]


def database_problems(alias: str) -> list[CheckMessage]:
    """Return what both checks say about one database."""
    return [*check_inbox_tables(databases=[alias]), *check_outbox_tables(databases=[alias])]


def _entries(alias: str, names: Sequence[str], handlers: Sequence[Subscription]) -> Iterator[CheckMessage]:
    if not _has_table(alias, apps.get_model("rmq_retry", "InboxEntry")):
        yield _no_table(warning, "W033", alias, names)
        return
    for old, fresh in renamed(alias, handlers).items():
        candidates = " or ".join(fresh[:MOST_NAMES_SHOWN])
        yield warning(
            "W034",
            f"Messages were handled once by {old!r}, which no handler is named now. If it was renamed, each of them "
            "that comes again is handled again.",
            hint=f"Add formerly={old!r} to the handler that took its place ({candidates}). If it was removed, do "
            "nothing: its entries are deleted after INBOX_DAYS.",
            at=fresh[0],
        )


def renamed(alias: str, handlers: Iterable[Subscription]) -> dict[str, list[str]]:
    """Return each name that recent entries have and no handler has, with the handlers that may have had it before.

    These are the handlers that have handled nothing before the last message under that name: messages that they handled
    under it would run again.
    """
    latest = apps.get_model("rmq_retry", "InboxEntry").objects.using(alias).order_by("-handled_at")
    try:
        entries = list(latest.values_list("handler", "handled_at")[:MOST_ENTRIES])
    except Error:
        # The caller of the check reports that the database is unreachable.
        return {}
    last, first = dict(reversed(entries)), dict(entries)
    known = {name for one in map(registry.subscription, joined()) for name in one.names}
    here = [one for one in handlers if (one.using or DEFAULT_DB_ALIAS) == alias]
    found: dict[str, list[str]] = {}
    for old in sorted(set(last) - known):
        later = [
            one.name
            for one in here
            if all(first.get(name, NEVER_HANDLED) > last[old] - RELEASE_OVERLAP for name in one.names)
        ]
        if later:
            found[old] = sorted(later)
    return found


def _databases(handlers: Iterable[Subscription]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for one in handlers:
        named.setdefault(one.using or DEFAULT_DB_ALIAS, []).append(one.name)
    return named


def _database(alias: str, names: Sequence[str]) -> Iterable[CheckMessage]:
    if alias not in connections:
        yield error(
            "E030",
            f"The handler runs once in the database {alias!r}, which DATABASES does not have.",
            hint="Correct using=… of @handler, or omit it for the default database.",
            at=names[0],
        )
        return
    known = connections[alias].settings_dict
    if not router.allow_migrate_model(alias, apps.get_model("rmq_retry", "InboxEntry")):
        yield _no_table(error, "E031", alias, names)
    if not known["AUTOCOMMIT"]:
        yield error(
            "E033",
            f"The handler runs once in the database {alias!r}, which has AUTOCOMMIT False: nothing would be committed.",
            hint="Remove AUTOCOMMIT from DATABASES.",
            at=names[0],
        )
    in_a_file = known["ENGINE"].endswith("sqlite3") and "memory" not in str(known["NAME"])
    if in_a_file and str(known["OPTIONS"].get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield warning(
            "W030",
            f"The handler runs once in the SQLite database {alias!r}, and holds its write lock while it runs. Other "
            "transactions that read first and then write fail at once, and every other write waits for it.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE', 'timeout': 20}}.",
            at=names[0],
        )


def _no_table(check: Callable[..., CheckMessage], number: str, alias: str, names: Sequence[str]) -> CheckMessage:
    return check(
        number,
        f"The handler runs once in the database {alias!r}, which has no table {TABLE!r} for handled messages.",
        hint=f"Run `manage.py migrate --database {alias}`; a router must let the app rmq_retry migrate there.",
        at=names[0],
    )


def _has_table(alias: str, model: type[Model]) -> bool:
    try:
        return not missing_tables([model], alias)
    except Error:
        # The caller of the check reports that the database is unreachable.
        return True


def _forgets(one: Subscription, settings: Settings) -> Iterable[CheckMessage]:
    longest = 0.0
    for backoff, attempts in one.policy.waits:
        times = range(1, min(attempts or MOST_WAITS_LOOKED_AT, 1000))
        longest = max(longest, sum(map(backoff.nominal, times)) * (1 + backoff.spread))
    if longest > settings.inbox_days * DAY_SECONDS:
        yield error(
            "E032",
            f"Its retries take up to {longest / DAY_SECONDS:.0f} days, but entries are kept for INBOX_DAYS, "
            f"{settings.inbox_days}: a second copy of a message could then be handled again.",
            hint="Raise RMQ_RETRY['INBOX_DAYS'], or set a cap on the back-off.",
            at=one.name,
        )


@register(TAG)
@with_settings
def check_switching(settings: Settings) -> Iterator[CheckMessage]:
    for work_queue in registry.work_queues():
        yield from _stops_others(work_queue)
        for subscription in work_queue.subscriptions:
            yield from _parks_and_spares(subscription)
            yield from _holds_too_long(subscription, work_queue, settings)


def _stops_others(work_queue: WorkQueue) -> Iterable[CheckMessage]:
    """Warn of a breaker that pauses other handlers: a queue is paused as a whole."""
    guarded = [one for one in work_queue.subscriptions if one.breaker is not None]
    others = [one.name for one in work_queue.subscriptions if one.breaker is None]
    if guarded and others:
        yield warning(
            "W050",
            f"While the breaker of {guarded[0].name} is open, queue {work_queue.queue.name!r} is paused, and so are "
            f"{', '.join(others)}.",
            hint="Give the handler with the breaker its own queue.",
            at=guarded[0].name,
        )


def _parks_and_spares(subscription: Subscription) -> Iterable[CheckMessage]:
    policy, breaker = subscription.policy, subscription.breaker
    if breaker is None or not isinstance(policy, (RetryThenPark, StopTheLine)):
        return
    parked = error_types("park_on", policy.park_on)
    both = [kind.__name__ for kind in error_types("on", breaker.on) if issubclass(kind, parked)]
    if both:
        yield warning(
            "W051",
            f"{', '.join(both)} is in both Breaker(on=…) and park_on. The breaker wins: the message is not parked, "
            "and is redelivered when the breaker closes.",
            hint="Remove it from one of them.",
            at=subscription.name,
        )


def _holds_too_long(subscription: Subscription, work_queue: WorkQueue, settings: Settings) -> Iterable[CheckMessage]:
    prefetch = 1 if work_queue.ordered else settings.prefetch
    if subscription.rate is not None and prefetch / subscription.rate > LONG_HOLD_SECONDS:
        yield warning(
            "W052",
            f"With a rate of {spelled(subscription.rate)} {prefetch} unacked messages take "
            f"{prefetch / subscription.rate:.0f} s; a message that waits longer than {LONG_HOLD_SECONDS:g} s "
            "returns to its queue, or loses its connection.",
            hint="Lower the prefetch of the consumer, or raise the rate.",
            at=subscription.name,
        )
