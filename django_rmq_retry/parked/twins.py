"""Twins: what is not parked and has a first key or an id of parked messages, so that both may be done."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.parked.elsewhere import places_of
from django_rmq_retry.parked.findings import RequeueReport
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.selection import Selection

WAITING = (Room.RETRIES, Room.QUEUES)
UNHANDLED = (Room.OUTBOX, Room.KEYS, *WAITING)
"""Where a message waits that no operator has to send. What is in a handler may be the parked message itself."""
MOST_COMPARED = 500
"""The most messages for which twins are looked for."""


Twins = Mapping[str, Sequence[Found]]
"""By the first key, or the id, of the parked messages."""


def twins_of(rows: Iterable[ParkedMessage], rooms: Collection[Room]) -> Twins:
    """Return the twins of these messages; not what waits behind one of them for the key that orders them."""
    known = list(rows)
    names = {name: None for row in known for name in (row.business_key, row.message_id) if name}
    first = {row.identity for row in known}
    found = places_of(list(names), [room for room in Room if room in rooms]).found
    twins = {
        name: [one for one in some if not one.own and not (one.place == name and one.behind in first)]
        for name, some in found.items()
    }
    return {name: some for name, some in twins.items() if some}


def twins_of_sent(
    chosen: Selection,
    found: RequeueReport,
    *,
    rooms: Collection[Room] = UNHANDLED,
    seen: Sequence[ParkedMessage] = (),
) -> Twins:
    """Return what will be handled, or was, beside the messages to send, if these are few; ``seen`` are some of them."""
    if not 0 < found.sendable <= MOST_COMPARED:
        return {}
    if len(seen) == found.sendable:
        return twins_of(seen, rooms)
    rows = chosen.queryset().exclude(found.refused) if found.refused else chosen.queryset()
    return twins_of(rows.only("business_key", "message_id", "identity"), rooms)


def each(twins: Twins) -> list[Found]:
    """Return all of these twins, each once."""
    return list(dict.fromkeys(one for some in twins.values() for one in some))
