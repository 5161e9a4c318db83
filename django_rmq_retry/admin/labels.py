"""Words for people in place of machine values: what is stored, logged and exported stays English."""

import re
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext, gettext_lazy, ngettext_lazy, pgettext_lazy
from django.utils.translation import gettext_noop as _

from django_rmq_retry.core.declarations import Role
from django_rmq_retry.core.parking import By
from django_rmq_retry.core.verdict import Reason, short
from django_rmq_retry.models import OperatorAction, State, Verb
from django_rmq_retry.operating.discarding import Why

LONGEST = 400
REASONS: Mapping[str, Any] = {
    Reason.EXHAUSTED: pgettext_lazy("reason", "retries exhausted"),
    Reason.PERMANENT: pgettext_lazy("reason", "permanent error"),
    Reason.REQUESTED: pgettext_lazy("reason", "parked by the handler"),
    Reason.UNDECODABLE_BODY: pgettext_lazy("reason", "cannot decode body"),
    Reason.UNDECODABLE_HEADERS: pgettext_lazy("reason", "cannot decode headers"),
    Reason.UNHANDLED: pgettext_lazy("reason", "no handler"),
    Reason.CRASHED: pgettext_lazy("reason", "stopped its worker"),
    Reason.EXPIRED: pgettext_lazy("reason", "expired"),
    Reason.DELIVERY_LIMIT: pgettext_lazy("reason", "delivery limit"),
    Reason.OVERFLOWN: pgettext_lazy("reason", "queue overflow"),
    Reason.REJECTED: pgettext_lazy("reason", "rejected"),
    Reason.CONFLICT: pgettext_lazy("reason", "identity conflict"),
    Reason.ALIKE: pgettext_lazy("reason", "may be a duplicate"),
    Reason.UNNAMED: pgettext_lazy("reason", "cannot be named"),
}
PARKED_BY: Mapping[str, Any] = {
    By.CONSUMER: pgettext_lazy("parked by", "consumer"),
    By.BROKER: pgettext_lazy("parked by", "broker"),
    By.OTHER: pgettext_lazy("parked by", "somebody else"),
}
ROLES: Mapping[str, Any] = {
    Role.WORK: pgettext_lazy("role of a queue", "work"),
    Role.WAITING: pgettext_lazy("role of a queue", "waiting"),
    Role.SUSPECTS: pgettext_lazy("role of a queue", "suspects"),
    Role.PARKED: pgettext_lazy("role of a queue", "parked"),
    Role.REPLY: pgettext_lazy("role of a queue", "reply"),
    Role.OTHER: pgettext_lazy("role of a queue", "other"),
}
CHOSEN: Mapping[str, Any] = {
    "state": gettext_lazy("status"),
    "group": gettext_lazy("group"),
    "queue": gettext_lazy("queue"),
    "type": gettext_lazy("message type"),
    "handler": gettext_lazy("handler"),
    "reason": gettext_lazy("reason"),
    "error": gettext_lazy("error"),
    "key": gettext_lazy("business key"),
    "message_id": gettext_lazy("message id"),
    "correlation_id": gettext_lazy("correlation id"),
    "search": pgettext_lazy("filter", "key or id"),
    "parked_after": pgettext_lazy("filter", "parked since"),
    "parked_before": gettext_lazy("parked before"),
    "cycle_min": pgettext_lazy("filter", "from cycle"),
    "failed_of_run": pgettext_lazy("filter", "failed again in run"),
    "without": pgettext_lazy("filter", "without"),
}
"""The words of a selection."""
SAID_OF_QUEUES = (
    _("it does not exist: manage.py rmq_declare"),
    _("nobody reads this queue"),
    _("somebody consumes it: retries come too early"),
    _("full: it refuses or gives up messages"),
    _('Unacked messages and rates are seen only with RMQ_RETRY["MANAGEMENT_URL"].'),
)
"""As the broker's room says them; it knows no translations."""
COUNTED_OF_QUEUES: Mapping[str, Any] = {
    r"(?P<count>\d+) dead letters wait: where they go to is full or missing": ngettext_lazy(
        "%(count)d dead letter waits: where it goes to is full or missing",
        "%(count)d dead letters wait: where they go to is full or missing",
        "count",
    ),
    r"a move of it was interrupted, (?P<count>\d+) messages wait: (?P<command>.+)": ngettext_lazy(
        "a move of it was interrupted, %(count)d message waits: %(command)s",
        "a move of it was interrupted, %(count)d messages wait: %(command)s",
        "count",
    ),
}


def reason(value: str) -> str:
    """Why a message is parked; a reason that another version wrote stays as it is."""
    return str(REASONS.get(value, value))


def resolution(text: str) -> str:
    """Why a message was discarded, and what somebody wrote about it."""
    why, colon, more = text.partition(": ")
    return f"{Why(why).label}{colon}{more}" if why in Why.values else text


def act_reason(act: OperatorAction) -> str:
    """Why somebody did something; a discard's reason is one of ours, the others are people's words."""
    return resolution(act.reason) if act.verb == Verb.DISCARD else act.reason


def chosen(selection: Mapping[str, Any], otherwise: str = "") -> str:
    """In short, which messages a filter means; of those that were chosen by hand what was written down then."""
    words = selection.get("filter") or {}
    said = " · ".join(f"{CHOSEN.get(name, name)} {_value(name, value)}" for name, value in words.items())
    return short(said, LONGEST) or otherwise


def trouble(text: str) -> str:
    """What is wrong with a queue; what the broker itself says stays as it is."""
    for pattern, words in COUNTED_OF_QUEUES.items():
        found = re.fullmatch(pattern, text)
        if found:
            return str(words % {**found.groupdict(), "count": int(found["count"])})
    return gettext(text)


def _value(name: str, value: Any) -> str:
    several = value if isinstance(value, (list, tuple)) else [value]
    said = {"state": dict(State.choices), "reason": REASONS}.get(name, {})
    return ", ".join(str(said.get(one, one)) for one in several)
