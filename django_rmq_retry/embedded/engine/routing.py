"""Exchanges, the routing of messages through them, and dead-lettering with ``x-death`` and cycles."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Union

from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import Death, Message, with_table, without_expiration
from django_rmq_retry.embedded.engine.queue import Queue, Source, Surroundings
from django_rmq_retry.embedded.engine.queue_arguments import identical, same, shown_value, type_name
from django_rmq_retry.embedded.engine.refusals import Refused
from django_rmq_retry.embedded.engine.store import Store
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers
from django_rmq_retry.topology.declarations import matches

TYPES = ("direct", "fanout", "topic", "headers")
_MATCHES = ("all", "any", "all-with-x", "any-with-x")
_REMEMBERED = 10_000

Destination = Union[Queue, "Exchange"]

_LENGTH = struct.Struct(">I")
_LONG = struct.Struct(">q")
_STAMP = struct.Struct(">Q")
_FIRST = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
_LAST = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")

# Seconds until an at-least-once dead letter that no queue accepted is retried (rabbit_fifo_dlx_worker).
_AGAIN = 180.0


class Binding:
    """One binding of an exchange to a queue or to another exchange."""

    __slots__ = ("arguments", "destination", "key", "source")

    def __init__(self, source: "Exchange", destination: Destination, key: str, arguments: Mapping[str, object]) -> None:
        self.source = source
        self.destination = destination
        self.key = key
        self.arguments = arguments

    def like(self, other: "Binding") -> bool:
        return (
            self.destination is other.destination
            and self.key == other.key
            and identical(dict(self.arguments), dict(other.arguments))
        )


class Exchange:
    """An exchange and its bindings."""

    __slots__ = (
        "_found", "alternate", "arguments", "auto_delete", "bindings", "by_key", "durable", "internal", "name", "plain",
        "type",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.type = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments or {}
        alternate = self.arguments.get("alternate-exchange")
        self.alternate = alternate if isinstance(alternate, str) else None
        self.bindings: dict[Binding, None] = {}
        self.by_key: dict[str, list[Binding]] = {}
        self.plain = self.alternate is None
        """True if messages go straight to queues: no alternate exchange and no further exchange."""
        self._found: dict[str, tuple[Destination, ...]] = {}

    def add(self, binding: Binding) -> bool:
        """Add a binding; return False if an equal one exists."""
        if any(one.like(binding) for one in self.by_key.get(binding.key, ())):
            return False
        self.bindings[binding] = None
        self.by_key.setdefault(binding.key, []).append(binding)
        self._changed()
        return True

    def remove(self, binding: Binding) -> None:
        del self.bindings[binding]
        bound = self.by_key[binding.key]
        bound.remove(binding)
        if not bound:
            del self.by_key[binding.key]
        self._changed()

    def find(self, binding: Binding) -> Binding | None:
        """Return the equal binding, if one exists."""
        return next((one for one in self.by_key.get(binding.key, ()) if one.like(binding)), None)

    def route(self, message: Message) -> Sequence[Destination]:
        """Return every destination of the message once."""
        if self.type == "headers":
            return _once(one for one in self.bindings if headers_match(one.arguments, message))
        if not message.more:
            return self._by_key(message.key)
        return tuple(dict.fromkeys(chain.from_iterable(map(self._by_key, message.keys))))

    def _by_key(self, key: str) -> tuple[Destination, ...]:
        if self.type == "fanout":
            key = ""
        queues = self._found.get(key)
        if queues is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            queues = self._found[key] = self._match(key)
        return queues

    def _match(self, key: str) -> tuple[Destination, ...]:
        if self.type == "fanout":
            return _once(self.bindings)
        if self.type == "direct":
            return _once(self.by_key.get(key, ()))
        return _once(chain.from_iterable(bound for pattern, bound in self.by_key.items() if matches(pattern, key)))

    def _changed(self) -> None:
        self._found.clear()
        self.plain = self.alternate is None and not any(isinstance(one.destination, Exchange) for one in self.bindings)


def _once(bindings: Iterable[Binding]) -> tuple[Destination, ...]:
    return tuple(dict.fromkeys(one.destination for one in bindings))


def check_match(arguments: Mapping[str, object]) -> None:
    """Refuse a binding to a headers exchange with an invalid x-match."""
    if "x-match" not in arguments:
        return
    mode = arguments["x-match"]
    if not isinstance(mode, str):
        what = f"type {type_name(mode)} (value {shown_value(mode)}); expected longstr"
        raise Refused(406, f"Invalid x-match field {what}")
    if mode not in _MATCHES:
        what = f'value <<"{mode}">>; expected all, any, all-with-x, or any-with-x'
        raise Refused(406, f"Invalid x-match field {what}")


def headers_match(asked: Mapping[str, object], message: Message) -> bool:
    """True if a headers exchange routes the message by a binding's arguments."""
    mode = asked.get("x-match", "all")
    all_keys = mode in ("all-with-x", "any-with-x")
    wanted = {key: value for key, value in asked.items() if key != "x-match" and (all_keys or not key.startswith("x-"))}
    headers = message.headers
    hits = (_hit(headers, key, value) for key, value in wanted.items())
    return any(hits) if mode in ("any", "any-with-x") else all(hits)


