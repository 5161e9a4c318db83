"""Which databases have an outbox: the setting, the project's routers and the table itself are asked."""

import logging
import time
from collections.abc import Hashable

from django.db import connections, router

from django_rmq_retry.conf import settings
from django_rmq_retry.models import OutboxMessage

log = logging.getLogger("django_rmq_retry")

TABLE = OutboxMessage._meta.db_table  # noqa: SLF001 - documented, in spite of its name
AGAIN = 60.0
"""Seconds after which a table that was missing is looked for again."""

_made: dict[Hashable, float] = {}
"""Until when it is known that a table is missing; 0 where it is there."""
_told: set[Hashable] = set()


def takes(using: str) -> bool:
    """Whether what is published inside a transaction of this database becomes a row of it."""
    named = settings().outbox
    if named is False or (named is not True and using not in named):
        return False
    # A name that is written down is trusted: no query is spent on it.
    return allowed(using) and (named is not True or made(using) or _missing(using))


def allowed(using: str) -> bool:
    """Whether the project's routers want the table there."""
    return bool(router.allow_migrate_model(using, OutboxMessage))


def served() -> list[str]:
    """The databases that a relay looks into: also where the setting has been switched off, for what is left there."""
    return [alias for alias in connections if allowed(alias) and connections[alias].vendor != "unknown"]


def made(using: str) -> bool:
    """Whether the table is there; asked once, and again later where it is not."""
    place = _place(using)
    until = _made.get(place)
    if until is None or 0 < until < time.monotonic():
        there = TABLE in connections[using].introspection.table_names()
        _made[place] = 0.0 if there else time.monotonic() + AGAIN
    return not _made[place]


def _missing(using: str) -> bool:
    """Say so once, where somebody would have needed it."""
    if _place(using) not in _told:
        _told.add(_place(using))
        said = "The database %r has no outbox: run `manage.py migrate`, or name in 'OUTBOX' those that shall have one"
        log.warning(said, using, extra={"event": "no outbox"})
    return False


def _place(using: str) -> Hashable:
    known = connections[using].settings_dict
    return (using, known.get("NAME"), known.get("HOST"), known.get("PORT"))
