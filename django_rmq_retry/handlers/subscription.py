"""Subscriptions: a handler joined with its queue and policy, and all subscriptions of one queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from decimal import Decimal
from itertools import combinations
from typing import Any, Literal
from uuid import UUID

from django_rmq_retry import forks
from django_rmq_retry.errors import ConfigurationError, NoKey
from django_rmq_retry.handlers.batch import Batch
from django_rmq_retry.messages.codecs import JSON, LIMITS, BodyLimits, Codec
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.texts import short
from django_rmq_retry.messages.tracebacks import place_of
from django_rmq_retry.policies.breaker import Breaker
from django_rmq_retry.policies.carriers import AckFirst, Carrier, Route
from django_rmq_retry.policies.policy import Policy, unbreakable
from django_rmq_retry.topology.declarations import QUARANTINE, Queue, check_name, matches

KEY_TYPES = (str, int, UUID, Decimal, date)
KEY_SEPARATOR = ":"

Ack = Literal["manual", "auto"]
Keys = Callable[[Delivery], str | Sequence[str]]
Fingerprint = Callable[[Delivery, BaseException], str]
MessageName = Callable[[Delivery], object]
"""Returns a value that identifies a message (``once``), or its ordering key (``order_by``)."""


def ordering_key_of(order_by: Callable[[Delivery], object], delivery: Delivery) -> str:
    """Return the key that ``order_by`` computes; NoKey unless it is a text, number, date or UUID, or several."""
    forked = forks.count
    try:
        value = order_by(delivery)
    except BaseException as broken:
        forks.end_since(forked, broken)
        raise NoKey(f"raised {type(broken).__name__}: {short(broken)}") from broken
    forks.end_since(forked)
    try:
        return _text(value)
    except NoKey:
        raise
    except Exception as broken:
        # A sender can cause this with deeply nested lists or numbers of too many digits, the project with its __str__.
        raise NoKey(f"returned a {type(value).__name__} that cannot be a text: {short(broken)}") from broken


def unordered(via: Carrier) -> str | None:
    """Return a sentence that explains why this carrier's retries cannot keep the order of keys, or None."""
    name = type(via).__name__
    if isinstance(via, AckFirst):
        return (
            f"order_by needs a carrier that loses no message, and {name} can: later ones would wait. Use via=Ladder()."
        )
    if not via.stamps:
        return (
            f"order_by needs retries that are copies, and {name} sends none: a message stays unacked, or its queue "
            "counts its returns. Use via=Ladder(), or StopTheLine() to keep the order of the whole queue."
        )
    return None


def _text(value: object) -> str:
    if type(value) is str and value:
        return value
    if isinstance(value, tuple | list) and value:
        return KEY_SEPARATOR.join(map(_text, value))
    text = "" if isinstance(value, bool) or not isinstance(value, KEY_TYPES) else str(value)
    if not text:
        raise NoKey(f"returned {_described(value)}, not a text, a whole number, a date or a UUID, or several of them")
    return text


