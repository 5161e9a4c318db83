"""The registry of handlers, found in each installed app's ``handlers.py``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from django.core.signals import setting_changed
from django.utils.module_loading import autodiscover_modules

from django_rmq_retry.conf import NAME, settings
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers.layout import layout
from django_rmq_retry.handlers.subscription import HandlerOptions, Subscription, WorkQueue, work_queues_of
from django_rmq_retry.handlers.typed import codec_for
from django_rmq_retry.messages.codecs import LIMITS, BodyLimits
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.policies.carriers import InPlace, Ladder
from django_rmq_retry.policies.policy import AutoAck, Policy, RetryThenPark
from django_rmq_retry.topology.declarations import Queue, Topology

PARKED_SUFFIX = ".parked"
_subscriptions: dict[str, Subscription] = {}
"""A cache, filled on first use and cleared when a handler or the settings change."""
version = object()
"""A new object after each change, so that values derived from a subscription are computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A handler as its decorator defines it; missing options come from the settings and from other handlers."""

    name: str
    run: Callable[[Delivery], object]
    queue: Queue | str
    policy: Policy | None = None
    park: Queue | str | None = None
    options: HandlerOptions = HandlerOptions()
    run_batch: Callable[[Sequence[Delivery]], object] | None = None
    asynchronous: bool = False
    function: Callable[..., object] | None = None
    """The function as it was decorated; its annotation may name the type of its messages."""
    module: str = ""
    execution: object = field(default=None, compare=False, repr=False)
    """An object that stays the same during one execution of a module and changes when the module is reloaded."""

    @property
    def queue_name(self) -> str:
        return self.queue.name if isinstance(self.queue, Queue) else self.queue

    def joined(self, queue: Queue, policy: Policy, limits: BodyLimits = LIMITS) -> Subscription:
        policy = AutoAck() if self.options.ack == "auto" else self.policy or policy
        if not queue.lasting and isinstance(policy, RetryThenPark) and policy.via == Ladder():
            # The default carrier was not chosen by the project, and its waiting queues cannot send a retry back to a
            # queue that ends with its consumer.
            policy = replace(policy, via=InPlace())
        return Subscription(
            name=self.name,
            run=self.run,
            run_batch=self.run_batch,
            queue=queue,
            policy=policy,
            park=(self.park.name if isinstance(self.park, Queue) else self.park)
            if self.park
            else queue.name + PARKED_SUFFIX,
            parked_definition=self.park if isinstance(self.park, Queue) else None,
            limits=limits,
            asynchronous=self.asynchronous,
            **self.options.written(),
        )


_registrations: dict[str, Registration] = {}


def _changed() -> None:
    global version  # noqa: PLW0603 - there is one registry
    _subscriptions.clear()
    version = object()


def autodiscover() -> None:
    """Import each installed app's ``handlers.py``."""
    autodiscover_modules("handlers")


def register(registration: Registration) -> None:
    """Add a handler. Names are unique; a module that is reloaded replaces all its handlers."""
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
    _refuse_shared_name(registration)
    _registrations[registration.name] = registration
    _changed()


def unregister(names: Iterable[str]) -> None:
    """Remove these handlers, as far as they exist."""
    for name in names:
        _registrations.pop(name, None)
    _changed()


def queue_named(name: str) -> Queue:
    """Return the queue that a bare name means: one that a handler or TOPOLOGY defines, or one by the settings."""
    written = [registration.queue for registration in _registrations.values()]
    for queue in (*written, *settings().topology):
        if isinstance(queue, Queue) and queue.name == name:
            return queue
    return Queue(name, type=settings().queue_type)


def _refuse_shared_name(registration: Registration) -> None:
    """Raise ConfigurationError if two handlers would take each other's handled messages for their own."""
    for other in _registrations.values():
        if other.name == registration.name:
            continue
        if both := set(other.options.formerly) & set(registration.options.formerly):
            raise ConfigurationError(
                f"Both {other.name} and {registration.name} have formerly={min(both)!r}. One of them had it."
            )
        if registration.name in other.options.formerly or other.name in registration.options.formerly:
            living = registration.name if registration.name in other.options.formerly else other.name
            raise ConfigurationError(
                f"formerly={living!r} names a handler that still exists. Give it to the handler that took its place, "
                "and remove the old one."
            )


def subscription(name: str) -> Subscription:
    joined = _subscriptions.get(name)
    if joined is None:
        registration = _registrations[name]
        joined = registration.joined(_queue(registration), settings().policy, settings().limits)
        if registration.function is not None:
            # Only now: the type may be defined below the handler.
            codec = codec_for(registration.function, joined.codec, name, batch=joined.batch is not None)
            joined = joined if codec is joined.codec else replace(joined, codec=codec)
        _subscriptions[name] = joined
    return joined


def subscriptions() -> tuple[Subscription, ...]:
    return tuple(subscription(name) for name in _registrations)


def work_queues() -> tuple[WorkQueue, ...]:
    return work_queues_of(subscriptions())


def topology() -> Topology:
    """Return the topology to declare: that of the handlers, and the additions of the setting TOPOLOGY."""
    joined = work_queues()
    work = {work_queue.queue.name for work_queue in joined}
    # A work queue that TOPOLOGY defines is already in the handlers' work queues, with its dead-letter target.
    extra = [one for one in settings().topology if not (isinstance(one, Queue) and one.name in work)]
    return layout(joined, extra=extra)


def registrations() -> Mapping[str, Registration]:
    return dict(_registrations)


@contextmanager
def isolated() -> Iterator[None]:
    """Empty the registry for a test, and restore its handlers afterwards."""
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
    """Return the queue of a handler; if any handler that shares it has ``order_by``, with a single active consumer."""
    queue = _written(registration)
    shared = [other for other in _registrations.values() if other.queue_name == queue.name]
    if queue.single_active_consumer or not any(other.options.order_by for other in shared):
        return queue
    return queue.varied(single_active_consumer=True)


def _written(registration: Registration) -> Queue:
    return registration.queue if isinstance(registration.queue, Queue) else queue_named(registration.queue)


def _setting_changed(*, setting: str, **_: object) -> None:
    if setting == NAME:
        _changed()


setting_changed.connect(_setting_changed, dispatch_uid="django_rmq_retry.handlers.registry")