def _hit(headers: Headers, key: str, value: object) -> bool:
    """Compare one header; a binding without a value requires only that the header exists."""
    if key not in headers:
        return False
    try:
        return value is None or same(value, headers[key])
    except UndecodableHeaders:
        return False


class Router:
    """The exchanges and queues of a virtual host. The default exchange "" routes to each queue by its name."""

    def __init__(self, store: Store) -> None:
        self.queues: dict[str, Queue] = {}
        self.default = Exchange("")
        self.exchanges: dict[str, Exchange] = {"": self.default}
        self._store = store
        self._into: dict[Destination, dict[Binding, None]] = {}
        for kind in TYPES:
            self.exchanges[f"amq.{kind}"] = Exchange(f"amq.{kind}", kind)
        self.exchanges["amq.match"] = Exchange("amq.match", "headers")
        self.exchanges["amq.rabbitmq.trace"] = Exchange("amq.rabbitmq.trace", "topic", internal=True)

    def route(self, exchange: Exchange, message: Message) -> Sequence[Queue]:
        """Return every queue that gets the message, once."""
        if exchange is self.default and not message.more:
            queue = self.queues.get(message.key)
            return () if queue is None else (queue,)
        if exchange.plain and exchange is not self.default:
            return [one for one in exchange.route(message) if isinstance(one, Queue)]
        return self._walk(exchange, message)

    def bind(self, binding: Binding) -> None:
        if binding.source.add(binding):
            self._into.setdefault(binding.destination, {})[binding] = None
            if _lasting(binding):
                _tell(self._store.bound, binding)

    def unbind(self, binding: Binding) -> None:
        equal = binding.source.find(binding)
        if equal is not None:
            self._remove(equal)

    def remove_queue(self, queue: Queue) -> None:
        del self.queues[queue.name]
        if queue.spec.kept:
            self._store.queue_deleted(queue.name)
        self._cut_off(queue)

    def remove_exchange(self, exchange: Exchange) -> None:
        if self.exchanges.pop(exchange.name, None) is None:
            return
        if exchange.durable:
            self._store.exchange_deleted(exchange.name)
        for binding in list(exchange.bindings):
            exchange.remove(binding)
            self._into[binding.destination].pop(binding, None)
        self._cut_off(exchange)

    def _cut_off(self, destination: Destination) -> None:
        for binding in list(self._into.pop(destination, ())):
            binding.source.remove(binding)
            self._source_left(binding.source)

    def _remove(self, binding: Binding) -> None:
        binding.source.remove(binding)
        self._into[binding.destination].pop(binding, None)
        if _lasting(binding):
            _tell(self._store.unbound, binding)
        self._source_left(binding.source)

    def _source_left(self, exchange: Exchange) -> None:
        if exchange.auto_delete and not exchange.bindings:
            self.remove_exchange(exchange)

    def _walk(self, start: Exchange, message: Message) -> list[Queue]:
        seen = {start}
        ahead: list[Exchange] = [start]
        queues: dict[Queue, None] = {}
        while ahead:
            exchange = ahead.pop()
            for destination in self._out_of(exchange, message):
                if isinstance(destination, Queue):
                    queues[destination] = None
                elif destination not in seen:
                    seen.add(destination)
                    ahead.append(destination)
        return list(queues)

    def _out_of(self, exchange: Exchange, message: Message) -> Sequence[Destination]:
        if exchange is self.default:
            return [self.queues[key] for key in message.keys if key in self.queues]
        queues = exchange.route(message)
        if not queues and exchange.alternate is not None:
            alternate = self.exchanges.get(exchange.alternate)
            return () if alternate is None else (alternate,)
        return queues


def _lasting(binding: Binding) -> bool:
    destination = binding.destination
    return binding.source.durable and (destination.spec.kept if isinstance(destination, Queue) else destination.durable)


def _tell(mode: Callable[..., None], binding: Binding) -> None:
    mode(
        binding.source.name,
        binding.destination.name,
        binding.key,
        to_exchange=isinstance(binding.destination, Exchange),
        arguments=binding.arguments,
    )


