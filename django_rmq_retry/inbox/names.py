"""The name by which a handler with ``once`` recognizes a message that it has handled."""

import hashlib
from dataclasses import dataclass, replace
from decimal import Decimal
from math import isfinite
from uuid import UUID

from django.db import connections

from django_rmq_retry import forks
from django_rmq_retry.database_connections import left_open, roll_back_left_open
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers.call import HandlerSkipped, log_left_open
from django_rmq_retry.handlers.subscription import MessageName, Subscription
from django_rmq_retry.messages.identity import message_name, named_by_bytes
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import ErrorNote, short
from django_rmq_retry.policies.verdict import park

NAME_LENGTH = 255
_BY_ID, _BY_BYTES, _BY_FUNCTION = "id", "bytes", "function"


@dataclass(frozen=True, slots=True)
class Name:
    key: str
    """The entry's primary key: a UUID in hexadecimal, which all databases accept."""
    text: str
    digest: str
    """The digest of the body, also a UUID in hexadecimal."""
    also: tuple[str, ...] = ()
    """The keys under the other names of a renamed handler, which it may have used before it was told the first one."""
    certain: bool = True
    """False if another message may have the same name, because this one has no id and is named by its bytes."""

    def again(self, which: str) -> "Name":
        """Return the name for running the same message again, because an operator has requeued it."""
        text = _storable(f"{self.text}#{which}")
        return replace(self, key=_hex(f"{self.key}#{which}"), text=text, also=(), certain=True)


def name_for(subscription: Subscription, delivery: Delivery) -> Name:
    """Return the name of the message. Raise HandlerSkipped, which parks it unrun, if there is no name."""
    if callable(subscription.once):
        how, text = _BY_FUNCTION, _from_function(subscription.once, subscription.name, delivery)
    else:
        try:
            text = message_name(delivery)
        except UndecodableHeaders as error:
            raise parked_unrun(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error)) from error
        how = _BY_BYTES if named_by_bytes(text) else _BY_ID
    # The key includes the kind of name, so that an id and an equal result of a once=… function stay distinct.
    key, *also = (_key(handler, how, text) for handler in subscription.names)
    return Name(key, _storable(text), _digest(delivery.body), tuple(also), how is not _BY_BYTES)


def key_by_id(handler: str, message_id: str) -> str:
    """Return the entry key of a message that is named by its id."""
    return _key(handler, _BY_ID, message_id)


def digest_of(body: bytes) -> UUID:
    """Return the digest of a body in the form in which an inbox entry stores it."""
    return UUID(_digest(body))


def _from_function(once: MessageName, handler: str, delivery: Delivery) -> str:
    # What was open before is not the function's: a transaction around a test.
    before = {one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block or left_open(one)}
    try:
        with forks.ending():
            result = once(delivery)
    except BaseException as error:
        raise unnamed(handler, "raised", error) from error
    finally:
        log_left_open(f"once= of handler {handler}", roll_back_left_open(before))
    number = isinstance(result, (int, float, Decimal)) and not isinstance(result, bool) and isfinite(result)
    if number or (isinstance(result, (str, UUID)) and result != ""):
        return str(result)
    raise unnamed(handler, f"must return a text or a number that names the message, not {short(repr(result), 100)}")


def _storable(text: str) -> str:
    """Return the text in a form that any database can store; a text that is too long is replaced by its digest."""
    if len(text) > NAME_LENGTH:
        return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return short(text, NAME_LENGTH)


def _key(handler: str, how: str, text: str) -> str:
    return _hex(f"{handler}\0{how}\0{text}")


def _hex(text: str) -> str:
    return _digest(text.encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> str:
    text = hashlib.blake2b(data, digest_size=16).hexdigest()
    # Marked as a UUID of version 5 with the usual variant bits: MariaDB accepts only UUIDs that it can distinguish from
    # those it has stored with reordered bytes.
    return f"{text[:12]}5{text[13:16]}8{text[17:]}"


def unnamed(handler: str, why: str, error: BaseException | None = None) -> HandlerSkipped:
    note = None if error is None else ErrorNote.of(error)
    text = f"{why} {note}" if note else why
    return parked_unrun(Reason.UNNAMED, f"once=… of handler {handler} {text}. The handler was not run.", note)


def parked_unrun(reason: Reason, detail: str, note: ErrorNote | None = None) -> HandlerSkipped:
    return HandlerSkipped(replace(park(reason, detail, note), counted=False))
