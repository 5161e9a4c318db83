"""The hook ``trace``: OpenTelemetry spans of publishes and attempts, by the semantic conventions for RabbitMQ."""

import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Literal

from django_rmq_retry import __version__
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.hooks import Around, AroundAttempt, AroundPublish
from django_rmq_retry.messages.header_names import TICKET
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import Headers, has_headers
from django_rmq_retry.messages.stamp import STAMP_HEADERS
from django_rmq_retry.messages.texts import ErrorNote, short
from django_rmq_retry.messages.tracebacks import class_name
from django_rmq_retry.policies.verdict import Discard, Kind, Verdict
from django_rmq_retry.telemetry.trace_headers import usable

try:
    from opentelemetry import trace as api
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.propagate import extract, get_global_textmap, inject
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        "django_rmq_retry.telemetry.opentelemetry requires opentelemetry-api. "
        "Install it with: pip install 'django-rmq-retry[otel]'"
    ) from error

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that names and attributes follow."""
ANONYMOUS = "amq.gen-"
"""The beginning of the names that the broker gives to queues: no span is named after such a queue."""
MOST_ATTRIBUTE_BYTES = 3 * 255
"""In bytes, of each text. AMQP allows 255 bytes for each of exchange, routing key and queue."""
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """A hook for the setting AROUND: a span around each publish and each attempt, with the W3C context in headers.

    The span of a message's first attempt is a child of the span of its publish. With ``first_attempt="link"`` it
    begins a trace of its own that is linked to the publish, as each retry and each attempt after a requeue does.

    ``sample`` is the share of publishes, and of messages without a trace, for which a trace is begun at all. The others
    cost about 1 µs in a consumer: no context is made for them. A message that belongs to a trace is always traced.
    """

    def __init__(
        self,
        *,
        first_attempt: Literal["child", "link"] = "child",
        sample: float = 1.0,
        tracer_provider: api.TracerProvider | None = None,
    ) -> None:
        given: object = first_attempt
        if given not in ("child", "link"):
            raise ConfigurationError(f"first_attempt=… takes 'child' or 'link', not {given!r}.")
        share: object = sample
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigurationError(f"sample=… takes a share from 0 to 1, such as 0.01, not {share!r}.")
        self._sample = sample
        self._child = first_attempt == "child"
        self._tracer = api.get_tracer("django_rmq_retry", __version__, tracer_provider, SCHEMA)

    def declines(self, message: Delivery | Message) -> bool:
        """True if no span is made for a message, because it is not in the sample and belongs to no trace."""
        # Asked for every message. Most of them are first deliveries without headers, which cannot belong to a trace.
        if random.random() < self._sample:
            return False
        return (type(message) is Delivery and message.is_first_without_headers) or not _traced(message)

    def __call__(self, one: Around) -> AbstractContextManager[None]:
        return self._attempt(one) if isinstance(one, AroundAttempt) else self._publish(one)

    @contextmanager
    def _publish(self, one: AroundPublish) -> Iterator[None]:
        attributes = _of_publish(one)
        # A creation context that the sender has put into the headers stays: the span is linked to it.
        custom = _creation(one.message.headers)
        with self._tracer.start_as_current_span(
            f"send {attributes['messaging.destination.name']}",
            kind=api.SpanKind.PRODUCER,
            attributes=attributes,
            links=[_link(custom, "creation")] if custom.is_valid else [],
        ) as span:
            if not custom.is_valid:
                _inject(one)
            yield
            span.set_attribute("rmq_retry.stored", one.stored)
            _record_error(span, one.error, "")

    @contextmanager
    def _attempt(self, one: AroundAttempt) -> Iterator[None]:
        context, links = _extracted(one.delivery.headers), list[api.Link]()
        if not (self._child and _first(one)):
            links = _links(api.get_current_span(context).get_span_context(), one.previous)
            context = api.set_span_in_context(api.INVALID_SPAN, context)
        span = self._tracer.start_span(
            f"process {_queue(one.delivery)}".rstrip(),
            context=context,
            kind=api.SpanKind.CONSUMER,
            attributes=_of_attempt(one),
            links=links,
        )
        # Attached with the context of the message, because the handler gets its baggage too.
        token = attach(api.set_span_in_context(span, context))
        try:
            one.traceparent = _written(span.get_span_context())
            yield
            self._write_verdict(span, one)
        finally:
            detach(token)
            span.end()

    def _write_verdict(self, span: api.Span, one: AroundAttempt) -> None:
        """Write the verdict into the span of the attempt; a parked message gets a span of its own below it."""
        verdict = one.verdict
        if verdict is None:
            _record_error(span, one.error, "")
            return
        span.set_attribute("rmq_retry.verdict", verdict.kind.value)
        if verdict.kind is Kind.RETRY or verdict.kind is Kind.HALT:
            span.set_attribute("rmq_retry.wait", float(verdict.after))
        if verdict.kind is not Kind.PARK:
            if not isinstance(one.error, Discard):
                _record_error(span, one.error, "")
            return
        reason = verdict.reason.value if verdict.reason else "parked"
        _record_error(span, one.error, reason)
        name, attributes = f"park {_queue(one.delivery)}".rstrip(), _of_parking(one.delivery, verdict)
        with self._tracer.start_as_current_span(name, attributes=attributes) as parking:
            _record_error(parking, one.error, reason)
            parking.set_status(api.StatusCode.ERROR, verdict.detail)


def _traced(message: Delivery | Message) -> bool:
    """True if a message belongs to a trace, or is published in one, or carries what must be passed on."""
    if isinstance(message, Delivery) and not has_headers(message.raw):
        return False
    raw = message.raw if isinstance(message, Delivery) else message.headers.raw
    # Not any(): for most messages this is all that tracing does, and a generator would take three times as long.
    for name in _carried(get_global_textmap()):
        if name in raw:
            return True
    return isinstance(message, Message) and api.get_current_span().get_span_context().is_valid


@cache
def _carried(propagator: TextMapPropagator) -> list[bytes]:
    """Return the encoded names of the headers by which a trace is continued, to be searched in undecoded properties."""
    names = {"traceparent", STAMP_HEADERS["traceparent"], "baggage", "b3", "uber-trace-id", *propagator.fields}
    return [bytes((len(name),)) + name.encode() for name in sorted(names)]


def _first(one: AroundAttempt) -> bool:
    """True for the first attempt of a publish; a requeued message has made attempts before its first one."""
    return one.delivery.attempt == 1 and not one.previous and TICKET not in one.delivery.headers


def _links(creation: api.SpanContext, previous: str) -> list[api.Link]:
    """Return the links to the publish of the message and to the attempt before, as far as they are known."""
    before = api.get_current_span(_W3C.extract({"traceparent": previous}, Context())).get_span_context()
    named = ((creation, "creation"), (before, "previous_attempt"))
    return [_link(context, name) for context, name in named if context.is_valid]


def _link(context: api.SpanContext, name: str) -> api.Link:
    return api.Link(context, {"rmq_retry.link": name})


def _extracted(headers: Headers) -> Context:
    """Return the current context with the span and the baggage of the headers, and without any other span."""
    context = api.set_span_in_context(api.INVALID_SPAN, get_current())
    return extract(usable(headers), context) if headers.raw else context


def _creation(headers: Headers) -> api.SpanContext:
    if not headers.raw:
        return api.INVALID_SPAN.get_span_context()
    return api.get_current_span(_extracted(headers)).get_span_context()


def _inject(one: AroundPublish) -> None:
    """Put the current context into the headers; they are part of the message, also in the outbox and in each retry."""
    carrier: dict[str, str] = {}
    inject(carrier)
    if carrier:
        one.add_headers(carrier)


def _written(context: api.SpanContext) -> str:
    """Return a context in W3C's form; empty if there is none, because no SDK is set up."""
    if not context.is_valid:
        return ""
    return f"00-{api.format_trace_id(context.trace_id)}-{api.format_span_id(context.span_id)}-{context.trace_flags:02x}"