def letter(
    entry: Entry, behaviour: Behaviour, *, queue: str, reason: str, time: int, exchange: str, key: str | None
) -> Message:
    """Return the message as it is published to its dead-letter exchange."""
    old = entry.message
    death = Death(
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
    new = Message(exchange, old.key if key is None else key, with_table(raw, drop=drop, add=add), old.body)
    new.persistent, new.priority = old.persistent, old.priority
    new.deaths = deaths
    if key is None:
        new.more, new.bcc = old.more, old.bcc
    new.count = _carried(entry, behaviour)
    return new


def cycles(queue: str, message: Message) -> bool:
    """True if the message has passed this queue before, without a rejection by a consumer since then."""
    if message.deaths[0].reason == "rejected":
        return False
    for at, death in enumerate(message.deaths):
        if death.queue == queue:
            return all(one.reason != "rejected" for one in message.deaths[: at + 1])
    return False


def _recorded(earlier: tuple[Death, ...], death: Death) -> tuple[Death, ...]:
    """Put one more death in front; a second death of the same queue and reason raises its count."""
    others = tuple(one for one in earlier if (one.queue, one.reason) != (death.queue, death.reason))
    for one in earlier:
        if (one.queue, one.reason) == (death.queue, death.reason):
            again = replace(one, count=one.count + 1)
            return (again, *others)
    return (death, *others)


def _carried(entry: Entry, behaviour: Behaviour) -> int | None:
    """Return the failed deliveries so far: 4.3 starts each queue's count with them, 4.0 adds them here."""
    before = 0 if behaviour.carried_count == "counted" else entry.message.count or 0
    return before + entry.count - entry.unkept or entry.message.count


def _encoded(deaths: tuple[Death, ...]) -> bytes:
    tables = b"".join(b"F" + _prefixed(_table(death)) for death in deaths)
    return b"\x07x-deathA" + _prefixed(tables)


def _table(death: Death) -> bytes:
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


def _marks(names: tuple[str, str, str], death: Death) -> bytes:
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
    """Empties `around.graves` one message at a time, so that a chain of deaths needs no recursion."""

    def __init__(self, around: Surroundings, router: Router) -> None:
        self._around = around
        self._router = router

    def bury_all(self) -> None:
        graves = self._around.graves
        while graves:
            queue, entry, reason = graves.popleft()
            self._bury(queue, entry, reason)

    def _bury(self, queue: Source, entry: Entry, reason: str) -> None:
        name = queue.spec.text("x-dead-letter-exchange")
        if name is None:
            self._around.lost[reason] += 1
            queue.forget(entry)
            return
        message = self._letter(queue, entry, reason, name)
        if not _at_least_once(queue):
            self._send(message, name)
            queue.forget(entry)
            return
        done: set[Queue] = set()
        if self._deliver(message, name, done):
            queue.forget(entry)
        else:
            queue.pending += 1
            queue.note(entry, "dying", reason)
            self._retry_later(queue, entry, lambda: self._deliver(message, name, done))

    def _letter(self, queue: Source, entry: Entry, reason: str, exchange: str) -> Message:
        clock = self._around.clock
        return letter(
            entry,
            self._around.behaviour,
            queue=queue.name,
            reason=reason,
            time=int(clock.now + clock.epoch),
            exchange=exchange,
            key=queue.spec.text("x-dead-letter-routing-key"),
        )

    def _send(self, message: Message, name: str) -> None:
        """Publish at most once: a message that no queue accepts is lost."""
        lost = self._around.lost
        exchange = self._router.exchanges.get(name)
        targets = () if exchange is None else self._router.route(exchange, message)
        if not targets:
            lost["dead letter unroutable"] += 1
        for target in targets:
            if cycles(target.name, message):
                lost["dead letter cycle"] += 1
            # A quorum queue refuses only a publisher with confirms, and an at-most-once dead letter has none.
            elif not target.offer(message, refusable=not target.spec.quorum):
                lost["dead letter refused"] += 1

    def _deliver(self, message: Message, name: str, done: set[Queue]) -> bool:
        """Publish at least once; return True once every target queue has the message."""
        exchange = self._router.exchanges.get(name)
        targets = () if exchange is None else self._router.route(exchange, message)
        for target in targets:
            if target in done:
                continue
            if cycles(target.name, message):
                self._around.lost["dead letter cycle"] += 1
                done.add(target)
            elif target.offer(message):
                done.add(target)
        return bool(targets) and done.issuperset(targets)

    def _retry_later(self, queue: Source, entry: Entry, attempt: Callable[[], bool]) -> None:
        clock = self._around.clock

        def again() -> None:
            if queue.closed:
                return
            if attempt():
                queue.pending -= 1
                queue.forget(entry)
            else:
                self._retry_later(queue, entry, attempt)
            self.bury_all()

        clock.at(clock.now + _AGAIN, again)


def _at_least_once(queue: Source) -> bool:
    """True for a quorum queue that refuses when full; RabbitMQ silently uses at-most-once for all others."""
    spec = queue.spec
    return (
        spec.quorum
        and spec.text("x-dead-letter-strategy") == "at-least-once"
        and spec.text("x-overflow") == "reject-publish"
    )
