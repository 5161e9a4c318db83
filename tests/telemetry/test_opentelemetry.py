"""Spans of publishes and attempts: their tree, their links and attributes, and the context in headers."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import transaction
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context, get_current
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_rmq_retry import (
    AckFirst,
    DeadLetter,
    Discard,
    Exchange,
    Fixed,
    Handler,
    InPlace,
    Ladder,
    NackRequeue,
    Native,
    OneShot,
    Park,
    Queue,
    Republish,
    RetryThenPark,
    StopTheLine,
    WaitQueue,
    handler,
)
from django_rmq_retry.errors import ConfigurationError, MessageReturned
from django_rmq_retry.hooks import Around, AroundPublish, project_hooks
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.policies import Policy
from django_rmq_retry.telemetry.opentelemetry import SCHEMA, Tracing
from django_rmq_retry.testing import RmqTest

OTHERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Spans = Sequence[ReadableSpan]
Set = Callable[..., None]
Started = Callable[..., "tuple[Traced, RmqTest]"]


class BankDown(Exception):
    """Raised by the handlers of these tests."""


class Traced:
    """The spans that have ended, in the order of their ends."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider, self._exporter = provider, exporter

    @property
    def spans(self) -> Spans:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> Spans:
        return [one for one in self.spans if one.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


def ids(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> list[tuple[Any, tuple[int, int]]]:
    return [
        ((link.attributes or {})["rmq_retry.link"], (link.context.trace_id, link.context.span_id))
        for link in span.links
    ]


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def header_of(span: ReadableSpan) -> str:
    found = span.get_span_context()
    assert found is not None
    return f"00-{format_trace_id(found.trace_id)}-{format_span_id(found.span_id)}-{found.trace_flags:02x}"


def tracing(**options: Any) -> tuple[Tracing, Traced]:
    """A hook whose spans are kept."""
    exporter, own = InMemorySpanExporter(), {"first_attempt", "sample"} & options.keys()
    of_hook = {name: options.pop(name) for name in own}
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(tracer_provider=provider, **of_hook), Traced(provider, exporter)


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture(autouse=True)
def contexts_end_with_their_test() -> Iterator[None]:
    yield
    assert context.get_current() == {}


@pytest.fixture
def around(settings: Any) -> Set:
    def around(*hooks: object) -> None:
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [*hooks]}

    return around


@pytest.fixture
def traced(around: Set) -> Traced:
    hook, traced = tracing()
    around(hook)
    return traced


@pytest.fixture
def started(around: Set, request: pytest.FixtureRequest) -> Started:
    """Set a hook with these options; return its spans and the broker."""

    def started(*more: object, **options: Any) -> tuple[Traced, RmqTest]:
        hook, traced = tracing(**options)
        around(hook, *more)
        return traced, request.getfixturevalue("rmq")

    return started


@pytest.fixture
def kit(traced: Traced, request: pytest.FixtureRequest) -> RmqTest:  # noqa: ARG001 - the hook is set before
    rmq: RmqTest = request.getfixturevalue("rmq")
    return rmq


def charging(does: Callable[[Any], object], queue: str | Queue = "payments.charge", **options: Any) -> Handler[object]:
    policy = RetryThenPark(attempts=3, backoff=Fixed(5))
    return handler(queue, name="charge", **{"policy": policy, **options})(does)


def fail(_message: Any) -> None:
    raise BankDown("no answer")


def succeed(_message: Any) -> None: ...


def test_a_publish_and_its_first_attempt_are_one_trace(traced: Traced, kit: RmqTest) -> None:
    charging(succeed).publish({"payment": 7}, correlation_id="order-1", message_id="m-1")
    kit.drain()
    sent, processed = traced.spans

    assert (sent.name, sent.kind, parent_of(sent)) == ("send payments.charge", SpanKind.PRODUCER, None)
    assert (processed.name, processed.kind) == ("process payments.charge", SpanKind.CONSUMER)
    assert (parent_of(processed), links_of(processed)) == (ids(sent), [])
    assert sent.status.status_code == processed.status.status_code == StatusCode.UNSET
    assert sent.instrumentation_scope is not None
    assert (sent.instrumentation_scope.name, sent.instrumentation_scope.schema_url) == ("django_rmq_retry", SCHEMA)


def test_the_attributes_follow_the_conventions_for_rabbitmq(traced: Traced, kit: RmqTest) -> None:
    main = Exchange("main", "topic")
    charge = charging(succeed, Queue("payments.charge", bindings=[main.bind("charge.*")]))
    charge.publish({"payment": 7}, exchange="main", routing_key="charge.card", correlation_id="c-1", message_id="m-1")
    kit.drain()
    sent, processed = map(attributes_of, traced.spans)
    common = {
        "messaging.system": "rabbitmq",
        "messaging.rabbitmq.destination.routing_key": "charge.card",
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "c-1",
        "messaging.message.body.size": 13,
        "rmq_retry.handler": "charge",
    }
    tag = processed.pop("messaging.rabbitmq.message.delivery_tag")

    assert traced.spans[0].name == "send main:charge.card"
    assert sent == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "main:charge.card",
        "rmq_retry.stored": False,
    }
    assert processed == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "main:charge.card:payments.charge",
        "rmq_retry.attempt": 1,
        "rmq_retry.attempts": 3,
        "rmq_retry.verdict": "ack",
    }
    assert tag > 0


