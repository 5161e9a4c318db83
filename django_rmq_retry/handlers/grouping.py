"""The group of a failure: by the handler's ``fingerprint``, else by the project-wide rule."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from django_rmq_retry import forks
from django_rmq_retry.errors import InvalidBody
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.tracebacks import (
    ChainedError,
    Grouping,
    fields_fingerprint,
    named_fingerprint,
    projects_own,
    trace,
    traced,
    untraced,
)
from django_rmq_retry.policies.verdict import Verdict

log = logging.getLogger("django_rmq_retry")


def grouped(
    verdict: Verdict, delivery: Delivery, subscription: Subscription | None, error: BaseException | None
) -> Verdict:
    """Return a verdict to park, with the failure's group; an error in the grouping does not prevent the parking."""
    reason = verdict.reason.value if verdict.reason else ""
    kind = verdict.error.kind if verdict.error else ""
    fingerprint = ruled(
        () if error is None else trace(error, projects_own),
        reason=reason,
        kind=kind,
        queue=delivery.queue,
        handler=subscription.place if subscription else "",
    )
    own = named_by_handler(delivery, subscription, error)
    if not own and subscription is not None and isinstance(error, InvalidBody):
        own = fields_fingerprint(subscription.name, error.misfit.fields)
    return replace(verdict, fingerprint=own or fingerprint.fingerprint, culprit=fingerprint.culprit)


def ruled(causes: Sequence[ChainedError], *, reason: str, kind: str, queue: str, handler: str) -> Grouping:
    """Return the group by the project-wide rule; the error's ``kind`` decides if no code of the project is traced.

    ``handler`` is the place of the handler's function.
    """
    return traced(causes, reason=reason, handler=handler) or untraced(kind, reason=reason, queue=queue)


def named_by_handler(delivery: Delivery, subscription: Subscription | None, error: BaseException | None) -> str:
    """Return the group that the handler's ``fingerprint`` function names for a failure; else an empty text."""
    if error is None or subscription is None or subscription.fingerprint is None:
        return ""
    try:
        with forks.ending():
            name: object = subscription.fingerprint(delivery, error)
    except BaseException as broken:  # noqa: BLE001 - a function of the project may raise anything
        log.warning(
            "fingerprint= of handler %s raised %s; the default rule groups this failure",
            *(subscription.name, type(broken).__name__),
            extra={"event": "ungrouped", "handler": subscription.name},
        )
        return ""
    return named_fingerprint(name) if isinstance(name, str) and name else ""
