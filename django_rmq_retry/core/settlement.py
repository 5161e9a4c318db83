"""How a verdict is carried out on a channel: what is copied, and what the broker is told, in which order."""

from dataclasses import dataclass
from enum import Enum

from django_rmq_retry.core.deaths import BROKERS_OWN
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import lasting
from django_rmq_retry.core.stamps import Stamp


class Tell(Enum):
    """What the broker is told of a delivery."""

    ACK = "ack"
    REJECT = "nack, not to be requeued"
    REQUEUE = "nack, to be requeued"
    COUNTED_REQUEUE = "reject, to be requeued"
    """Counted by quorum queues on every version, which a nack is not from 4.3 on."""
    AGAIN = "nothing: it stays in hand and is attempted again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The copies are confirmed before the broker is told, unless ack_first; until then the message is still ours."""

    tell: Tell
    copy: Message | None = None
    answer: Message | None = None
    """Sent once, as well as it goes: an answer that nobody takes never holds the message up."""
    ack_first: bool = False
    hold: float = 0.0
    """Seconds to keep the message in hand before any of this."""


DONE = Settlement(tell=Tell.ACK)


def copy_of(
    delivery: Delivery, stamp: Stamp, *, exchange: str, routing_key: str, expiration: int | None = None
) -> Message:
    """A copy that keeps every foreign header byte for byte, and none of the broker's own."""
    known = delivery.properties
    headers = known.headers.replacing(drop=NOT_COPIED, put=stamp.headers())
    properties = lasting(known, headers, expiration=None if expiration is None else str(expiration))
    return Message(body=delivery.body, exchange=exchange, routing_key=routing_key, properties=properties)


STAMPED = frozenset(Stamp(attempts=1, since=1, wait=1, exchange="-", routing_key="-", queue="-", summary="-").headers())
NOT_COPIED = BROKERS_OWN | STAMPED