def test_the_first_attempt_is_linked_to_the_publish_if_the_setting_asks_for_it(started: Started) -> None:
    traced, rmq = started(first_attempt="link")
    charging(succeed).publish({})
    rmq.drain()
    sent, processed = traced.spans

    assert parent_of(processed) is None
    assert ids(processed)[0] != ids(sent)[0]
    assert links_of(processed) == [("creation", ids(sent))]


@pytest.mark.parametrize(
    ("policy", "failures", "verdicts"),
    [
        (RetryThenPark(attempts=3, backoff=Fixed(5)), 3, ["retry", "retry", "park"]),
        (StopTheLine(backoff=Fixed(5)), 2, ["halt", "halt", "ack"]),
    ],
)
def test_each_retry_is_a_new_trace_linked_to_the_publish_and_to_the_attempt_before(
    traced: Traced, kit: RmqTest, policy: Policy, failures: int, verdicts: list[str]
) -> None:
    charge = charging(succeed, policy=policy)
    kit.fail_next(charge, BankDown("no answer"), times=failures)
    charge.publish({})
    kit.drain()
    sent = traced.one("send payments.charge")
    first, second, third = traced.named("process payments.charge")

    assert [parent_of(one) for one in (first, second, third)] == [ids(sent), None, None]
    assert len({ids(one)[0] for one in (first, second, third)}) == 3
    assert links_of(second) == [("creation", ids(sent)), ("previous_attempt", ids(first))]
    assert links_of(third) == [("creation", ids(sent)), ("previous_attempt", ids(second))]
    assert [attributes_of(one)["rmq_retry.verdict"] for one in (first, second, third)] == verdicts
    assert [attributes_of(one).get("rmq_retry.wait") for one in (first, second, third)] == [5.0, 5.0, None]
    if verdicts[-1] == "park":
        assert [attributes_of(one)["rmq_retry.attempt"] for one in (first, second, third)] == [1, 2, 3]
        assert kit.parked(charge).headers["rmq-retry-traceparent"] == header_of(third)
        assert kit.parked(charge).headers["traceparent"] == header_of(sent)


def test_a_parked_message_has_a_span_of_its_own_that_carries_the_error(traced: Traced, kit: RmqTest) -> None:
    charge = charging(fail, policy=RetryThenPark(attempts=1))
    charge.publish({}, message_id="m-1")
    kit.drain()
    processed, parked = traced.one("process payments.charge"), traced.one("park payments.charge")
    kind = f"{__name__}.BankDown"

    assert (parent_of(parked), parked.kind) == (ids(processed), SpanKind.INTERNAL)
    assert attributes_of(parked) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "park",
        "messaging.destination.name": "payments.charge",
        "messaging.message.id": "m-1",
        "error.type": kind,
        "rmq_retry.reason": "retries_exhausted",
        "rmq_retry.fingerprint": kit.parked(charge).headers["rmq-retry-fingerprint"],
        "rmq_retry.culprit": kit.parked(charge).headers["rmq-retry-culprit"],
    }
    assert parked.status.description == "Gave up after 1 attempt: BankDown: no answer"
    assert (processed.status.status_code, processed.status.description) == (StatusCode.ERROR, "no answer")
    assert attributes_of(processed)["error.type"] == kind
    for one in (processed, parked):
        (event,) = one.events
        told = dict(event.attributes or {})
        assert (event.name, told["exception.type"], told["exception.message"]) == ("exception", kind, "no answer")
        assert "in fail" in str(told["exception.stacktrace"])


