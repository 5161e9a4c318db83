"""Sentry: publishes and attempts as operations of its Queues page, and one issue for each group of parked messages."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any

from django_rmq_retry.errors import DeadlineExceeded
from django_rmq_retry.hooks import Around, AroundAttempt, AroundPublish
from django_rmq_retry.messages.message import Delivery, Message, message_id
from django_rmq_retry.messages.stamp import has_history
from django_rmq_retry.messages.texts import short
from django_rmq_retry.policies.verdict import Kind, Verdict
from django_rmq_retry.telemetry.log_fields import key_of
from django_rmq_retry.telemetry.trace_headers import BAGGAGE, usable

try:
    import sentry_sdk
    from sentry_sdk.integrations.dedupe import DedupeIntegration
    from sentry_sdk.types import Event, Hint
    from sentry_sdk.utils import event_from_exception
except ImportError as missing:
    raise ImportError("it needs sentry-sdk 2.24 or later. Run: pip install 'django-rmq-retry[sentry]'") from missing
try:
    from sentry_sdk import traces
except ImportError:
    traces = None  # type: ignore[assignment]  # versions without streamed spans

LOGGER = "django_rmq_retry"
ORIGIN = "auto.queue.django_rmq_retry"
"""The name by which Sentry lists the spans of this package."""
TAG_LIMIT = 200
"""The longest value of a tag that Sentry accepts."""
TRACE = "sentry-trace"
STATUSES = {
    Kind.ACK: "ok",
    Kind.RETRY: "internal_error",
    Kind.HALT: "internal_error",
    Kind.PARK: "internal_error",
    Kind.DISCARD: "cancelled",
}
SUCCESSES = frozenset({"ok", "cancelled"})
"""Statuses that are not an error for Sentry's streamed spans, which have no others than "ok" and "error"."""


class Reporting:
    """A hook for AROUND that reports to Sentry.

    With ``each_attempt``, failed attempts that are retried are reported too. With ``local_variables``, reports contain
    the local variables of the project's functions, which may hold parts of a body.
    """

    def __init__(self, *, each_attempt: bool = False, local_variables: bool = False) -> None:
        self._each_attempt = each_attempt
        self._local_variables = local_variables

    def __call__(self, one: Around) -> AbstractContextManager[None] | None:
        if not sentry_sdk.is_initialized():
            return None
        return self._around_attempt(one) if isinstance(one, AroundAttempt) else _around_publish(one)

    @contextmanager
    def _around_attempt(self, one: AroundAttempt) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.add_event_processor(_review)
            for name, value in _tags_of(one).items():
                scope.set_tag(name, value)
            with _processing(one) as span:
                yield
                _end(span, _status_of(one))
                self._capture(one)

    def _capture(self, one: AroundAttempt) -> None:
        """Report an attempt whose message was parked or, with ``each_attempt``, one that failed and is retried."""
        verdict = one.verdict
        parked = verdict is not None and verdict.kind is Kind.PARK
        retried = verdict is not None and verdict.kind in (Kind.RETRY, Kind.HALT) and one.error is not None
        if verdict is not None and (parked or (retried and self._each_attempt)):
            event, hint = self._event(one.error, verdict)
            key = key_of(one)
            tags = {"reason": verdict.reason.value if verdict.reason else "", "key": _tag(key)}
            event["tags"] = {name: value for name, value in tags.items() if value}
            event["contexts"] = {"rmq_retry": _context(one, verdict)}
            sentry_sdk.capture_event(event, hint)

    def _event(self, error: BaseException | None, verdict: Verdict) -> tuple[Event, Hint]:
        """Return the event without its tags. Events of one group of failures have the same fingerprint."""
        parked = verdict.kind is Kind.PARK
        if error is None:
            event: Event = {"message": verdict.detail or "A message was parked"}
            hint: Hint = {}
        else:
            # The handler may have captured the exception itself, and the SDK drops an exception that it saw last.
            DedupeIntegration.reset_last_seen()
            event, hint = event_from_exception(
                error,
                client_options=sentry_sdk.get_client().options | {"include_local_variables": self._local_variables},
                mechanism={"type": LOGGER, "handled": not parked},
            )
        event["level"] = "error" if parked else "warning"
        if verdict.fingerprint:
            event["fingerprint"] = [verdict.fingerprint]
        return event, hint


report = Reporting()
"""The hook with its defaults: reports parked messages only, without local variables."""


@contextmanager
def _around_publish(one: AroundPublish) -> Iterator[None]:
    """Make a span, if one is active that it can belong to, and add the headers by which a consumer continues it."""
    message = one.message
    # The queue, or the exchange if the routing key names no queue.
    target = message.exchange or message.routing_key
    with ExitStack() as stack:
        # A scope of its own: concurrent coroutines may share the current one.
        stack.enter_context(sentry_sdk.new_scope())
        span: Any = None
        if _active() is not None:
            data = _data(message.properties.message_id, target, message.body)
            span = stack.enter_context(_span("queue.publish", one.handler or target, data))
        one.add_headers(_trace_headers(message))
        yield
        if span is not None:
            _end(span, "internal_error" if one.error else "ok")


