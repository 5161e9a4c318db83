"""Names of inbox entries, and the rows that hold them."""

import hashlib
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connections

from django_rmq_retry import server
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers.attempt import Instead
from django_rmq_retry.handlers.subscription import Named, Subscription
from django_rmq_retry.messages.deaths import Reason
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked import name_of, nameless
from django_rmq_retry.messages.stamp import story
from django_rmq_retry.messages.tracebacks import ErrorNote, short
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.policies.policy import park

DECIDED = (Reason.CONFLICT.value, Reason.ALIKE.value)
"""What was parked for these is run where a person sends it back: that is the decision it was parked for."""


def conflict(handler: str, name: str) -> Instead:
    return _parked(
        Reason.CONFLICT,
        f"Handler {handler} has handled {name!r} before, with another body. This one was not run: look which of the "
        "two is right. Requeued, it runs.",
    )


def alike(handler: str) -> Instead:
    return _parked(
        Reason.ALIKE,
        f"It has no id, and handler {handler} has handled one with the same bytes: it may be a second message or a "
        "second copy of the first, and a person must look. Requeued, it runs; discarded, it was a copy.",
    )


def unnamed(handler: str, why: str, error: BaseException | None = None) -> Instead:
    note = None if error is None else ErrorNote.of(error)
    said = f"{why} {note}" if note else why
    return _parked(Reason.UNNAMED, f"once=… of handler {handler} {said}. It was not run.", note)


def unreadable(error: UndecodableHeaders) -> Instead:
    return _parked(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error))


def _parked(reason: Reason, detail: str, note: ErrorNote | None = None) -> Instead:
    return Instead(replace(park(reason, detail, note), counted=False))


LONGEST = 255
_BY_ID, _BY_BYTES, _BY_FUNCTION = "id", "bytes", "function"


@dataclass(frozen=True, slots=True)
class Name:
    """A message as one handler knows it."""

    key: str
    """A UUID in hexadecimal, as all databases take it."""
    text: str
    digest: str
    """Of the body, in the same form."""
    certain: bool = True
    """False where another message may have the same name, for it has no id and the same bytes."""

    def again(self, which: str) -> "Name":
        """The same message, run once more because a person has decided so."""
        return replace(self, key=_hex(f"{self.key}#{which}"), text=_storable(f"{self.text}#{which}"), certain=True)


def name_for(subscription: Subscription, delivery: Delivery) -> Name:
    """What the message is called; Instead where that cannot be told, for then it must not run."""
    if callable(subscription.once):
        how, text = _BY_FUNCTION, _asked(subscription.once, subscription.name, delivery)
    else:
        text = _called(delivery)
        how = _BY_BYTES if nameless(text) else _BY_ID
    # An id and what a function says may be the same text, and are not the same name.
    key = _key(subscription.name, how, text)
    return Name(key, _storable(text), _digest(delivery.body), how is not _BY_BYTES)


def key_by_id(handler: str, message_id: str) -> str:
    """The key of a message that is known by its id."""
    return _key(handler, _BY_ID, message_id)


def digest_of(body: bytes) -> UUID:
    """What an entry keeps of the body."""
    return UUID(_digest(body))


def came_before(delivery: Delivery, *, begun: bool) -> bool:
    """Whether this is surely not the message's first arrival: then one with the same bytes is most likely itself."""
    if begun or delivery.redelivered or delivery.quarantined or delivery.attempt > 1:
        return True
    return story(delivery).attempts > 0


def _called(delivery: Delivery) -> str:
    try:
        return name_of(delivery)
    except UndecodableHeaders as error:
        raise unreadable(error) from error


def _asked(once: Named, handler: str, delivery: Delivery) -> str:
    try:
        told = once(delivery)
    except BaseException as error:
        raise unnamed(handler, "raised", error) from error
    number = isinstance(told, (int, float, Decimal)) and not isinstance(told, bool) and isfinite(told)
    if number or (isinstance(told, (str, UUID)) and told != ""):
        return str(told)
    raise unnamed(handler, f"must return a text or a number that names the message, not {short(repr(told), 100)}")


def _storable(text: str) -> str:
    """As any database takes it; one that is too long is known by its digest."""
    if len(text) > LONGEST:
        return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return short(text, LONGEST)


def _key(handler: str, how: str, text: str) -> str:
    return _hex(f"{handler}\0{how}\0{text}")


def _hex(text: str) -> str:
    return _digest(text.encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> str:
    told = hashlib.blake2b(data, digest_size=16).hexdigest()
    # Marked as a UUID of a name (version 5): MariaDB takes only what it can tell from bytes that it has turned round.
    return f"{told[:12]}5{told[13:16]}8{told[17:]}"


_META = InboxEntry._meta  # noqa: SLF001 - documented, in spite of its name
_DUPLICATE = 1062
_COLUMNS = ("key", "handler", "name", "digest", "handled_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """In one database's own words."""

    insert: str
    same: str
    present: str


def insert(connection: Any, handler: str, name: Name) -> bool:
    """Add the entry; False where it is there. A transaction that adds the same is waited for.

    It is the first statement of its transaction: on SQLite one that has read first could not write any more.
    """
    at = connection.ops.adapt_datetimefield_value(server.now(connection.alias))
    with connection.cursor() as cursor:
        try:
            cursor.execute(_statements(connection.vendor).insert, (name.key, handler, name.text, name.digest, at))
        except IntegrityError as error:
            if connection.vendor == "mysql" and error.args[:1] == (_DUPLICATE,):
                return False
            raise
        return bool(cursor.rowcount)


def same(connection: Any, name: Name) -> bool | None:
    """Whether the entry that is there tells of the same body; None where it has gone meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor).same, (name.digest, name.key))
        row = cursor.fetchone()
    return None if row is None else bool(row[0])


def present(connection: Any, name: Name) -> bool:
    """Whether this transaction still has its entry."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor).present, (name.key,))
        return cursor.fetchone() is not None


@lru_cache(maxsize=8)
def _statements(vendor: str) -> Statements:
    quote = next(one for one in connections.all() if one.vendor == vendor).ops.quote_name
    table, key, digest = quote(_META.db_table), quote("key"), quote("digest")
    columns, places = ", ".join(map(quote, _COLUMNS)), ", ".join(["%s"] * len(_COLUMNS))
    # On MariaDB the error says it: IGNORE would hide others, and Django has it count what was found as changed.
    end = "" if vendor == "mysql" else f" ON CONFLICT ({key}) DO NOTHING"
    return Statements(
        insert=f"INSERT INTO {table} ({columns}) VALUES ({places}){end}",  # noqa: S608 - names of our own only
        same=f"SELECT CASE WHEN {digest} = %s THEN 1 ELSE 0 END FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
        present=f"SELECT 1 FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
    )