def _described(value: object) -> str:
    empty = isinstance(value, str) and not value
    return "nothing" if value is None else "an empty text" if empty else f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The conditions on messages that a handler takes; without conditions, it takes all that no other handler takes."""

    type: str | None = None
    routing_key: str | None = None
    """A pattern like in a topic exchange: ``*`` is one word, ``#`` any number of words."""
    headers: Mapping[str, object] = field(default_factory=dict)

    @property
    def conditions(self) -> int:
        return (self.type is not None) + (self.routing_key is not None) + len(self.headers)

    def takes(self, delivery: Delivery) -> bool:
        if self.type is not None and delivery.type != self.type:
            return False
        if self.routing_key is not None and not matches(self.routing_key, delivery.routing_key):
            return False
        return all(delivery.headers.get(name) == value for name, value in self.headers.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """What ``@handler`` takes besides the queue, the policy and the parked queue, which the settings may complete."""

    match: Match = Match()
    codec: Codec = JSON
    keys: Keys | None = None
    """Returns the business keys of a message, by which operators find it."""
    fingerprint: Fingerprint | None = None
    """Returns the group of a failure, in place of the project-wide rule."""
    once: bool | MessageName = False
    """True to handle a message only once even if it is delivered twice; or a function that identifies the message."""
    formerly: tuple[str, ...] = ()
    """The handler's earlier names, the first one first: under that one its handled messages stay stored."""
    using: str = ""
    """The alias of the database in which the handler writes; empty for the default database."""
    order_by: MessageName | None = None
    """Returns the ordering key: a failed message blocks later messages with the same key."""
    rate: float | None = None
    """Limit on runs per second, for all processes together."""
    ack: Ack = "manual"
    """With ``auto`` the broker drops a message as it sends it."""
    timeout: float | None = None
    """Seconds after which a run is ended."""
    judged: Callable[[Any], Any] | None = None
    """Called with each finished attempt, also a successful first one; returns what is to be stored of it, or None."""
    in_loop: Callable[[Delivery], bool] | None = None
    """Tells of one message whether its run is a coroutine, if the handler has runs of both kinds."""
    breaker: Breaker | None = None
    """The conditions under which the handler pauses because a service that it needs is down."""
    batch: Batch | None = None
    """How many messages the handler takes in one call; None for a handler of single messages."""

    def written(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in fields(HandlerOptions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(HandlerOptions):
    """One handler with its queue, policy and options, in the form that the consumer uses."""

    name: str
    run: Callable[[Delivery], object]
    """Calls the handler with one message; one with ``batch``, with a batch of this message alone."""
    run_batch: Callable[[Sequence[Delivery]], object] | None = None
    queue: Queue
    policy: Policy
    park: str
    parked_definition: Queue | None = None
    """The queue ``park``, if the project defines it as a Queue."""
    limits: BodyLimits = LIMITS
    asynchronous: bool = False
    """True for a coroutine function: a consumer works on many of its messages at once."""
    route: Route = field(init=False, repr=False)
    gated: bool = field(init=False, repr=False)
    """True if gates are entered before each run."""
    place: str = field(init=False, repr=False)
    """The module and function of the handler, as they stand in a traceback."""

    def __post_init__(self) -> None:
        check_name("queue", self.park)
        if self.park == self.queue.name:
            raise ConfigurationError(f"Handler {self.name} parks into its own queue {self.park!r}; name another one.")
        ordered = self.policy.ordered or self.order_by is not None
        if ordered and not self.queue.single_active_consumer:
            object.__setattr__(self, "queue", self.queue.varied(single_active_consumer=True))
        if ordered and self.queue.type == "quorum" and self.queue.delivery_limit is None:
            raise ConfigurationError(
                f"Handler {self.name} keeps order, but queue {self.queue.name!r} has delivery_limit=None: RabbitMQ 3 "
                "then puts returned messages last, and RabbitMQ 4 dead-letters them after 20 returns. Omit it."
            )
        route = Route(work=self.queue, park=self.park, attempts=self.policy.attempts, waits=self.policy.waits)
        # Computed once, because each failure needs it.
        object.__setattr__(self, "route", route)
        gated = self.order_by is not None or self.rate is not None or self.breaker is not None
        object.__setattr__(self, "gated", gated)
        object.__setattr__(self, "place", place_of(self.run))
        refusal = unbreakable(self.policy) if self.breaker is not None else None
        refusal = refusal or (unordered(self.policy.via) if self.order_by else None) or self.policy.via.refusal(route)
        if self.queue.expired == "drop" and not self.policy.via.parks:
            refusal = (
                f"{type(self.policy.via).__name__} returns expired messages to their queue, so Queue(expired='drop') "
                "cannot drop them. Use via=Ladder(), or omit expired."
            )
        if self.once and self.policy.answers:
            refusal = (
                "Each call needs an answer, and once=… has none for a duplicate. Omit once, or use another policy."
            )
        refusal = self._untenable() or self._unbatchable() or refusal
        if refusal:
            raise ConfigurationError(f"Handler {self.name}: {refusal}")

    def runs_in_loop(self, delivery: Delivery) -> bool:
        """True if the run of this message is a coroutine, which is cancelled in the event loop at its timeout."""
        return self.asynchronous if self.in_loop is None else self.in_loop(delivery)

    @property
    def inbox_name(self) -> str:
        """The name under which handled messages are stored: the same for ever, also while two versions run at once."""
        return self.formerly[0] if self.formerly else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names that records of this handler may have."""
        return *self.formerly, self.name

    def _stops(self) -> str | None:
        """Return the reason why the consumer may stop consuming the queue for a while, or None."""
        if self.ack == "auto":
            return "ack='auto' stops consuming while too many messages wait in the process"
        if self.breaker is not None:
            return "breaker=… stops consuming while it is open"
        if self.policy.ordered:
            return f"{type(self.policy.written).__name__} stops consuming in a long wait"
        return None

    def _unbatchable(self) -> str | None:
        """Return a sentence on an option that does not work with ``batch``, or None."""
        if self.batch is None:
            return None
        if self.policy.answers:
            return f"{type(self.policy).__name__} answers each message, and a batch has one result. Omit batch."
        if self.policy.ordered:
            return (
                f"{type(self.policy).__name__} handles one message at a time, so a batch would never fill. Omit batch, "
                "or use order_by, which keeps the order of each key."
            )
        if self.match.conditions:
            return "batch=… needs a queue for this handler alone. Omit type, routing_key and headers."
        return None

    def _untenable(self) -> str | None:
        """Return a sentence on an option that does not work with a queue that ends with its consumer, or None."""
        queue, via = self.queue, self.policy.via
        if queue.auto_delete and (stops := self._stops()):
            return (
                f"{stops}, and queue {queue.name!r} with auto_delete=True would be deleted then. Use Broadcast, or "
                "exclusive=True."
            )
        if queue.lasting:
            return None
        if via.by_name:
            return (
                f"{type(via).__name__} sends retries back by the queue's name, and queue {queue.name!r} may be "
                "deleted by then. Use via=InPlace(), which keeps the message unacked."
            )
        if self.order_by is not None:
            return f"order_by keeps messages for queue {queue.name!r}, which is deleted with its consumer. Omit it."
        if self.once and queue.named_by_broker:
            return (
                "once=… lets one process handle a message, and Broadcast sends it to each. Omit once, or use a "
                "Queue that the processes share."
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkQueue:
    """One work queue and the handlers that share it."""

    queue: Queue
    park: str
    subscriptions: tuple[Subscription, ...]

    @property
    def auto_ack(self) -> bool:
        """True if the broker drops messages as it sends them (``ack="auto"``), so that they can be lost."""
        return self.subscriptions[0].ack == "auto"

    @property
    def batch(self) -> Batch | None:
        """The batches of its handler, which is then alone on the queue."""
        return self.subscriptions[0].batch

    @property
    def asynchronous(self) -> bool:
        """True if all its handlers are async, so that they run side by side."""
        return all(subscription.asynchronous for subscription in self.subscriptions)

    @property
    def ordered(self) -> bool:
        return any(subscription.policy.ordered for subscription in self.subscriptions)

    @property
    def keyed(self) -> bool:
        return any(subscription.order_by is not None for subscription in self.subscriptions)

    @property
    def quarantine(self) -> str | None:
        """The queue in which a message that may have killed its worker is attempted; None if there cannot be one.

        A classic queue does not count returns, an ordered queue must keep its order, and some carriers work only on
        one queue.
        """
        movable = all(subscription.policy.via.quarantines for subscription in self.subscriptions)
        movable = movable and not self.ordered and not self.keyed and not self.auto_ack
        return self.queue.name + QUARANTINE if movable and self.queue.type == "quorum" else None

    @property
    def in_place(self) -> bool:
        """True if a message must return to its position in the queue, not as a copy.

        A copy would break the order, reset the broker's counts that some carriers use, or be lost with a queue that
        ends with its consumer.
        """
        quarantines = all(subscription.policy.via.quarantines for subscription in self.subscriptions)
        return self.ordered or self.keyed or not quarantines or not self.queue.lasting

    @property
    def dispatches(self) -> bool:
        """True if the properties of a message decide which handler takes it."""
        return len(self.subscriptions) > 1 or self.subscriptions[0].match.conditions > 0

    def choose(self, delivery: Delivery) -> Subscription | None:
        for subscription in self.subscriptions:
            if subscription.match.takes(delivery):
                return subscription
        return None

    def presumed(self, delivery: Delivery) -> Subscription | None:
        """Return the handler that takes a message, even if the headers that decide it are unreadable."""
        try:
            return self.choose(delivery)
        except Exception:  # noqa: BLE001 - the headers may be the reason for which the message is given up
            return None if self.dispatches else self.subscriptions[0]


def work_queues_of(subscriptions: Sequence[Subscription]) -> tuple[WorkQueue, ...]:
    """Return the subscriptions grouped by queue, in the order in which the queues were first named."""
    shared: dict[str, list[Subscription]] = {}
    for subscription in subscriptions:
        shared.setdefault(subscription.queue.name, []).append(subscription)
    return tuple(_work_queue(group) for group in shared.values())


def _work_queue(group: list[Subscription]) -> WorkQueue:
    first = group[0]
    for other in group[1:]:
        _agree(first, other)
    catch_all = [subscription for subscription in group if not subscription.match.conditions]
    if len(catch_all) > 1:
        names = " and ".join(subscription.name for subscription in catch_all)
        raise ConfigurationError(
            f"Queue {first.queue.name!r}: {names} would both take every message. "
            "Give all but one a condition: type=…, routing_key=… or headers={…}."
        )
    for one, two in combinations(group, 2):
        if one.match == two.match:
            raise ConfigurationError(
                f"Handlers {one.name} and {two.name} take the same messages of queue {first.queue.name!r}, "
                "so the second would get none. Give them different conditions."
            )
    # The handler without a condition comes last, because it takes the messages that the others do not.
    ranked = sorted(group, key=lambda subscription: not subscription.match.conditions)
    return WorkQueue(queue=first.queue, park=first.park, subscriptions=tuple(ranked))


def _agree(first: Subscription, other: Subscription) -> None:
    if first.batch or other.batch:
        raise ConfigurationError(
            f"Handlers {first.name} and {other.name} share the queue {first.queue.name!r}, but a handler with batch=… "
            "needs a queue for itself. Use two queues."
        )
    for what, one, two in (
        ("queue arguments", first.queue, other.queue),
        ("parked queue", first.park, other.park),
        ("order", first.policy.ordered, other.policy.ordered),
        ("ack", first.ack, other.ack),
        ("kind of carrier", type(first.policy.via).__name__, type(other.policy.via).__name__),
    ):
        if one != two:
            raise ConfigurationError(
                f"Handlers {first.name} and {other.name} share the queue {first.queue.name!r} "
                f"but not its {what}: {one!r} against {two!r}. Use the same for both, or use two queues."
            )