def _trace_headers(message: Message) -> dict[str, str]:
    """Return Sentry's headers for a message. Its own baggage is kept, within the limits of W3C."""
    others = usable(message.headers, (BAGGAGE,)).get(BAGGAGE, "").split(",")
    parts = [part.strip() for part in others if part.strip() and not part.strip().startswith("sentry-")]
    baggage = ",".join([*parts, *filter(None, [sentry_sdk.get_baggage()])])
    found = {TRACE: sentry_sdk.get_traceparent(), BAGGAGE: baggage}
    return {name: value for name, value in found.items() if value}


def _processing(one: AroundAttempt) -> AbstractContextManager[Any]:
    """Return the transaction of an attempt, which continues the trace of the publish."""
    delivery = one.delivery
    incoming = usable(delivery.headers, (TRACE, BAGGAGE))
    # Without it, messages that carry no trace would all belong to one trace, that of the process.
    sentry_sdk.get_isolation_scope().set_new_propagation_context()
    data = _data(message_id(delivery), delivery.queue, delivery.body)
    data["messaging.message.retry.count"] = delivery.attempt - 1
    latency = _latency(delivery)
    if latency is not None:
        data["messaging.message.receive.latency"] = latency
    streaming = _streaming()
    if streaming is not None:
        streaming.continue_trace(incoming)
        return _streamed(streaming, "queue.process", one.handler, data, parent_span=None)
    transaction = sentry_sdk.continue_trace(
        incoming, op="queue.process", name=one.handler, source="task", origin=ORIGIN
    )
    for name, value in data.items():
        transaction.set_data(name, value)
    sampled_by = {"rmq_retry": {"queue": delivery.queue, "handler": one.handler, "attempt": delivery.attempt}}
    return sentry_sdk.start_transaction(transaction, custom_sampling_context=sampled_by)


def _latency(delivery: Delivery) -> float | None:
    """Return the milliseconds between publish and first attempt; None for a retry, whose pause is no latency."""
    at = delivery.properties.timestamp
    if at is None or has_history(delivery):
        return None
    return max(0.0, (time.time() - at) * 1000)


def _data(identifier: str | None, destination: str, body: bytes) -> dict[str, Any]:
    """Return the fields that Sentry's Queues page reads of every operation."""
    return {
        "messaging.system": "rabbitmq",
        "messaging.message.id": identifier or "",
        "messaging.destination.name": destination,
        "messaging.message.body.size": len(body),
    }


def _streaming() -> ModuleType | None:
    """Return the SDK's module of streamed spans if the project has chosen them (``trace_lifecycle="stream"``)."""
    options = sentry_sdk.get_client().options
    chosen = options.get("trace_lifecycle") or (options.get("_experiments") or {}).get("trace_lifecycle")
    return traces if chosen == "stream" else None


def _active() -> object:
    """Return the span that a new one would belong to."""
    return (_streaming() or sentry_sdk).get_current_span()


def _span(op: str, name: str, data: Mapping[str, Any]) -> AbstractContextManager[Any]:
    streaming = _streaming()
    if streaming is not None:
        return _streamed(streaming, op, name, data)
    span = sentry_sdk.start_span(op=op, name=name, origin=ORIGIN)
    for key, value in data.items():
        span.set_data(key, value)
    return span


def _streamed(
    streaming: ModuleType, op: str, name: str, data: Mapping[str, Any], **options: object
) -> AbstractContextManager[Any]:
    given = {"sentry.op": op, "sentry.origin": ORIGIN, "sentry.segment.name.source": "task"}
    span: AbstractContextManager[Any] = streaming.start_span(name=name, attributes={**given, **data}, **options)
    return span


def _end(span: Any, status: str) -> None:
    if _streaming() is None:
        span.set_status(status)
    else:
        span.status = "ok" if status in SUCCESSES else "error"


def _status_of(one: AroundAttempt) -> str:
    if one.verdict is None:
        return "aborted"
    status = STATUSES[one.verdict.kind]
    late = isinstance(one.error, DeadlineExceeded) and status not in SUCCESSES
    return "deadline_exceeded" if late else status


def _tags_of(one: AroundAttempt) -> dict[str, str]:
    """Return the tags of all events of an attempt, including those that the handler captures itself."""
    delivery = one.delivery
    values = {
        "queue": delivery.queue,
        "handler": one.handler,
        "attempt": str(delivery.attempt),
        "message_id": message_id(delivery) or "",
    }
    return {name: _tag(value) for name, value in values.items() if value}


def _tag(value: str) -> str:
    # Sentry drops tags that are too long or hold a line end.
    return short(" ".join(value.split()), TAG_LIMIT)


def _context(one: AroundAttempt, verdict: Verdict) -> dict[str, object]:
    """Return the facts about the message that an issue shows; neither body nor headers are among them."""
    facts = {
        "verdict": verdict.kind.value,
        "attempts": one.limit,
        "detail": verdict.detail,
        "group": verdict.fingerprint,
        "culprit": verdict.culprit,
    }
    return {name: value for name, value in facts.items() if value}


def _review(event: Event, hint: Hint) -> Event | None:
    """Drop the event of this package's own log line about a parked message, which the hook reports with its error.

    Also remove the local variables of this package's functions, which hold the body, from any other event.
    """
    record = hint.get("log_record")
    if record is not None and record.name == LOGGER and getattr(record, "event", "") == Kind.PARK:
        return None
    found: Any = event
    for part in ("exception", "threads"):
        for value in (found.get(part) or {}).get("values") or ():
            for frame in (value.get("stacktrace") or {}).get("frames") or ():
                if str(frame.get("module") or "").partition(".")[0] == LOGGER:
                    frame.pop("vars", None)
    return event