@pytest.mark.django_db
def test_a_message_parked_without_running_its_handler_has_the_reason_as_its_error(
    traced: Traced, settings: Any, request: Any
) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "CRASH_LIMIT": 1}
    kit: RmqTest = request.getfixturevalue("rmq")
    charge = charging(succeed, order_by=lambda message: message.data["account"])
    kit.fail_next(charge, "crash before ack", times=9)
    charge.publish({"account": 7})
    kit.drain()
    processed, parked = traced.named("process payments.charge")[-1], traced.one("park payments.charge")

    assert parent_of(parked) == ids(processed)
    for one in (processed, parked):
        assert (attributes_of(one)["error.type"], one.events) == ("worker_stopped", ())
        assert one.status.status_code == StatusCode.ERROR
    assert str(parked.status.description).startswith("Redelivered 4 times")


@pytest.mark.parametrize(
    ("error", "verdict", "status"),
    [(Discard("Superseded"), "discard", StatusCode.UNSET), (Park("The account is frozen"), "park", StatusCode.ERROR)],
)
def test_a_discard_is_no_error_and_a_park_is_one(
    traced: Traced, kit: RmqTest, error: Exception, verdict: str, status: StatusCode
) -> None:
    def does(_message: Any) -> None:
        raise error

    charging(does).publish({})
    kit.drain()
    processed = traced.one("process payments.charge")

    assert (attributes_of(processed)["rmq_retry.verdict"], processed.status.status_code) == (verdict, status)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_spans_of_the_handler_are_below_its_attempt(traced: Traced, kit: RmqTest, asynchronous: bool) -> None:
    tracer = traced.provider.get_tracer("bank")

    def does(_message: Any) -> None:
        with tracer.start_as_current_span("call the bank"):
            pass

    async def awaits(message: Any) -> None:
        await asyncio.sleep(0)
        does(message)

    charging(awaits if asynchronous else does).publish({})
    kit.drain()

    assert parent_of(traced.one("call the bank")) == ids(traced.one("process payments.charge"))


def test_a_publish_in_a_handler_and_in_a_request_is_below_their_spans(traced: Traced, kit: RmqTest) -> None:
    notify = handler("notices", name="notify")(succeed)
    charge = charging(lambda _message: notify.publish({}))
    with traced.provider.get_tracer("shop").start_as_current_span("POST /pay"):
        charge.publish({})
    kit.drain()

    assert parent_of(traced.one("send payments.charge")) == ids(traced.one("POST /pay"))
    assert parent_of(traced.one("send notices")) == ids(traced.one("process payments.charge"))
    assert len({ids(one)[0] for one in traced.spans}) == 1


def test_a_call_is_a_span_until_its_answer(traced: Traced, kit: RmqTest) -> None:  # noqa: ARG001 - the broker
    quote = handler("rates.quote", policy=OneShot(), name="quote")(lambda _message: {"rate": "1.08"})

    assert quote.call({"pair": "EURUSD"}) == {"rate": "1.08"}
    assert [one.name for one in traced.spans] == ["process rates.quote", "send rates.quote"]
    assert parent_of(traced.spans[0]) == ids(traced.spans[1])


def test_a_publish_that_fails_has_its_error(traced: Traced, kit: RmqTest) -> None:  # noqa: ARG001 - the broker
    with pytest.raises(MessageReturned) as raised:
        charging(succeed).publish({}, exchange="amq.topic", routing_key="nowhere")
    sent = traced.one("send amq.topic:nowhere")

    assert attributes_of(sent)["error.type"] == "django_rmq_retry.errors.MessageReturned"
    assert (sent.status.status_code, [one.name for one in sent.events]) == (StatusCode.ERROR, ["exception"])
    assert str(sent.status.description) in str(raised.value)


