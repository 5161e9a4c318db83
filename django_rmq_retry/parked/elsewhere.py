"""Where a message without a record may be: the outbox, a blocked key, a waiting retry, a halted queue, a handler."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from django.db import Error

from django_rmq_retry.conf import settings
from django_rmq_retry.parked import halts_shelf, keys_shelf, outbox_shelf
from django_rmq_retry.parked.attempts_shelf import AttemptsShelf
from django_rmq_retry.parked.found import Elsewhere, Found, Room, said
from django_rmq_retry.parked.gone_shelf import GoneShelf
from django_rmq_retry.parked.handlers_shelf import HandlersShelf
from django_rmq_retry.parked.key_match import Beginnings, Keys, Wanted
from django_rmq_retry.parked.shelves import MOST_NAMED, Shelf

MOST_WORDS = 20
"""The most words of one search that are looked for: several words are several keys."""
SHELVES: Mapping[Room, Callable[[], Iterable[Shelf | type[AttemptsShelf | GoneShelf | HandlersShelf]]]] = {
    Room.OUTBOX: outbox_shelf.shelves,
    Room.KEYS: keys_shelf.shelves,
    Room.RETRIES: lambda: [AttemptsShelf] if settings().records else [],
    Room.QUEUES: halts_shelf.shelves,
    Room.GONE: lambda: [GoneShelf],
    Room.HANDLERS: lambda: [HandlersShelf],
}


def elsewhere(asked: str, rooms: Sequence[Room] = tuple(Room)) -> Elsewhere:
    """Look in these rooms for a key or id, or how one begins, without regard to case; a room may not be readable."""
    words = [text for text in dict.fromkeys([asked.strip(), *asked.split()[:MOST_WORDS]]) if text]
    return _look_in(rooms, Beginnings(words)) if words else Elsewhere()


def places_of(keys: Sequence[str], rooms: Sequence[Room] = tuple(Room)) -> Elsewhere:
    """Look in these rooms for what each of these keys and ids names, but for its case; a few things for each."""
    return _look_in(rooms, Keys(keys)) if keys else Elsewhere()


def _look_in(rooms: Sequence[Room], wanted: Wanted) -> Elsewhere:
    found, searched, cut = dict[str, list[Found]](), list[str](), False
    for room in rooms:
        # A room may not be readable: what the others have is named all the same.
        try:
            looks = [shelf.look(wanted) for shelf in SHELVES[room]()]
            known = [one for look in looks for one in look.found()]
        except Error:
            continue
        for key, one in known:
            if one in (of_key := found.setdefault(key, [])):
                continue
            if len(of_key) < MOST_NAMED:
                of_key.append(one)
            else:
                cut = True
        cut = cut or any(look.cut for look in looks)
        if looks:
            searched.append(said(room, [look.read for look in looks if look.stopped]))
    return Elsewhere(found=found, searched=searched, cut=cut)
