"""Which group a message that is being parked belongs to: as its handler says, or by the rule."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from django_rmq_retry.core.fingerprints import Grouping, named, traced, untraced
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.tracing import Cause, trace
from django_rmq_retry.core.verdict import Verdict
from django_rmq_retry.runtime.sources import projects_own

log = logging.getLogger("django_rmq_retry")


def grouped(
    verdict: Verdict, delivery: Delivery, subscription: Subscription | None, error: BaseException | None
) -> Verdict:
    """A verdict to park, with the group; nothing that goes wrong here keeps a message from being parked."""
    reason = verdict.reason.value if verdict.reason else ""
    kind = verdict.error.kind if verdict.error else ""
    found = ruled(() if error is None else trace(error, projects_own), reason=reason, kind=kind, queue=delivery.queue)
    own = None if error is None or subscription is None else named_by_handler(delivery, subscription, error)
    return replace(verdict, fingerprint=own or found.fingerprint, culprit=found.culprit)


def ruled(causes: Sequence[Cause], *, reason: str, kind: str, queue: str) -> Grouping:
    """The group by the rule; kind is the name of the error, for one that came through no code of the project's."""
    return traced(causes, reason=reason) or untraced(kind, reason=reason, queue=queue)


def named_by_handler(delivery: Delivery, subscription: Subscription, error: BaseException) -> str | None:
    """The group that the handler names, if it names one."""
    if subscription.fingerprint is None:
        return None
    try:
        name: object = subscription.fingerprint(delivery, error)
    except BaseException as broken:  # noqa: BLE001 - a function of the project's
        log.warning(
            "fingerprint= of handler %s raised %s; the rule groups this failure",
            subscription.name,
            type(broken).__name__,
            extra={"event": "ungrouped", "handler": subscription.name},
        )
        return None
    return named(name) if isinstance(name, str) and name else None