@pytest.mark.django_db
def test_a_message_in_the_outbox_holds_the_context_of_its_publish(
    traced: Traced, kit: RmqTest, django_capture_on_commit_callbacks: Any
) -> None:
    charge = charging(succeed)
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        charge.publish({})
        stored = bytes(OutboxMessage.objects.get().properties)
    kit.drain()
    sent, processed = traced.spans

    assert encoded(header_of(sent)) in stored
    assert attributes_of(sent)["rmq_retry.stored"] is True
    assert parent_of(processed) == ids(sent)


def test_a_context_that_the_sender_has_set_stays_and_is_linked(traced: Traced, kit: RmqTest) -> None:
    charge = charging(succeed)
    charge.publish({}, headers={"traceparent": OTHERS})
    kit.drain()
    sent, processed = traced.spans
    others = (int(OTHERS[3:35], 16), int(OTHERS[36:52], 16))

    assert links_of(sent) == [("creation", others)]
    assert parent_of(processed) == others
    assert [one.message.headers["traceparent"] for one in kit.attempts(charge)] == [OTHERS]


def test_baggage_reaches_the_handler_of_each_attempt(traced: Traced, kit: RmqTest) -> None:  # noqa: ARG001 - the hook
    found: list[object] = []

    def does(_message: Any) -> None:
        found.append(baggage.get_baggage("tenant"))
        raise BankDown

    token = context.attach(baggage.set_baggage("tenant", "north"))
    charging(does).publish({})
    context.detach(token)
    kit.drain()

    assert found == ["north", "north", "north"]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("tenant=" + "x" * 4000, True),
        ("tenant=" + "x" * 4000 + ",other=" + "x" * 4200, False),
        ("tenant=" + "\xe4" * 5000, False),
        ("tenant=1," + "x," * 4000, False),
    ],
)
def test_baggage_above_the_limits_of_w3c_is_not_read_and_not_logged(
    traced: Traced,  # noqa: ARG001 - the hook
    kit: RmqTest,
    caplog: pytest.LogCaptureFixture,
    given: str,
    read: bool,
) -> None:
    found: list[object] = []
    charge = charging(lambda _message: found.append(baggage.get_baggage("tenant") is not None))
    charge.publish({}, headers={"baggage": given, "tracestate": "a=" + "x" * 600 + "," * 5000})
    kit.drain()

    assert found == [read]
    assert [one.getMessage() for one in caplog.records if one.name.startswith("opentelemetry")] == []


@pytest.mark.parametrize(
    "forged",
    [
        *("00-zz", "", "x" * 5000, OTHERS.upper(), OTHERS + "\n\n", "ff" + OTHERS[2:]),
        *(f"00-{0:032x}-{1:016x}-01", f"00-{1:032x}-{0:016x}-01", 7, b"\xff\xfe", [OTHERS], {"a": OTHERS}, None, True),
    ],
)
def test_a_forged_context_is_ignored(started: Started, forged: object) -> None:
    def forge(one: Around) -> None:
        if isinstance(one, AroundPublish):
            one.add_headers({"traceparent": forged, "tracestate": forged, "baggage": forged})

    traced, rmq = started(forge)
    ran: list[object] = []
    charging(ran.append).publish({})
    rmq.drain()
    processed = traced.one("process payments.charge")

    assert (parent_of(processed), links_of(processed), len(ran)) == (None, [], 1)
    assert project_hooks().failures == {}


def test_spans_that_are_not_sampled_pass_their_context_on(started: Started) -> None:
    traced, rmq = started(sampler=ALWAYS_OFF)
    charge = charging(fail)
    charge.publish({})
    rmq.drain()
    first, second, third = (dict(one.message.headers) for one in rmq.attempts(charge))

    assert traced.spans == ()
    assert int(str(first["traceparent"])[-2:], 16) & 1 == 0
    assert first["traceparent"] == second["traceparent"] == third["traceparent"]
    assert str(second["rmq-retry-traceparent"]).split("-")[1] == str(first["traceparent"]).split("-")[1]
    assert second["rmq-retry-traceparent"] != third["rmq-retry-traceparent"]


def test_without_an_sdk_no_message_changes(around: Set, request: Any) -> None:
    around(Tracing(tracer_provider=trace.NoOpTracerProvider()))
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail)
    charge.publish({})
    rmq.drain()

    assert dict(rmq.attempts(charge)[0].message.headers) == {}
    assert "rmq-retry-traceparent" not in rmq.parked(charge).headers
    assert project_hooks().failures == {}


