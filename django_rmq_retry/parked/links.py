"""The links of parked messages and error groups into the project's other systems."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta

from django_rmq_retry.conf import Links, settings
from django_rmq_retry.links import TRACE_ID
from django_rmq_retry.messages.stamp import TRACE_CONTEXT
from django_rmq_retry.models import ErrorGroup, ParkedMessage

MARGIN = timedelta(minutes=5)
"""How much earlier and later than the message the searched log lines may be: clocks differ."""
SAMPLED = 1
"""The flag of a trace that is recorded."""


def trace_link(traceparent: object) -> str:
    """Return the address of the spans of a W3C trace context; empty if the setting or their trace is missing.

    A context that is not sampled has no spans in the tracing system.
    """
    template = settings().links.trace
    found = TRACE_CONTEXT.fullmatch(traceparent) if template and isinstance(traceparent, str) else None
    if template is None or found is None or not int(found[2], 16) & SAMPLED:
        return ""
    return template.filled({TRACE_ID: found[1]})


def message_links(message: ParkedMessage, keys: Sequence[str]) -> dict[str, str]:
    """Return the addresses of a message's links, by the names of their settings; ``keys`` are its business keys."""
    found = TRACE_CONTEXT.fullmatch(message.traceparent)
    names = ("message_id", "correlation_id", "handler", "queue", "type", "error")
    links = _filled({
        **{name: getattr(message, name) for name in names},
        **dict(zip(("key", "key2", "key3"), keys or [message.business_key], strict=False)),
        TRACE_ID: found[1] if found else "",
        "group": str(message.group_id),
        "ticket": message.group.ticket,
        **_times(message.published_at or message.failed_at or message.parked_at, message.parked_at),
    })  # fmt: skip
    trace = trace_link(message.traceparent)
    return {**links, "trace": trace} if trace else links


def group_links(group: ErrorGroup, *, queue: str = "", handler: str = "", kind: str = "") -> dict[str, str]:
    """Return the addresses of an error group's links; queue, handler and type are those of its newest message."""
    return _filled({
        "queue": queue,
        "handler": handler,
        "type": kind,
        "error": "" if group.title == group.reason else group.title,
        "group": str(group.pk),
        "ticket": group.ticket,
        **_times(group.first_seen, group.last_seen),
    })  # fmt: skip


def _filled(values: Mapping[str, str]) -> dict[str, str]:
    templates = {one.name: getattr(settings().links, one.name) for one in fields(Links) if one.name != "trace"}
    filled = {name: template.filled(values) for name, template in templates.items() if template}
    return {name: address for name, address in filled.items() if address}


def _times(first: datetime, last: datetime) -> dict[str, str]:
    ends = {"from": (first - MARGIN).astimezone(UTC), "to": (last + MARGIN).astimezone(UTC)}
    texts = {name: f"{at.replace(tzinfo=None).isoformat(timespec='seconds')}Z" for name, at in ends.items()}
    return {**texts, **{f"{name}_ms": str(int(at.timestamp() * 1000)) for name, at in ends.items()}}