def _record_error(span: api.Span, error: BaseException | None, reason: str) -> None:
    """Record an error in a span; without one, the reason for which its message is parked, if it is."""
    if error is None:
        if reason:
            span.set_attribute("error.type", reason)
            span.set_status(api.StatusCode.ERROR)
        return
    span.set_attribute("error.type", class_name(error))
    span.set_status(api.StatusCode.ERROR, ErrorNote.of(error).text)
    # An exception of the project may fail to show its text.
    with suppress(Exception):
        span.record_exception(error)


def _of_publish(one: AroundPublish) -> dict[str, str | int]:
    message = one.message
    named = {
        **_of_message(message.properties.message_id, message.properties.correlation_id, message),
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": _destination(message.exchange, message.routing_key),
        "rmq_retry.handler": one.handler,
    }
    return _given(named)


def _of_attempt(one: AroundAttempt) -> dict[str, str | int]:
    delivery = one.delivery
    named = {
        **_of_message(delivery.id, delivery.correlation_id, delivery),
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": _destination(delivery.exchange, delivery.routing_key, delivery.queue),
        "messaging.destination.anonymous": delivery.queue.startswith(ANONYMOUS),
        "messaging.rabbitmq.message.delivery_tag": _tag(delivery),
        "rmq_retry.handler": one.handler,
        "rmq_retry.attempt": delivery.attempt,
        "rmq_retry.attempts": one.limit,
    }
    return _given(named)


def _of_parking(delivery: Delivery, verdict: Verdict) -> dict[str, str | int]:
    named = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "park",
        "messaging.destination.name": delivery.queue,
        "messaging.message.id": delivery.id,
        "rmq_retry.reason": verdict.reason and verdict.reason.value,
        "rmq_retry.fingerprint": verdict.fingerprint,
        "rmq_retry.culprit": verdict.culprit,
    }
    return _given(named)


def _of_message(name: str | None, correlation: str | None, message: Message | Delivery) -> dict[str, object]:
    return {
        "messaging.system": "rabbitmq",
        "messaging.rabbitmq.destination.routing_key": message.routing_key,
        "messaging.message.id": name,
        "messaging.message.conversation_id": correlation,
        "messaging.message.body.size": len(message.body),
    }


def _given(named: Mapping[str, object]) -> dict[str, str | int]:
    """Return the attributes that have a value. An exporter cannot write text that is not UTF-8."""
    return {
        name: value if isinstance(value, int) else short(value, MOST_ATTRIBUTE_BYTES)
        for name, value in named.items()
        if value is not None and value != "" and value is not False
    }


def _destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """Return ``{exchange}:{routing key}:{queue}``, without empty parts; equal key and queue stand once."""
    parts = (exchange, routing_key, "" if queue == routing_key else queue)
    return ":".join(filter(None, parts)) or "amq.default"


def _queue(delivery: Delivery) -> str:
    return "" if delivery.queue.startswith(ANONYMOUS) else short(delivery.queue, MOST_ATTRIBUTE_BYTES)


def _tag(delivery: Delivery) -> int | None:
    """Return the delivery tag, if the message has come over a line."""
    tag: object = delivery.token[1]
    return tag if isinstance(tag, int) else None


trace = Tracing()
"""The hook with its defaults, for ``"AROUND": ["django_rmq_retry.telemetry.opentelemetry.trace"]``."""