class Raising(SpanProcessor):
    """A processor that raises at the start or at the end of each span."""

    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._at == "start":
            raise RuntimeError("the collector is away")

    def on_end(self, span: ReadableSpan) -> None:
        if self._at == "end":
            raise RuntimeError("the collector is away")


class NoSampler(Sampler):
    def should_sample(self, *_given: Any, **_more: Any) -> SamplingResult:
        raise RuntimeError("no decision")

    def get_description(self) -> str:
        return "NoSampler"


@pytest.mark.parametrize("broken", ["start", "end", "sampler"])
def test_a_broken_tracer_costs_no_message(around: Set, broken: str, request: Any) -> None:
    provider = TracerProvider(shutdown_on_exit=False, sampler=NoSampler() if broken == "sampler" else None)
    provider.add_span_processor(Raising(broken))
    around(Tracing(tracer_provider=provider))
    rmq: RmqTest = request.getfixturevalue("rmq")
    charge = charging(fail)
    charge.publish({})
    rmq.drain()

    assert len(rmq.attempts(charge)) == 3
    assert rmq.parked(charge).code == "retries_exhausted"
    assert sum(project_hooks().failures.values()) == 4


def test_an_error_without_a_readable_text_costs_no_span(traced: Traced, kit: RmqTest) -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def does(_message: Any) -> None:
        raise Unreadable

    charging(does, policy=RetryThenPark(attempts=1)).publish({})
    kit.drain()

    assert traced.one("process payments.charge").status.status_code == StatusCode.ERROR
    assert traced.one("park payments.charge").status.status_code == StatusCode.ERROR
    assert project_hooks().failures == {}


def encoded(text: str, name: str = "traceparent") -> bytes:
    """A header as AMQP writes it: its name, the type of a long string, and its length before the text."""
    return bytes([len(name)]) + name.encode() + b"S" + len(text).to_bytes(4, "big") + text.encode()


CARRIERS: list[tuple[Policy, bool]] = [
    (RetryThenPark(attempts=3, backoff=Fixed(0.2), via=Ladder()), True),
    (RetryThenPark(attempts=3, via=DeadLetter(exchange="again", queue="charge.again", after=0.2)), False),
    (RetryThenPark(attempts=3, backoff=Fixed(0.2), via=WaitQueue("wait", "charge.wait")), True),
    (RetryThenPark(attempts=2, backoff=Fixed(0.2), via=NackRequeue()), False),
    (RetryThenPark(attempts=3, backoff=Fixed(0.2), via=Republish()), True),
    (RetryThenPark(attempts=3, backoff=Fixed(0.2), via=AckFirst()), True),
    (RetryThenPark(attempts=3, backoff=Fixed(0.2), via=InPlace()), True),
    (RetryThenPark(attempts=3, via=Native(1)), False),
]


