"""Dead letters: their ``x-death`` headers, their ways, and cycles."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import StoredMessage, XDeath, with_table, without_expiration
from django_rmq_retry.embedded.engine.queue import BrokerQueue, SharedState
from django_rmq_retry.embedded.engine.routing import Router

_LENGTH = struct.Struct(">I")
_LONG = struct.Struct(">q")
_STAMP = struct.Struct(">Q")
_FIRST = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
_LAST = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")

_RETRY_SECONDS = 180.0
"""The time until an at-least-once dead letter that no queue accepted is retried (rabbit_fifo_dlx_worker)."""


def letter(
    entry: Entry, behaviour: Behaviour, *, queue: str, reason: str, time: int, exchange: str, key: str | None
) -> StoredMessage:
    """Return the message as it is published to its dead-letter exchange."""
    old = entry.message
    death = XDeath(
        queue=queue,
        reason=reason,
        exchange=old.exchange,
        keys=tuple(name for name in old.keys if name not in old.bcc),
        time=time,
        expiration=old.expiration,
    )
    deaths = _recorded(old.deaths, death)
    drop = {"x-death", *_FIRST, *_LAST} if not old.deaths else {"x-death", *_LAST}
    add = _encoded(deaths)
    if not old.deaths:
        add += _marks(_FIRST, death)
    add += _marks(_LAST, death)
    raw = without_expiration(old.raw) if old.expiration is not None else old.raw
    new = StoredMessage(exchange, old.key if key is None else key, with_table(raw, drop=drop, add=add), old.body)
    new.persistent, new.priority = old.persistent, old.priority
    new.deaths = deaths
    if key is None:
        new.more, new.bcc = old.more, old.bcc
    # 4.3 starts each queue's count with the failed deliveries so far, 4.0 adds them here.
    before = 0 if behaviour.carried_count == "counted" else old.count or 0
    new.count = before + entry.count - entry.unkept or old.count
    return new


def cycles(queue: str, message: StoredMessage) -> bool:
    """True if the message has passed this queue before, without a rejection by a consumer since then."""
    if message.deaths[0].reason == "rejected":
        return False
    for at, death in enumerate(message.deaths):
        if death.queue == queue:
            return all(one.reason != "rejected" for one in message.deaths[: at + 1])
    return False


def _recorded(earlier: tuple[XDeath, ...], death: XDeath) -> tuple[XDeath, ...]:
    """Put one more death in front; a second death of the same queue and reason raises its count."""
    others = tuple(one for one in earlier if (one.queue, one.reason) != (death.queue, death.reason))
    for one in earlier:
        if (one.queue, one.reason) == (death.queue, death.reason):
            again = replace(one, count=one.count + 1)
            return (again, *others)
    return (death, *others)


def _encoded(deaths: tuple[XDeath, ...]) -> bytes:
    tables = b"".join(b"F" + _prefixed(_table(death)) for death in deaths)
    return b"\x07x-deathA" + _prefixed(tables)


def _table(death: XDeath) -> bytes:
    """Encode by hand, because RabbitMQ writes every count as 64 bits."""
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


def _marks(names: tuple[str, str, str], death: XDeath) -> bytes:
    values = (death.queue, death.reason, death.exchange)
    return b"".join(_entry(name, value) for name, value in zip(names, values, strict=True))


def _entry(name: str, value: str) -> bytes:
    return bytes((len(name),)) + name.encode() + _text(value)


def _text(value: str) -> bytes:
    """Encode a name; bytes that are not UTF-8 stay unchanged."""
    return b"S" + _prefixed(value.encode("utf-8", "surrogateescape"))


def _prefixed(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


class Undertaker:
    """Empties `shared.graves` one message at a time, so that a chain of deaths needs no recursion."""

    def __init__(self, shared: SharedState, router: Router) -> None:
        self._shared = shared
        self._router = router

    def bury_all(self) -> None:
        graves = self._shared.graves
        while graves:
            self._bury(*graves.popleft())

    def _bury(self, queue: BrokerQueue, entry: Entry, reason: str) -> None:
        name = queue.spec.text("x-dead-letter-exchange")
        if name is None:
            self._shared.lost[reason] += 1
            queue.forget(entry)
            return
        clock = self._shared.clock
        message = letter(
            entry,
            self._shared.behaviour,
            queue=queue.name,
            reason=reason,
            time=int(clock.now + clock.epoch),
            exchange=name,
            key=queue.spec.text("x-dead-letter-routing-key"),
        )
        if not _at_least_once(queue):
            self._send(message)
            queue.forget(entry)
            return
        done: set[BrokerQueue] = set()
        if self._deliver(message, done):
            queue.forget(entry)
        else:
            queue.pending += 1
            queue.note(entry, "dying", reason)
            self._retry_later(queue, entry, lambda: self._deliver(message, done))

    def _targets(self, message: StoredMessage) -> Sequence[BrokerQueue]:
        exchange = self._router.exchanges.get(message.exchange)
        return () if exchange is None else self._router.route(exchange, message)

    def _send(self, message: StoredMessage) -> None:
        """Publish at most once: a message that no queue accepts is lost."""
        lost = self._shared.lost
        targets = self._targets(message)
        if not targets:
            lost["dead letter unroutable"] += 1
        for target in targets:
            if cycles(target.name, message):
                lost["dead letter cycle"] += 1
            # A quorum queue refuses only a publisher with confirms, and an at-most-once dead letter has none.
            elif not target.offer(message, refusable=not target.spec.quorum):
                lost["dead letter refused"] += 1

    def _deliver(self, message: StoredMessage, done: set[BrokerQueue]) -> bool:
        """Publish at least once; return True once every target queue has the message."""
        targets = self._targets(message)
        for target in targets:
            if target in done:
                continue
            if cycles(target.name, message):
                self._shared.lost["dead letter cycle"] += 1
                done.add(target)
            elif target.offer(message):
                done.add(target)
        return bool(targets) and done.issuperset(targets)

    def _retry_later(self, queue: BrokerQueue, entry: Entry, attempt: Callable[[], bool]) -> None:
        clock = self._shared.clock

        def again() -> None:
            if queue.closed:
                return
            if attempt():
                queue.pending -= 1
                queue.forget(entry)
            else:
                self._retry_later(queue, entry, attempt)
            self.bury_all()

        clock.at(clock.now + _RETRY_SECONDS, again)


def _at_least_once(queue: BrokerQueue) -> bool:
    """True for a quorum queue that refuses when full; RabbitMQ silently uses at-most-once for all others."""
    spec = queue.spec
    return (
        spec.quorum
        and spec.text("x-dead-letter-strategy") == "at-least-once"
        and spec.text("x-overflow") == "reject-publish"
    )
