"""Checks of handlers that run once for each message: their database, and how long it is remembered."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from django.apps import apps
from django.core.checks import CheckMessage, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router

from django_rmq_retry import registry
from django_rmq_retry.checks.saying import TAG, error, joined, warning, with_settings
from django_rmq_retry.conf import Settings
from django_rmq_retry.core.backoff import MOST_LOOKED_AT
from django_rmq_retry.core.carriers import AckFirst
from django_rmq_retry.core.subscription import Subscription

DAY = 86400.0
TABLE = "rmq_retry_inboxentry"


@register(TAG)
@with_settings
def check_once(settings: Settings) -> Iterator[CheckMessage]:
    found = [one for one in map(registry.subscription, joined()) if one.once]
    for one in found:
        yield from _forgets(one, settings)
        if isinstance(one.policy.via, AckFirst):
            yield warning(
                "W032",
                "Runs once, by AckFirst: what dies between its acknowledgement and its copy is not even run once.",
                hint="Use the default, via=Ladder(): once=True takes care of what comes twice.",
                at=one.name,
            )
    if found and settings.inbox_days < settings.resolved_days:
        yield warning(
            "W031",
            f"INBOX_DAYS is {settings.inbox_days}, but messages that are done with can be sent back for RESOLVED_DAYS, "
            f"{settings.resolved_days}: what was handled may then run again.",
            hint="Let RMQ_RETRY['INBOX_DAYS'] be the longer one.",
        )
    for alias, names in _databases(found).items():
        yield from _database(alias, names)


@register(Tags.database)
def check_inbox_tables(*, databases: Collection[str] | None = None, **_: object) -> list[CheckMessage]:
    """Asked with ``--database``, and by ``migrate``, which an error would keep from mending it."""
    try:
        found = _databases([one for one in map(registry.subscription, joined()) if one.once])
    except ImproperlyConfigured:
        # Another check says what is wrong with the settings.
        return []
    return [
        _no_table(warning, "W033", alias, found[alias])
        for alias in databases or ()
        if alias in found and not _has_table(alias)
    ]


def _databases(found: Iterable[Subscription]) -> dict[str, list[str]]:
    """The handlers of each database."""
    named: dict[str, list[str]] = {}
    for one in found:
        named.setdefault(one.using or DEFAULT_DB_ALIAS, []).append(one.name)
    return named


def _database(alias: str, names: Sequence[str]) -> Iterable[CheckMessage]:
    if alias not in connections:
        yield error(
            "E030",
            f"Runs once in the database {alias!r}, which DATABASES does not have.",
            hint="Correct using=… of @handler, or leave it out for the default database.",
            at=names[0],
        )
        return
    known = connections[alias].settings_dict
    if not router.allow_migrate_model(alias, apps.get_model("rmq_retry", "InboxEntry")):
        yield _no_table(error, "E031", alias, names)
    if not known["AUTOCOMMIT"]:
        yield error(
            "E033",
            f"Runs once in the database {alias!r}, which has AUTOCOMMIT False: nothing would be committed.",
            hint="Leave AUTOCOMMIT out of DATABASES.",
            at=names[0],
        )
    in_a_file = known["ENGINE"].endswith("sqlite3") and "memory" not in str(known["NAME"])
    if in_a_file and str(known["OPTIONS"].get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield warning(
            "W030",
            f"Runs once in the SQLite database {alias!r}, and holds its lock for as long as it runs. Transactions "
            "beside it that read first and write then fail at once.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE', and a timeout.",
            at=names[0],
        )


def _no_table(say: Callable[..., CheckMessage], number: str, alias: str, names: Sequence[str]) -> CheckMessage:
    return say(
        number,
        f"Runs once in the database {alias!r}, which has no table {TABLE!r} for what was handled.",
        hint=f"Run `manage.py migrate --database {alias}`; a router must let the app rmq_retry migrate there.",
        at=names[0],
    )


def _has_table(alias: str) -> bool:
    try:
        with connections[alias].cursor() as cursor:
            return TABLE in connections[alias].introspection.table_names(cursor)
    except Error:
        # That it cannot be reached is said by whoever asked for it.
        return True


def _forgets(one: Subscription, settings: Settings) -> Iterable[CheckMessage]:
    times = range(1, min(one.policy.attempts or MOST_LOOKED_AT, 1000))
    waits = (sum(map(backoff.nominal, times)) * (1 + backoff.spread) for backoff in one.policy.backoffs)
    longest = max(waits, default=0)
    if longest > settings.inbox_days * DAY:
        yield error(
            "E032",
            f"Its retries take up to {longest / DAY:.0f} days, but what was handled is remembered for INBOX_DAYS, "
            f"{settings.inbox_days}: a second copy of a message could then run again.",
            hint="Raise RMQ_RETRY['INBOX_DAYS'], or give the back-off a cap.",
            at=one.name,
        )