@pytest.mark.parametrize("place", ["virtual", pytest.param("real", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("policy", "stamped"), CARRIERS, ids=lambda one: type(getattr(one, "via", one)).__name__)
def test_every_carrier_keeps_the_context_byte_for_byte(
    traced: Traced, policy: RetryThenPark, stamped: bool, place: str, request: Any
) -> None:
    native = isinstance(policy.via, Native)
    if native and place == "real":
        pytest.skip("Native needs RabbitMQ 4.3.")
    with ExitStack() as stack:
        url = request.getfixturevalue("broker_url") if place == "real" else None
        rmq = stack.enter_context(RmqTest(url=url, patience=20, version="4.3" if native else "4.0"))
        charge = charging(fail, policy=policy)
        token = context.attach(baggage.set_baggage("tenant", "north"))
        charge.publish({}, headers={"tracestate": "vendor=1"})
        context.detach(token)
        rmq.drain()
        raws = [one.message.raw for one in rmq.attempts(charge)]
        parked = rmq.parked(charge).message.raw
    sent = traced.one("send payments.charge")
    headers = [
        encoded(header_of(sent)), encoded("tenant=north", "baggage"), encoded("vendor=1", "tracestate")
    ]  # fmt: skip
    attempts = traced.named("process payments.charge")

    assert len(raws) == policy.attempts
    assert [one in raw for raw in [*raws, parked] for one in headers] == [True] * 3 * (len(raws) + 1)
    for number, one in enumerate(attempts[1:], 1):
        before = [("previous_attempt", ids(attempts[number - 1]))] if stamped else []
        assert links_of(one) == [("creation", ids(sent)), *before]


def test_a_message_in_quarantine_keeps_its_context(traced: Traced, kit: RmqTest) -> None:
    charge = charging(succeed)
    kit.fail_next(charge, "crash before ack", times=4)
    charge.publish({})
    kit.drain()
    sent = traced.one("send payments.charge")
    raws = [one.message.raw for one in kit.attempts(charge)]

    assert any(one.message.quarantined for one in kit.attempts(charge))
    assert [encoded(header_of(sent)) in raw for raw in raws] == [True] * len(raws)


def test_the_hook_with_its_defaults_uses_the_global_provider(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": ["django_rmq_retry.telemetry.opentelemetry.trace"]}

    with RmqTest() as rmq:
        charging(succeed).publish({})
        assert (rmq.drain(), project_hooks().failures) == (1, {})


def test_a_message_that_is_not_sampled_has_neither_spans_nor_a_context(started: Started) -> None:
    traced, kit = started(sample=0.0)
    ran: list[Any] = []
    # Its id contains the name of a header that carries a context.
    charging(ran.append).publish({}, message_id="7b3-traceparent")
    kit.drain()

    assert (list(traced.spans), dict(ran[0].headers)) == ([], {})


def test_a_message_of_a_trace_is_traced_whatever_the_sample(started: Started) -> None:
    traced, kit = started(sample=0.0)
    charge = charging(lambda _message: None)
    with traced.provider.get_tracer("shop").start_as_current_span("request"):
        charge.publish({})
    kit.drain()
    charge.publish({}, headers={"traceparent": header_of(traced.one("request"))})
    kit.drain()

    assert [one.name for one in traced.spans] == [
        *("send payments.charge", "request", "process payments.charge"),
        *("send payments.charge", "process payments.charge"),
    ]


@pytest.mark.parametrize("carrier", [Ladder(), InPlace()])
def test_the_retries_of_a_sampled_attempt_are_traced_too(started: Started, carrier: Any, monkeypatch: Any) -> None:
    traced, kit = started(sample=0.5)
    charge = charging(fail, policy=RetryThenPark(attempts=3, backoff=Fixed(1), via=carrier))
    # The publish is not sampled, the first attempt is, and nothing after it.
    chances = iter([0.9, 0.1])
    monkeypatch.setattr("random.random", lambda: next(chances, 0.9))
    charge.publish({})
    kit.drain()

    attempts = [one for one in traced.spans if one.name == "process payments.charge"]
    assert [one.attributes and one.attributes["rmq_retry.attempt"] for one in attempts] == [1, 2, 3]
    assert [[link.context.span_id for link in one.links] for one in attempts[1:]] == [
        [one.context.span_id] for one in attempts[:2]
    ]


class OwnPropagator(TextMapPropagator):
    """A propagator with a header that this package does not know."""

    w3c = TraceContextTextMapPropagator()

    @property
    def fields(self) -> set[str]:
        return {"x-bank-trace"}

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        found = carrier.get("x-bank-trace")
        if not found:
            return context if context is not None else get_current()
        return self.w3c.extract({"traceparent": found}, context)

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        found: dict[str, str] = {}
        self.w3c.inject(found, context)
        carrier["x-bank-trace"] = found["traceparent"]


def test_a_trace_carried_by_the_propagator_of_the_project_is_continued_whatever_the_sample(
    started: Started, request: Any
) -> None:
    before = propagate.get_global_textmap()
    request.addfinalizer(lambda: propagate.set_global_textmap(before))
    propagate.set_global_textmap(OwnPropagator())
    traced, kit = started(sample=0.0)
    charge = charging(lambda _message: None)
    with traced.provider.get_tracer("shop").start_as_current_span("request"):
        charge.publish({})
    kit.drain()

    assert len({one.context.trace_id for one in traced.spans}) == 1
    assert [one.name for one in traced.spans] == ["send payments.charge", "request", "process payments.charge"]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"first_attempt": "both"}, "first_attempt=… takes 'child' or 'link', not 'both'."),
        *(({"sample": sample}, "takes a share from 0 to 1") for sample in (-0.1, 1.1, "0.5", True, None)),
    ],
)
def test_an_invalid_argument_is_refused(options: Any, refused: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(refused)):
        Tracing(**options)
