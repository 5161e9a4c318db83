"""To which work queue each of the queues around it belongs."""

from collections.abc import Sequence

from django_rmq_retry.core.subscription import Intake


def homes_of(intakes: Sequence[Intake]) -> dict[str, str]:
    """The work queue of each waiting, suspects' and parked queue; one that serves several work queues is left out."""
    served: dict[str, set[str]] = {}
    for intake in intakes:
        own = {intake.park, *({intake.suspects} if intake.suspects else ())}
        for subscription in intake.subscriptions:
            own |= subscription.policy.via.additions(subscription.route).topology.queues.keys()
        for name in own:
            served.setdefault(name, set()).add(intake.queue.name)
    return {name: min(work) for name, work in served.items() if len(work) == 1}
