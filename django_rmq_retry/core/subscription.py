"""A handler, its queue and its policy, joined; and the subscriptions that share one queue."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from django_rmq_retry.core.breaking import Breaker, unbreakable
from django_rmq_retry.core.carriers import Route
from django_rmq_retry.core.codec import JSON, Codec
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.keying import unordered
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.policy import Policy
from django_rmq_retry.core.topology import Queue, check_name, matches

SUSPECTS = ".suspects"
Keys = Callable[[Delivery], str | Sequence[str]]
Fingerprint = Callable[[Delivery, BaseException], str]
Named = Callable[[Delivery], object]
"""Of a message what names it, or the key whose order counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which messages of a queue a handler takes; without a condition, all that no other handler takes."""

    type: str | None = None
    routing_key: str | None = None
    """As in a topic exchange: ``*`` is one word, ``#`` any number of words."""
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
class Subscription:
    """What the runtime needs to know of one handler."""

    name: str
    run: Callable[[Delivery], object]
    queue: Queue
    policy: Policy
    park: str
    match: Match = Match()
    codec: Codec = JSON
    keys: Keys | None = None
    """The business keys of a message, by which people find it."""
    fingerprint: Fingerprint | None = None
    """The handler's own way to say which failures have one cause."""
    once: bool | Named = False
    """Whether it runs once for each message, whatever is delivered twice; or what names the message."""
    using: str = ""
    """The database in which the handler writes, of those that the project has; the default one where it is empty."""
    order_by: Named | None = None
    """The key within which a message that has failed holds those after it."""
    rate: float | None = None
    """Runs per second, of all processes together."""
    breaker: Breaker | None = None
    """When to stop for a while because what the handler needs is down."""
    route: Route = field(init=False, repr=False)
    gated: bool = field(init=False, repr=False)
    """Whether somebody is to be asked before each run."""

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
                "then puts what comes back behind the rest, and RabbitMQ 4 gives it up after 20 returns. Leave it out."
            )
        route = Route(work=self.queue, park=self.park, attempts=self.policy.attempts, backoffs=self.policy.backoffs)
        # Made once: it is asked for at every failure.
        object.__setattr__(self, "route", route)
        gated = self.order_by is not None or self.rate is not None or self.breaker is not None
        object.__setattr__(self, "gated", gated)
        refusal = unbreakable(self.policy) if self.breaker is not None else None
        refusal = refusal or (unordered(self.policy.via) if self.order_by else None) or self.policy.via.refusal(route)
        if self.once and self.policy.answers:
            refusal = "Each call waits for an answer, and once=… has none for a second one. Leave it out, or OneShot."
        if refusal:
            raise ConfigurationError(f"Handler {self.name}: {refusal}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """One work queue and the handlers that share it."""

    queue: Queue
    park: str
    subscriptions: tuple[Subscription, ...]

    @property
    def ordered(self) -> bool:
        return any(subscription.policy.ordered for subscription in self.subscriptions)

    @property
    def keyed(self) -> bool:
        """Whether some of its messages are kept in order within a key."""
        return any(subscription.order_by is not None for subscription in self.subscriptions)

    @property
    def suspects(self) -> str | None:
        """The queue in which what may have stopped a worker is tried alone; None where it cannot be told or moved.

        A classic queue counts no returns, a line must keep its order, and some carriers work on one queue only.
        """
        movable = all(subscription.policy.via.laned for subscription in self.subscriptions)
        movable = movable and not self.ordered and not self.keyed
        return self.queue.name + SUSPECTS if movable and self.queue.type == "quorum" else None

    @property
    def in_place(self) -> bool:
        """Whether what goes back must go where it was, or is counted by a queue that a copy would mislead."""
        laned = all(subscription.policy.via.laned for subscription in self.subscriptions)
        return self.ordered or self.keyed or not laned

    @property
    def dispatches(self) -> bool:
        """Whether a message must be looked at before it is known which handler takes it."""
        return len(self.subscriptions) > 1 or self.subscriptions[0].match.conditions > 0

    def choose(self, delivery: Delivery) -> Subscription | None:
        for subscription in self.subscriptions:
            if subscription.match.takes(delivery):
                return subscription
        return None


def intakes(subscriptions: Sequence[Subscription]) -> tuple[Intake, ...]:
    """The subscriptions by queue, in the order in which the queues were first named."""
    shared: dict[str, list[Subscription]] = {}
    for subscription in subscriptions:
        shared.setdefault(subscription.queue.name, []).append(subscription)
    return tuple(_intake(group) for group in shared.values())


def _intake(group: list[Subscription]) -> Intake:
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
                f"Handlers {one.name} and {two.name} ask for the same messages of queue {first.queue.name!r}, "
                "so the second would get none. Give them different conditions."
            )
    # One without a condition takes the rest, wherever it stands.
    ranked = sorted(group, key=lambda subscription: not subscription.match.conditions)
    return Intake(queue=first.queue, park=first.park, subscriptions=tuple(ranked))


def _agree(first: Subscription, other: Subscription) -> None:
    for what, one, two in (
        ("queue arguments", first.queue, other.queue),
        ("parked queue", first.park, other.park),
        ("order", first.policy.ordered, other.policy.ordered),
        ("kind of carrier", type(first.policy.via).__name__, type(other.policy.via).__name__),
    ):
        if one != two:
            raise ConfigurationError(
                f"Handlers {first.name} and {other.name} share the queue {first.queue.name!r} "
                f"but not its {what}: {one!r} against {two!r}. Write the same for both, or use two queues."
            )
