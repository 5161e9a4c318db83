"""Names of inbox entries, and the SQL statements that insert and read the entries."""

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
"""Reasons for which only an operator can decide. A message parked for one of them is run if an operator requeues it."""


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
    """The name by which a handler recognizes a message."""

    key: str
    """The entry's primary key: a UUID in hexadecimal, which all databases accept."""
    text: str
    digest: str
    """The digest of the body, also a UUID in hexadecimal."""
    certain: bool = True
    """False if another message may have the same name, because this one has no id and is named by its bytes."""

    def again(self, which: str) -> "Name":
        """Return the name for running the same message again, because an operator has requeued it."""
        return replace(self, key=_hex(f"{self.key}#{which}"), text=_storable(f"{self.text}#{which}"), certain=True)


def name_for(subscription: Subscription, delivery: Delivery) -> Name:
    """Return the name of the message. Raise Instead, which parks it unrun, if the name cannot be determined."""
    if callable(subscription.once):
        how, text = _BY_FUNCTION, _asked(subscription.once, subscription.name, delivery)
    else:
        text = _called(delivery)
        how = _BY_BYTES if nameless(text) else _BY_ID
    # The key includes the kind of name, so that an id and an equal result of a once=… function stay distinct.
    key = _key(subscription.name, how, text)
    return Name(key, _storable(text), _digest(delivery.body), how is not _BY_BYTES)


def key_by_id(handler: str, message_id: str) -> str:
    """Return the entry key of a message that is named by its id."""
    return _key(handler, _BY_ID, message_id)


def digest_of(body: bytes) -> UUID:
    """Return the digest of a body that an entry stores."""
    return UUID(_digest(body))


def came_before(delivery: Delivery, *, begun: bool) -> bool:
    """True if this is certainly not the first delivery of the message.

    An entry with the same bytes then most likely belongs to the same message.
    """
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
    """Return the text in a form that any database can store; a text that is too long is replaced by its digest."""
    if len(text) > LONGEST:
        return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return short(text, LONGEST)


def _key(handler: str, how: str, text: str) -> str:
    return _hex(f"{handler}\0{how}\0{text}")


def _hex(text: str) -> str:
    return _digest(text.encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> str:
    told = hashlib.blake2b(data, digest_size=16).hexdigest()
    # Marked as a UUID of version 5 with the usual variant bits: MariaDB accepts only UUIDs that it can distinguish from
    # those it has stored with reordered bytes.
    return f"{told[:12]}5{told[13:16]}8{told[17:]}"


_META = InboxEntry._meta  # noqa: SLF001 - a documented API despite the underscore
_DUPLICATE = 1062
_COLUMNS = ("key", "handler", "name", "digest", "handled_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """The SQL statements in the dialect of one database."""

    insert: str
    same: str
    present: str


def insert(connection: Any, handler: str, name: Name) -> bool:
    """Insert the entry; return False if it exists. Waits for a concurrent transaction that inserts the same entry.

    It must be the first statement of its transaction: on SQLite the write of a transaction that has read before is
    rejected if another transaction has written since.
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
    """True if the existing entry has the same body; None if the entry was deleted meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor).same, (name.digest, name.key))
        row = cursor.fetchone()
    return None if row is None else bool(row[0])


def present(connection: Any, name: Name) -> bool:
    """True if the entry is visible on this connection."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor).present, (name.key,))
        return cursor.fetchone() is not None


@lru_cache(maxsize=8)
def _statements(vendor: str) -> Statements:
    quote = next(one for one in connections.all() if one.vendor == vendor).ops.quote_name
    table, key, digest = quote(_META.db_table), quote("key"), quote("digest")
    columns, places = ", ".join(map(quote, _COLUMNS)), ", ".join(["%s"] * len(_COLUMNS))
    # On MariaDB the duplicate error reports an existing entry. INSERT IGNORE would hide other errors, and Django
    # connects with FOUND_ROWS, which counts rows that exist as changed.
    end = "" if vendor == "mysql" else f" ON CONFLICT ({key}) DO NOTHING"
    return Statements(
        insert=f"INSERT INTO {table} ({columns}) VALUES ({places}){end}",  # noqa: S608 - names of our own only
        same=f"SELECT CASE WHEN {digest} = %s THEN 1 ELSE 0 END FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
        present=f"SELECT 1 FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
    )
