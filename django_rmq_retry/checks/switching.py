"""Checks of breakers and rates: what may be meant, and is seldom."""

from collections.abc import Iterable, Iterator

from django.core.checks import CheckMessage, register

from django_rmq_retry import registry
from django_rmq_retry.checks.saying import TAG, warning, with_settings
from django_rmq_retry.conf import Settings
from django_rmq_retry.core.policy import RetryThenPark, StopTheLine, error_types
from django_rmq_retry.core.rates import spelled
from django_rmq_retry.core.subscription import Intake, Subscription

LONG = 600.0
"""Seconds in hand after which a message goes back, where it may; the broker takes it away after 1800."""


@register(TAG)
@with_settings
def check_switching(settings: Settings) -> Iterator[CheckMessage]:
    for intake in registry.intakes():
        yield from _stops_others(intake)
        for subscription in intake.subscriptions:
            yield from _parks_and_spares(subscription)
            yield from _holds_too_long(subscription, intake, settings)


def _stops_others(intake: Intake) -> Iterable[CheckMessage]:
    """A queue is consumed or it is not: its handlers stop together."""
    guarded = [one for one in intake.subscriptions if one.breaker is not None]
    others = [one.name for one in intake.subscriptions if one.breaker is None]
    if guarded and others:
        yield warning(
            "W050",
            f"While the breaker of {guarded[0].name} is open, queue {intake.queue.name!r} is paused, and with it "
            f"{', '.join(others)}.",
            hint="Give the handler with the breaker a queue of its own.",
            at=guarded[0].name,
        )


def _parks_and_spares(subscription: Subscription) -> Iterable[CheckMessage]:
    policy, breaker = subscription.policy, subscription.breaker
    if breaker is None or not isinstance(policy, (RetryThenPark, StopTheLine)):
        return
    parked = error_types("park_on", policy.park_on)
    both = [kind.__name__ for kind in error_types("on", breaker.on) if issubclass(kind, parked)]
    if both:
        yield warning(
            "W051",
            f"{', '.join(both)} opens the breaker, and park_on would park it. It is never parked: the message comes "
            "again when the breaker closes.",
            hint="Leave it out of one of them.",
            at=subscription.name,
        )


def _holds_too_long(subscription: Subscription, intake: Intake, settings: Settings) -> Iterable[CheckMessage]:
    prefetch = 1 if intake.ordered else settings.prefetch
    if subscription.rate is not None and prefetch / subscription.rate > LONG:
        yield warning(
            "W052",
            f"With a rate of {spelled(subscription.rate)} the {prefetch} messages in hand last for "
            f"{prefetch / subscription.rate:.0f} s; what waits longer than {LONG:g} s goes back to its queue, or loses "
            "its connection.",
            hint="Lower the prefetch of the consumer, or raise the rate.",
            at=subscription.name,
        )
