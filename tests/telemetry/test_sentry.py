"""Reports to Sentry: the hook of django_rmq_retry.telemetry.sentry, with a transport that keeps the envelopes."""

import asyncio
import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import sentry_sdk
from django.core.exceptions import ImproperlyConfigured
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_rmq_retry import Delivery, Discard, Fixed, Handler, OneShot, Park, Retry, RetryThenPark, handler
from django_rmq_retry.hooks import AroundAttempt, AroundPublish, project_hooks
from django_rmq_retry.telemetry.sentry import Reporting
from django_rmq_retry.testing import RmqTest

REPORT = "django_rmq_retry.telemetry.sentry.report"
SECRET = "4000-0000-0000-9995"


class Kept(Transport):
    """A transport that sends nothing and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, Any]] = []
        self.sizes: list[int] = []
        self.raises: BaseException | None = None

    def capture_envelope(self, envelope: Envelope) -> None:
        if self.raises is not None:
            raise self.raises
        self.sizes.append(len(envelope.serialize()))
        self.items += [(str(item.type), item.payload.json) for item in envelope.items]

    @property
    def transactions(self) -> list[Any]:
        return [payload for kind, payload in self.items if kind == "transaction"]

    @property
    def events(self) -> list[Any]:
        return [payload for kind, payload in self.items if kind == "event"]

    @property
    def spans(self) -> list[Any]:
        """The streamed spans, with plain attributes, in the order in which they ended."""
        sentry_sdk.flush()
        streamed = [span for kind, payload in self.items if kind == "span" for span in payload["items"]]
        for span in streamed:
            span["attributes"] = {name: one["value"] for name, one in span["attributes"].items()}
        return streamed


Init = Callable[..., Kept]
Start = Callable[..., RmqTest]


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def init() -> Iterator[Init]:
    """Initialise the SDK for this test: with options, and with the integrations that create or drop events."""

    def init(**options: Any) -> Kept:
        kept = Kept()
        integrations = [LoggingIntegration(), DedupeIntegration()]
        values = {"dsn": "https://key@sentry.invalid/1", "traces_sample_rate": 1.0, **options}
        sentry_sdk.init(transport=kept, default_integrations=False, integrations=integrations, **values)
        return kept

    with sentry_sdk.isolation_scope():
        yield init
        sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def kept(init: Init) -> Kept:
    return init()


@pytest.fixture
def start(settings: Any, request: Any) -> Start:
    def start(*hooks: object) -> RmqTest:
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [*(hooks or [REPORT])]}
        rmq: RmqTest = request.getfixturevalue("rmq")
        return rmq

    return start


def charging(does: Callable[[Any], object], **options: Any) -> Handler[object]:
    policy = RetryThenPark(attempts=3, backoff=Fixed(5))
    return handler("payments.charge", name="charge", **{"policy": policy, **options})(does)


def fail(message: Any) -> None:
    card = message.data["card"]
    raise TimeoutError(f"no answer for {len(card)} digits")


def status_of(span: Any) -> object:
    """Return the status of a span; versions of the SDK differ in its place."""
    return span.get("status") or span["tags"]["status"]


def data_of(transaction: Any) -> dict[str, Any]:
    found: dict[str, Any] = transaction["contexts"]["trace"]["data"]
    return {name: value for name, value in found.items() if name.startswith("messaging.")}


def test_publish_and_attempt_are_one_trace_with_the_fields_of_the_queues_page(kept: Kept, start: Start) -> None:
    rmq = start()
    charge = charging(lambda _message: None)
    with sentry_sdk.start_transaction(op="http.server", name="/pay") as web:
        identifier = charge.publish({"payment": 7})
    rmq.drain()

    [page, attempt] = kept.transactions
    [publish] = page["spans"]
    common = {
        "messaging.system": "rabbitmq",
        "messaging.message.id": identifier,
        "messaging.destination.name": "payments.charge",
        "messaging.message.body.size": len(b'{"payment":7}'),
    }
    assert (publish["op"], publish["description"], status_of(publish)) == ("queue.publish", "charge", "ok")
    assert common.items() <= publish["data"].items()
    trace = attempt["contexts"]["trace"]
    assert (attempt["transaction"], trace["op"], trace["status"]) == ("charge", "queue.process", "ok")
    assert (trace["trace_id"], trace["parent_span_id"]) == (web.trace_id, publish["span_id"])
    found = data_of(attempt)
    assert 0 <= found.pop("messaging.message.receive.latency") < 60_000
    assert found == {**common, "messaging.message.retry.count": 0}
    assert attempt["transaction_info"] == {"source": "task"}


def test_each_retry_belongs_to_the_same_trace_and_has_no_latency(kept: Kept, start: Start) -> None:
    rmq = start()
    charge = charging(fail)
    with sentry_sdk.start_transaction(op="task", name="nightly") as nightly:
        charge.publish({"card": SECRET}, headers={"baggage": "tenant=north,sentry-trace_id=forged"})
    rmq.drain()

    attempts = kept.transactions[1:]
    traces = [one["contexts"]["trace"] for one in attempts]
    [publish] = kept.transactions[0]["spans"]
    assert {(one["trace_id"], one["parent_span_id"], one["status"]) for one in traces} == {
        (nightly.trace_id, publish["span_id"], "internal_error")
    }
    assert [data_of(one)["messaging.message.retry.count"] for one in attempts] == [0, 1, 2]
    assert ["messaging.message.receive.latency" in data_of(one) for one in attempts] == [True, False, False]
    headers = [one.message.headers for one in rmq.attempts(charge)]
    assert len({(one["sentry-trace"], one["baggage"]) for one in headers}) == 1
    assert str(headers[0]["baggage"]).startswith("tenant=north,sentry-")
    assert "forged" not in str(headers[0]["baggage"])


def test_latency_is_measured_from_the_timestamp_and_is_never_negative(kept: Kept, start: Start) -> None:
    rmq = start()
    charge = charging(lambda _message: None)
    for seconds in (-30, 3600):
        charge.publish({}, timestamp=int(time.time()) + seconds)
    rmq.drain()

    late, early = [data_of(one)["messaging.message.receive.latency"] for one in kept.transactions]
    assert 30_000 <= late < 90_000
    assert early == 0


def test_a_message_published_outside_of_a_transaction_carries_a_trace_without_a_span(kept: Kept, start: Start) -> None:
    rmq = start()
    charge = charging(lambda message: kept.items.append(("seen", dict(message.headers))))
    charge.publish({})
    rmq.drain()

    [(_, headers)] = [item for item in kept.items if item[0] == "seen"]
    trace = kept.transactions[0]["contexts"]["trace"]
    assert headers["sentry-trace"].startswith(trace["trace_id"])
    assert len(kept.transactions) == 1


def test_messages_without_a_trace_do_not_share_one(kept: Kept, start: Start) -> None:
    rmq = start(lambda one: None if isinstance(one, AroundPublish) else Reporting()(one))
    charge = charging(lambda _message: None)
    for headers in ({}, {}, {"sentry-trace": 7, "baggage": b"\xff"}, {"sentry-trace": "zz"}):
        charge.publish({}, headers=headers)
    rmq.drain()

    assert len({one["contexts"]["trace"]["trace_id"] for one in kept.transactions}) == 4


def test_a_baggage_above_the_limit_of_w3c_reaches_no_envelope(kept: Kept, start: Start) -> None:
    rmq = start(lambda one: None if isinstance(one, AroundPublish) else Reporting()(one))
    charge, trace = charging(fail), "0af7651916cd43dd8448eb211c80319c"
    for size in (4000, 100_000):
        forged = f"sentry-trace_id={trace},sentry-release={'x' * size}"
        charge.publish({}, headers={"sentry-trace": f"{trace}-b7ad6b7169203331-1", "baggage": forged})
    rmq.drain()

    assert {one["contexts"]["trace"]["trace_id"] for one in kept.transactions} == {trace}
    assert 4000 < max(kept.sizes) < 50_000


def test_without_tracing_errors_still_belong_to_the_trace_of_the_publish(init: Init, start: Start) -> None:
    kept, rmq = init(traces_sample_rate=None), start()
    charge = charging(fail)
    trace = str(sentry_sdk.get_traceparent()).split("-")[0]
    charge.publish({"card": SECRET})
    rmq.drain()

    assert kept.transactions == []
    assert [one["contexts"]["trace"]["trace_id"] for one in kept.events] == [trace]


def test_coroutines_that_publish_together_have_sibling_spans(kept: Kept, start: Start) -> None:
    rmq = start()
    mail = handler("mail.send", name="mail", policy=OneShot())(lambda _message: None)

    async def charge_all(_message: Any) -> None:
        await asyncio.gather(*(mail.apublish({"number": number}) for number in range(3)))

    charging(charge_all).publish({})
    rmq.drain()

    charged = kept.transactions[0]
    assert {one["parent_span_id"] for one in charged["spans"]} == {charged["contexts"]["trace"]["span_id"]}
    assert len(charged["spans"]) == 3


def test_a_publish_that_fails_has_a_failed_span(kept: Kept, start: Start) -> None:
    start()
    charge = charging(lambda _message: None)
    with sentry_sdk.start_transaction(op="task", name="nightly"), pytest.raises(Exception, match="no queue"):
        charge.publish({}, exchange="amq.topic", routing_key="nowhere")

    [publish] = kept.transactions[0]["spans"]
    assert (status_of(publish), publish["data"]["messaging.destination.name"]) == ("internal_error", "amq.topic")


def test_one_group_of_parked_messages_is_one_issue_and_retries_are_not_reported(kept: Kept, start: Start) -> None:
    rmq = start()
    charge = charging(fail, keys=lambda message: [message.data["order"]])
    for order in ("PAY-1", "PAY-2"):
        charge.publish({"card": SECRET, "order": order}, message_id=f"id-{order}")
    rmq.drain()
    parked = rmq.all_parked(charge)

    assert len(kept.events) == 2
    assert {tuple(one["fingerprint"]) for one in kept.events} == {
        (parked[0].headers["rmq-retry-fingerprint"],),
        (parked[1].headers["rmq-retry-fingerprint"],),
    }
    assert len({tuple(one["fingerprint"]) for one in kept.events}) == 1
    assert [one["tags"] for one in kept.events] == [
        {
            "queue": "payments.charge",
            "handler": "charge",
            "attempt": "3",
            "message_id": f"id-{order}",
            "key": order,
            "reason": "retries_exhausted",
        }
        for order in ("PAY-1", "PAY-2")
    ]
    [error] = kept.events[0]["exception"]["values"]
    assert (error["type"], error["mechanism"]["type"]) == ("TimeoutError", "django_rmq_retry")
    assert kept.events[0]["level"] == "error"
    assert kept.events[0]["contexts"]["rmq_retry"]["attempts"] == 3


def test_each_attempt_is_reported_if_asked_for(kept: Kept, start: Start) -> None:
    rmq = start(Reporting(each_attempt=True))
    charging(fail).publish({"card": SECRET})
    rmq.drain()

    assert [(one["level"], one["tags"]["attempt"]) for one in kept.events] == [
        ("warning", "1"),
        ("warning", "2"),
        ("error", "3"),
    ]
    assert [one["exception"]["values"][0]["mechanism"]["handled"] for one in kept.events] == [True, True, False]


@pytest.mark.parametrize("local_variables", [False, True])
def test_no_report_contains_body_or_headers(kept: Kept, start: Start, local_variables: bool) -> None:
    rmq = start(Reporting(each_attempt=True, local_variables=local_variables))
    charge = charging(fail)
    charge.publish({"card": SECRET}, headers={"authorization": "Bearer xyzzy"})
    rmq.drain()

    sent = repr(kept.items)
    own = [
        frame.get("vars")
        for event in kept.events
        for frame in event["exception"]["values"][0]["stacktrace"]["frames"]
        if frame["module"].startswith("django_rmq_retry")
    ]
    assert "xyzzy" not in sent
    assert (SECRET in sent) is local_variables
    assert len(own) > 0
    assert set(own) == {None}


def test_an_event_that_a_handler_sends_has_the_tags_and_no_data_of_this_package(init: Init, start: Start) -> None:
    kept, rmq = init(attach_stacktrace=True), start()
    charging(lambda _message: sentry_sdk.capture_message("hello")).publish({"card": SECRET})
    rmq.drain()

    [event] = kept.events
    assert event["tags"]["handler"] == "charge"
    frames = event["threads"]["values"][0]["stacktrace"]["frames"]
    own = [one.get("vars") for one in frames if one["module"].startswith("django_rmq_retry.consumer")]
    assert own
    assert SECRET not in repr(own)


def test_an_exception_that_the_handler_has_logged_is_reported_in_its_group_too(kept: Kept, start: Start) -> None:
    rmq = start()

    def log_and_fail(message: Any) -> None:
        try:
            fail(message)
        except TimeoutError:
            logging.getLogger("payments").exception("Charging failed")
            raise

    charging(log_and_fail, policy=RetryThenPark(attempts=1)).publish({"card": SECRET})
    rmq.drain()

    assert [one.get("logger", "ours") for one in kept.events] == ["payments", "ours"]
    assert ["fingerprint" in one for one in kept.events] == [False, True]


def end(raised: Exception | None) -> Callable[[Any], None]:
    def end(_message: Any) -> None:
        if raised is not None:
            raise raised

    return end


def wait(_message: Any) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize(
    ("does", "status"),
    [
        (end(Discard("Superseded")), "cancelled"),
        (end(Park("Frozen")), "internal_error"),
        (end(None), "ok"),
        (wait, "deadline_exceeded"),
    ],
)
def test_the_status_of_an_attempt_follows_its_verdict(
    kept: Kept, start: Start, does: Callable[[Any], None], status: str
) -> None:
    rmq = start()
    charging(does, timeout=0.05 if does is wait else None, policy=RetryThenPark(attempts=1)).publish({})
    rmq.drain()

    assert [one["contexts"]["trace"]["status"] for one in kept.transactions] == [status]


def test_an_attempt_without_a_verdict_is_aborted_and_not_reported(kept: Kept) -> None:
    one = AroundAttempt(delivery=Delivery(queue="payments.charge", body=b"{}"), handler="charge")
    context = Reporting(each_attempt=True)(one)
    assert context is not None
    with context:
        one.error = OSError("the database is away")

    assert [one["contexts"]["trace"]["status"] for one in kept.transactions] == ["aborted"]
    assert kept.events == []


@pytest.mark.django_db
def test_a_message_parked_without_an_exception_is_reported_as_a_message(kept: Kept, start: Start) -> None:
    rmq = start()
    charge = charging(lambda _message: None, once=True)
    charge.publish({"card": 1}, message_id="same")
    charge.publish({"card": 2}, message_id="same")
    rmq.drain()

    [event] = kept.events
    assert (event["tags"]["reason"], "exception" in event) == ("identity_conflict", False)
    assert event["message"]
    assert event["fingerprint"] == [rmq.parked(charge).headers["rmq-retry-fingerprint"]]


def test_sampling_knows_queue_handler_and_attempt(init: Init, start: Start) -> None:
    seen: list[Any] = []

    def sampled(context: Any) -> float:
        seen.append(context.get("rmq_retry"))
        return 0.0

    kept, rmq = init(traces_sample_rate=None, traces_sampler=sampled), start()
    charging(lambda _message: None).publish({})
    rmq.drain()

    assert (seen, kept.transactions) == ([{"queue": "payments.charge", "handler": "charge", "attempt": 1}], [])


@pytest.mark.parametrize("error", [RuntimeError("full disk"), SystemExit(3)])
def test_a_transport_that_raises_costs_no_message(kept: Kept, start: Start, error: BaseException) -> None:
    rmq = start()
    ran: list[object] = []

    def run(message: Any) -> None:
        ran.append(message)
        raise Retry if message.attempt == 1 else TimeoutError("no answer")

    charge = charging(run, policy=RetryThenPark(attempts=2))
    kept.raises = error
    charge.publish({})
    rmq.drain()

    assert len(ran) == 2
    assert len(rmq.all_parked(charge)) == 1
    assert sentry_sdk.get_current_span() is None
    assert sentry_sdk.get_isolation_scope()._tags == {}


def test_without_an_initialised_sdk_nothing_is_added(start: Start) -> None:
    rmq = start()
    charge = charging(lambda _message: None)
    charge.publish({})
    rmq.drain()

    assert [dict(one.message.headers) for one in rmq.attempts(charge)] == [{}]
    assert project_hooks().failures == {}


def test_two_worker_threads_do_not_mix_their_tags(kept: Kept) -> None:
    together = Barrier(2, timeout=20)

    def attempt(number: int) -> None:
        one = AroundAttempt(delivery=Delivery(queue=f"q{number}", body=b"", attempt=number), handler=f"h{number}")
        project_hooks().leave(project_hooks().enter(one, project_hooks().wanting(one.delivery)))
        context = Reporting()(one)
        assert context is not None
        with context:
            together.wait()
            sentry_sdk.capture_message(str(number))
            together.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(attempt, [1, 2]))

    found = {(one["message"], one["transaction"], *sorted(one["tags"].items())) for one in kept.events}
    assert found == {(str(n), f"h{n}", ("attempt", str(n)), ("handler", f"h{n}"), ("queue", f"q{n}")) for n in (1, 2)}


@pytest.mark.skipif(not hasattr(sentry_sdk, "traces"), reason="this version of sentry-sdk streams no spans")
def test_streamed_spans_have_the_same_tree_and_fields(init: Init, start: Start) -> None:
    kept, rmq = init(trace_lifecycle="stream"), start()
    charge = charging(fail)
    with sentry_sdk.traces.start_span(name="nightly") as nightly:
        identifier = charge.publish({"card": SECRET})
    rmq.drain()

    publish, *attempts = [one for one in kept.spans if one["attributes"].get("sentry.op", "").startswith("queue.")]
    assert [one["attributes"]["sentry.op"] for one in (publish, *attempts)] == ["queue.publish", *["queue.process"] * 3]
    assert {one["trace_id"] for one in (publish, *attempts)} == {nightly.trace_id}
    assert publish["parent_span_id"] == nightly.span_id
    assert {one["parent_span_id"] for one in attempts} == {publish["span_id"]}
    assert [one["attributes"]["messaging.message.retry.count"] for one in attempts] == [0, 1, 2]
    assert {one["attributes"]["messaging.message.id"] for one in (publish, *attempts)} == {identifier}
    assert [one["status"] for one in (publish, *attempts)] == ["ok", "error", "error", "error"]


@pytest.mark.parametrize(
    ("module", "lacked", "extra"),
    [("sentry.report", "sentry_sdk", "sentry"), ("opentelemetry.trace", "opentelemetry", "otel")],
)
def test_the_missing_package_is_named_with_the_command_that_installs_it(
    settings: Any, monkeypatch: pytest.MonkeyPatch, module: str, lacked: str, extra: str
) -> None:
    name = module.partition(".")[0]
    package = importlib.import_module("django_rmq_retry.telemetry")
    importlib.import_module(f"{package.__name__}.{name}")
    monkeypatch.setitem(sys.modules, lacked, None)
    monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}")
    monkeypatch.setattr(package, name, None)
    hook = f"{package.__name__}.{module}"
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [hook]}

    with pytest.raises(ImproperlyConfigured, match=rf"pip install 'django-rmq-retry\[{extra}\]'") as refused:
        project_hooks()
    assert hook in str(refused.value)
