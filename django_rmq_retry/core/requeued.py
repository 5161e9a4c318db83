"""The copy by which a parked message goes back to its queue: as it first came, with the ticket of its record.

It must not know of records; what it is made of is handed in as bytes.
"""

from dataclasses import dataclass, replace

from django_rmq_retry.core.deaths import BROKERS_OWN
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Message
from django_rmq_retry.core.parking import ADDED, TICKET
from django_rmq_retry.core.properties import Properties, decode_properties, lasting
from django_rmq_retry.core.stamps import Stamp

STRIPPED = BROKERS_OWN | ADDED | {TICKET}
"""What tells of earlier failures stays in the record: the attempts of the copy are counted from 1."""
DIRECT = "amq.rabbitmq.reply-to"
"""Only who consumes it may send it: the broker would close the channel over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A parked message as its record has it: the first version, or the one that was edited last."""

    body: bytes
    raw: bytes
    """Its properties in the broker's bytes."""
    exchange: str
    routing_key: str
    message_id: str = ""
    """Kept where the properties cannot be read."""

    @property
    def properties(self) -> Properties:
        """Read; where they cannot be, nothing but the id."""
        try:
            return decode_properties(self.raw)
        except UndecodableHeaders:
            return Properties(message_id=self.message_id or None, headers=Headers())


def requeued(original: Original, *, queue: str, ticket: str) -> Message:
    """The copy for one queue, and for no other that may be bound to the exchange it first came by.

    The way in stands in its stamp, so that a handler that goes by the routing key is found again.
    """
    stamp = Stamp(exchange=original.exchange, routing_key=original.routing_key, queue=queue)
    known = original.properties
    headers = known.headers.replacing(drop=STRIPPED, put={**stamp.headers(), TICKET: ticket})
    answerable = replace(known, reply_to=None) if known.reply_to == DIRECT else known
    properties = lasting(answerable, headers)
    return Message(body=original.body, properties=properties, exchange="", routing_key=queue)
