"""Checks of the settings and of each handler with its policy and carrier."""

from collections.abc import Iterable, Iterator, Sequence

from django.conf import settings as project
from django.core.checks import CheckMessage, register
from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry import conf, registry
from django_rmq_retry.checks.saying import TAG, error, joined, problem, warning, with_settings
from django_rmq_retry.conf import Settings
from django_rmq_retry.core.carriers import AckFirst, Republish, Requeue, WaitQueue
from django_rmq_retry.core.errors import ConfigurationError, TopologyConflict
from django_rmq_retry.core.subscription import Intake, Subscription

LONG = 60
"""Seconds of waiting in hand that are worth a word."""


@register(TAG)
def check_settings(*, app_configs: Sequence[object] | None, **_: object) -> list[CheckMessage]:  # noqa: ARG001
    try:
        settings = conf.settings()
    except ImproperlyConfigured as wrong:
        return [error("E001", str(wrong), hint="Correct RMQ_RETRY in the settings file.")]
    return [
        warning(
            "W011",
            f"RMQ_RETRY['REPLY_TO'] contains {pattern!r}: whoever may publish can have answers sent to any queue.",
            hint="Name the queues of the callers, as ['amq.rabbitmq.reply-to.*', 'bank.answers.*'].",
        )
        for pattern in settings.reply_to
        if not pattern.strip("*?")
    ]


@register(TAG)
@with_settings
def check_joining(settings: Settings) -> Iterator[CheckMessage]:
    """Each handler by itself, then those of one queue, then all together."""
    wrong = [(name, said) for name in registry.registrations() if (said := problem(name))]
    for name, said in wrong:
        yield error("E002", said, hint="Correct the arguments of @handler, or RMQ_RETRY['POLICY'].", at=name)
    if wrong:
        return
    try:
        intakes = registry.intakes()
    except ConfigurationError as disagreement:
        yield error("E003", str(disagreement), hint="What belongs to a queue is the same for all its handlers.")
        return
    try:
        registry.topology()
    except TopologyConflict as conflict:
        yield error("E004", str(conflict), hint="Handlers and RMQ_RETRY['TOPOLOGY'] describe one topology.")
    except ConfigurationError as disagreement:
        yield error("E003", str(disagreement), hint="What belongs to a queue is the same for all its handlers.")
    yield from _idle(settings, intakes)


@register(TAG)
@with_settings
def check_policies(settings: Settings) -> Iterator[CheckMessage]:  # noqa: ARG001
    subscriptions = [registry.subscription(name) for name in joined()]
    yield from _wait_in_one_line(subscriptions)
    for subscription in subscriptions:
        for check in (_acks_first, _waits_in_line, _goes_round, _holds_too_long, _loses_order):
            yield from check(subscription)


def _idle(settings: Settings, intakes: Sequence[Intake]) -> Iterable[CheckMessage]:
    in_hand = sum(1 if intake.ordered else settings.prefetch for intake in intakes)
    said = "THREADS" in getattr(project, conf.NAME, {})
    if said and intakes and settings.threads > in_hand:
        yield warning(
            "W012",
            f"RMQ_RETRY['THREADS'] is {settings.threads}, but at most {in_hand} messages of all queues are in hand at "
            "once: some threads never work.",
            hint="Raise RMQ_RETRY['PREFETCH'], or lower THREADS.",
        )


def _acks_first(subscription: Subscription) -> Iterable[CheckMessage]:
    if isinstance(subscription.policy.via, AckFirst):
        yield warning(
            "W001",
            "AckFirst acknowledges a message before its copy is stored: what dies between the two is lost.",
            hint="Use via=Republish(), which may double and never loses, or the default, via=Ladder().",
            at=subscription.name,
        )


def _waits_in_line(subscription: Subscription) -> Iterable[CheckMessage]:
    mixed = len(_waits(subscription)) > 1 or any(backoff.spread for backoff in subscription.policy.backoffs)
    if mixed and isinstance(subscription.policy.via, WaitQueue):
        yield warning(
            "W004",
            "WaitQueue holds waits of different lengths in one queue: a long one keeps shorter ones behind it waiting.",
            hint="Use via=Ladder(), which has a queue for each wait, or one fixed wait without jitter.",
            at=subscription.name,
        )


def _wait_in_one_line(subscriptions: Sequence[Subscription]) -> Iterable[CheckMessage]:
    """Handlers that each have one wait, but not the same, in the same queue."""
    lines: dict[str, dict[str, float]] = {}
    for subscription in subscriptions:
        via, waits = subscription.policy.via, _waits(subscription)
        if isinstance(via, WaitQueue) and len(waits) == 1:
            lines.setdefault(via.queue, {})[subscription.name] = waits.pop()
    for queue, line in lines.items():
        if len(set(line.values())) > 1:
            said = ", ".join(f"{name} {wait:g} s" for name, wait in line.items())
            yield warning(
                "W004",
                f"WaitQueue holds waits of different lengths in one queue, {queue!r} ({said}): a long one keeps "
                "shorter ones behind it waiting.",
                hint="Give each handler a wait queue of its own or the same wait, or use via=Ladder().",
                at=next(iter(line)),
            )


def _waits(subscription: Subscription) -> set[float]:
    return {step for backoff in subscription.policy.backoffs for step in backoff.steps(subscription.policy.attempts)}


def _goes_round(subscription: Subscription) -> Iterable[CheckMessage]:
    if isinstance(subscription.policy.via, Requeue) and subscription.policy.attempts is None:
        yield warning(
            "W005",
            "Requeue with attempts=None never gives up: a message that always fails comes back for ever.",
            hint="Use attempts=2, or via=Ladder() to count further.",
            at=subscription.name,
        )


def _holds_too_long(subscription: Subscription) -> Iterable[CheckMessage]:
    if not isinstance(subscription.policy.via, (AckFirst, Republish, Requeue)):
        return
    longest = max(
        (
            step * (1 + backoff.spread)
            for backoff in subscription.policy.backoffs
            for step in backoff.steps(subscription.policy.attempts)
        ),
        default=0,
    )
    if longest >= LONG:
        yield warning(
            "W008",
            f"{type(subscription.policy.via).__name__} waits up to {longest:g} s with the message in hand, which "
            "takes one place of the prefetch for so long.",
            hint="Give the back-off a lower cap, or use via=Ladder(), which waits in the broker.",
            at=subscription.name,
        )


def _loses_order(subscription: Subscription) -> Iterable[CheckMessage]:
    queue = subscription.queue
    if not subscription.policy.ordered and subscription.order_by is None:
        return
    by = "StopTheLine" if subscription.policy.ordered else "order_by"
    if queue.max_priority is not None or "x-max-priority" in queue.arguments:
        yield warning(
            "W013",
            f"Queue {queue.name!r} has priorities, so messages overtake each other in spite of {by}.",
            hint="Leave max_priority out.",
            at=subscription.name,
        )
    if queue.existing:
        yield warning(
            "W014",
            f"Queue {queue.name!r} is declared elsewhere. {by} keeps the order only if it was declared with "
            "x-single-active-consumer.",
            hint="Make sure of it with `manage.py rmq_declare --check`, then silence this check.",
            at=subscription.name,
        )
