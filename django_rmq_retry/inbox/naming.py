"""By what a handler that runs once knows a message again: its id, what its own function says, or else its bytes."""

import hashlib
from dataclasses import dataclass, replace
from decimal import Decimal
from math import isfinite
from uuid import UUID

from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.naming import name_of, nameless
from django_rmq_retry.core.stamps import story
from django_rmq_retry.core.subscription import Named, Subscription
from django_rmq_retry.core.verdict import short
from django_rmq_retry.inbox.doubts import unnamed, unreadable

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


def came_before(delivery: Delivery) -> bool:
    """Whether this is surely not the message's first arrival: then one with the same bytes is most likely itself."""
    if delivery.begun or delivery.redelivered or delivery.apart or delivery.attempt > 1:
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
