"""What a message becomes when a queue gives it up: its x-death, its new keys, and where it may not go again."""

import struct
from dataclasses import replace

from django_rmq_retry.core.deaths import Death as ForeignDeath
from django_rmq_retry.core.deaths import deaths as foreign_deaths
from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.messages import Death, Message, with_table, without_expiration

_LENGTH = struct.Struct(">I")
_LONG = struct.Struct(">q")
_STAMP = struct.Struct(">Q")
_FIRST = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
_LAST = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")


def letter(
    entry: Entry, behaviour: Behaviour, *, queue: str, reason: str, time: int, exchange: str, key: str | None
) -> Message:
    """The message as it leaves for its dead-letter exchange."""
    old = entry.message
    death = Death(
        queue=queue,
        reason=reason,
        exchange=old.exchange,
        keys=tuple(name for name in old.keys if name not in old.bcc),
        time=time,
        expiration=old.expiration,
    )
    known = old.deaths or (_believed(old) if behaviour.believes_x_death else ())
    deaths = _recorded(known, death, shuffled=behaviour.shuffles_deaths)
    drop = {"x-death", *_FIRST, *_LAST} if not known else {"x-death", *_LAST}
    add = _encoded(deaths)
    if not known:
        add += _marks(_FIRST, death)
    if behaviour.last_death:
        add += _marks(_LAST, death)
    if key is not None and behaviour.key_drops_cc:
        drop.add("CC")
    raw = without_expiration(old.raw) if old.expiration is not None else old.raw
    new = Message(exchange, old.key if key is None else key, with_table(raw, drop=drop, add=add), old.body)
    new.persistent, new.priority = old.persistent, old.priority
    new.deaths = deaths
    if key is None:
        new.more, new.bcc = old.more, old.bcc
    new.count = _carried(entry, behaviour)
    return new


def cycles(queue: str, message: Message) -> bool:
    """Whether a message has been through this queue already with no consumer rejecting it in between."""
    if message.deaths[0].reason == "rejected":
        return False
    for at, death in enumerate(message.deaths):
        if death.queue == queue:
            return all(one.reason != "rejected" for one in message.deaths[: at + 1])
    return False


def _recorded(known: tuple[Death, ...], death: Death, *, shuffled: bool) -> tuple[Death, ...]:
    """With one more death in front; a second one of the same queue and reason only counts."""
    # RabbitMQ 3 regroups its list by reversing it, whenever it has two entries or more.
    ordered = known[::-1] if shuffled else known
    others = tuple(one for one in ordered if (one.queue, one.reason) != (death.queue, death.reason))
    for one in known:
        if (one.queue, one.reason) == (death.queue, death.reason):
            again = replace(one, count=one.count + 1)
            return (again, *others)
    return (death, *others)


def _believed(message: Message) -> tuple[Death, ...]:
    if b"x-death" not in message.raw:
        return ()
    return tuple(_taken_over(death) for death in foreign_deaths(message.headers))


def _taken_over(death: ForeignDeath) -> Death:
    return Death(
        queue=death.queue, reason=death.reason, exchange=death.exchange, keys=death.keys, time=0, count=death.count
    )


def _carried(entry: Entry, behaviour: Behaviour) -> int | None:
    if behaviour.carried_count == "no":
        return None
    return entry.count - entry.unkept or entry.message.count


def _encoded(deaths: tuple[Death, ...]) -> bytes:
    tables = b"".join(b"F" + _prefixed(_table(death)) for death in deaths)
    return b"\x07x-deathA" + _prefixed(tables)


def _table(death: Death) -> bytes:
    """Written by hand: RabbitMQ counts in 64 bits however small the number."""
    pieces = [
        b"\x05countl" + _LONG.pack(death.count),
        _entry("reason", death.reason),
        _entry("queue", death.queue),
        b"\x04timeT" + _STAMP.pack(death.time),
        _entry("exchange", death.exchange),
        b"\x0crouting-keysA" + _prefixed(b"".join(_text(key) for key in death.keys)),
    ]
    if death.expiration is not None:
        pieces.append(_entry("original-expiration", death.expiration))
    return b"".join(pieces)


def _marks(names: tuple[str, str, str], death: Death) -> bytes:
    values = (death.queue, death.reason, death.exchange)
    return b"".join(_entry(name, value) for name, value in zip(names, values, strict=True))


def _entry(name: str, value: str) -> bytes:
    return bytes((len(name),)) + name.encode() + _text(value)


def _text(value: str) -> bytes:
    """Names that are no UTF-8 go out as they came."""
    return b"S" + _prefixed(value.encode("utf-8", "surrogateescape"))


def _prefixed(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content
