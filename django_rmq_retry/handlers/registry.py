"""The registry of handlers, found in each installed app's ``handlers.py``."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from django.core.signals import setting_changed
from django.utils.module_loading import autodiscover_modules

from django_rmq_retry.conf import NAME, settings
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import subscription as joining
from django_rmq_retry.handlers.layout import layout
from django_rmq_retry.handlers.subscription import Ack, Fingerprint, Intake, Keys, Match, Named, Subscription
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.policies.breaker import Breaker
from django_rmq_retry.policies.carriers import InPlace, Ladder
from django_rmq_retry.policies.policy import Policy, RetryThenPark, Unacked
from django_rmq_retry.topology.declarations import Topology
from django_rmq_retry.topology.queues import Queue

PARKED = ".parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A handler as it was written down; what it leaves open is filled in from the settings and from other handlers."""

    name: str
    run: Callable[[Delivery], object]
    queue: Queue | str
    policy: Policy | None = None
    park: Queue | str | None = None
    match: Match = Match()
    codec: Codec = JSON
    keys: Keys | None = None
    fingerprint: Fingerprint | None = None
    once: bool | Named = False
    using: str = ""
    order_by: Named | None = None
    rate: float | None = None
    breaker: Breaker | None = None
    ack: Ack = "manual"
    timeout: float | None = None
    asynchronous: bool = False
    module: str = ""
    execution: object = field(default=None, compare=False, repr=False)
    """What is one and the same while a module is executed, and another when it is reloaded."""

    @property
    def queue_name(self) -> str:
        return self.queue.name if isinstance(self.queue, Queue) else self.queue

    def joined(self, queue: Queue, policy: Policy) -> Subscription:
        policy = Unacked() if self.ack == "auto" else self.policy or policy
        if not queue.lasting and isinstance(policy, RetryThenPark) and policy.via == Ladder():
            # What nobody wrote out: no waiting queue can send a retry back to a queue that ends with its consumer.
            policy = replace(policy, via=InPlace())
        return Subscription(
            name=self.name,
            run=self.run,
            queue=queue,
            policy=policy,
            park=(self.park.name if isinstance(self.park, Queue) else self.park) if self.park else queue.name + PARKED,
            parked=self.park if isinstance(self.park, Queue) else None,
            match=self.match,
            codec=self.codec,
            keys=self.keys,
            fingerprint=self.fingerprint,
            once=self.once,
            using=self.using,
            order_by=self.order_by,
            rate=self.rate,
            breaker=self.breaker,
            ack=self.ack,
            timeout=self.timeout,
            asynchronous=self.asynchronous,
        )


_registrations: dict[str, Registration] = {}
_subscriptions: dict[str, Subscription] = {}
"""Made when first asked for, forgotten when a handler or the settings change."""
version = object()
"""Another object after each change: what was derived from a subscription is then derived anew."""


def _changed() -> None:
    global version  # noqa: PLW0603 - there is one registry
    _subscriptions.clear()
    version = object()


def autodiscover() -> None:
    """Import each installed app's ``handlers.py``."""
    autodiscover_modules("handlers")


def register(registration: Registration) -> None:
    """Add a handler. A name stands for one handler; a module that is reloaded replaces all it had."""
    module, execution = registration.module, registration.execution
    for name, known in list(_registrations.items()):
        if known.module == module and known.execution is not execution:
            del _registrations[name]
    known_one = _registrations.get(registration.name)
    if known_one is not None and execution is not None:
        raise ConfigurationError(
            f"Two handlers have the name {registration.name!r}, for the queues {known_one.queue_name!r} and "
            f"{registration.queue_name!r}. Rename one function, or give one of them name='…'."
        )
    _registrations[registration.name] = registration
    _changed()


def subscription(name: str) -> Subscription:
    """The handler of this name, joined with its queue and policy."""
    found = _subscriptions.get(name)
    if found is None:
        registration = _registrations[name]
        found = _subscriptions[name] = registration.joined(_queue(registration), settings().policy)
    return found


def subscriptions() -> tuple[Subscription, ...]:
    """All handlers, in the order in which they were found."""
    return tuple(subscription(name) for name in _registrations)


def intakes() -> tuple[Intake, ...]:
    """The work queues, each with the handlers that share it."""
    return joining.intakes(subscriptions())


def topology() -> Topology:
    """Everything to declare: of the handlers, and what the settings add."""
    found = intakes()
    work = {intake.queue.name for intake in found}
    # A work queue that TOPOLOGY writes out is already in its intake, with its dead-letter target.
    extra = [one for one in settings().topology if not (isinstance(one, Queue) and one.name in work)]
    return layout(found, extra=extra)


def registrations() -> Mapping[str, Registration]:
    """The handlers as they were written down, by name."""
    return dict(_registrations)


@contextmanager
def isolated() -> Iterator[None]:
    """For tests: no handlers at first, and afterwards those of before."""
    kept = dict(_registrations)
    _registrations.clear()
    _changed()
    try:
        yield
    finally:
        _registrations.clear()
        _registrations.update(kept)
        _changed()


def _queue(registration: Registration) -> Queue:
    """Of all that share a queue, one that keeps an order decides how it is consumed."""
    queue = _written(registration)
    shared = [other for other in _registrations.values() if other.queue_name == queue.name]
    if queue.single_active_consumer or not any(other.order_by for other in shared):
        return queue
    return queue.varied(single_active_consumer=True)


def _written(registration: Registration) -> Queue:
    """A queue given by its name is the one that another handler or the settings write out."""
    if isinstance(registration.queue, Queue):
        return registration.queue
    written = [other.queue for other in _registrations.values()]
    for queue in (*written, *settings().topology):
        if isinstance(queue, Queue) and queue.name == registration.queue:
            return queue
    return Queue(registration.queue, type=settings().queue_type)


def _setting_changed(*, setting: str, **_: object) -> None:
    if setting == NAME:
        _changed()


setting_changed.connect(_setting_changed, dispatch_uid="django_rmq_retry.handlers.registry")
