"""Retries are sent before they are due: all that wait for a queue, or chosen ones; the others stay as they are."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pika
import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import (
    DeadLetter,
    Delivery,
    Exchange,
    Ladder,
    Native,
    Queue,
    Republish,
    RetryThenPark,
    WaitQueue,
    handler,
)
from django_rmq_retry.amqp import withdrawal
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.handler import Handler
from django_rmq_retry.messages import Properties, encode_properties
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.models import (
    Attempt,
    AttemptName,
    BlockedMessage,
    EarlyRetry,
    ItemState,
    RequeueRun,
    RunState,
    RunWait,
)
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked import early_choice, early_runs, run_steering
from django_rmq_retry.parked.early_choice import RetryFilter
from django_rmq_retry.parked.early_retries import WaitingReport, report, waiting_for
from django_rmq_retry.parked.operators import Refused
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.run_steps import RunSteps, send_run
from django_rmq_retry.parked.transfer import early_lines
from django_rmq_retry.policies.carriers import Carrier, Hop
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.recurring import thread_name
from django_rmq_retry.testing import isolated_handlers
from tests.admin.made import blocked_key, consumer
from tests.amqp.declared import declare, has, ready
from tests.operators.made import ANN, group
from tests.tooling.brokers import using_broker
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.contract, pytest.mark.on_both]

WORK = "ledger.post"
WAITS_SECONDS = 60.0
WAITING = f"{WORK}.retry.1m"
BANK = Exchange("bank", "direct")
LOOKS = 25
"""More than RabbitMQ 4.0's own delivery limit of 20."""
CARRIERS: dict[str, tuple[Carrier, tuple[Any, ...], str]] = {
    "ladder": (Ladder([WAITS_SECONDS]), (), WAITING),
    "dead letter": (
        DeadLetter(exchange="ledger.again", queue="ledger.wait", after=60),
        (BANK.bind("post"),),
        "ledger.wait",
    ),
    "wait queue": (WaitQueue(exchange="ledger.wait", queue="ledger.wait"), (BANK.bind("post"),), "ledger.wait"),
}


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    """The handlers are the test's own."""
    with isolated_handlers():
        yield


@pytest.fixture(params=["quorum", pytest.param("classic", marks=pytest.mark.nightly)])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


EACH_KIND = pytest.mark.parametrize("kind", ["quorum", "classic"])
"""For what each kind of queue does in its own way: how it takes back what was looked at, and in what order."""


Arrived = tuple[str, dict[str, Any], str, str]
"""A message as it arrives: id, headers, exchange and routing key."""
Made = Callable[..., Handler[Any]]


@pytest.fixture
def made(vhost: Vhost, settings: Any, kind: Any) -> Iterator[Made]:
    """Make a handler with a carrier, and its queues on the broker."""
    with using_broker(settings, vhost.url, PUBLISH_TIMEOUT=20):

        def make(
            via: Carrier | None = None, bindings: tuple[Any, ...] = (), max_length: int | None = None
        ) -> Handler[Any]:
            @handler(
                Queue(WORK, type=kind, bindings=bindings, max_length=max_length),
                policy=RetryThenPark(attempts=5, via=via or Ladder([WAITS_SECONDS])),
                keys=lambda message: message.data["key"],
            )
            def post(message: Delivery) -> None:
                """Nothing."""

            declare(vhost, registry.topology())
            return post

        yield make


def failed(
    channel: BlockingChannel, *names: str, attempts: int = 2, after: float = WAITS_SECONDS, error: str = "BankDown"
) -> None:
    """Let these messages fail: each waits in the waiting queue, and its attempt is recorded."""
    subscription = registry.subscriptions()[0]
    now = timezone.now()
    for name in names:
        body = json.dumps({"key": f"K-{name}"}).encode()
        raw = encode_properties(Properties(message_id=name, delivery_mode=2))
        delivery = Delivery(queue=WORK, body=body, raw=raw, exchange="bank", routing_key="post")
        stamp = Stamp(attempts=attempts, since=1, exchange="bank", routing_key="post", queue=WORK)
        copy = subscription.policy.via.carry(subscription.route, delivery, Hop(delay=after, stamp=stamp)).copy
        if copy is None:
            rejected(channel, name, body, attempts)
        else:
            sent = broker_connections.connections.publisher
            sent.publish(copy)
        Attempt.objects.create(
            identity=attempt_identity(WORK, name, body), queue=WORK, handler=subscription.name, message_id=name,
            number=attempts, started_at=now - timedelta(seconds=1), seconds=0.1, verdict="retry", wait=after,
            next_at=now + timedelta(seconds=after), error=error, host="h", pid=1, thread="t",
        )  # fmt: skip
        for value in (name, f"K-{name}", "customer"):
            named = {"identity": attempt_identity(WORK, name, body), "value": value, "folded": folded(value)}
            AttemptName.objects.create(at=now, **named)


def looked(wanted: RetryFilter) -> WaitingReport:
    with broker_connections.connections.session(purpose="test", patience=10) as session:
        assert session is not None
        return report(session, WORK, wanted)


def rejected(channel: BlockingChannel, name: str, body: bytes, attempts: int) -> None:
    """Publish a message, and reject it as often."""
    channel.basic_publish("bank", "post", body, pika.BasicProperties(message_id=name, delivery_mode=2))
    assert attempts == 1, "each rejection waits"
    tags: list[int] = []

    def take() -> bool:
        method, _properties, _body = channel.basic_get(WORK)
        tags.extend([method.delivery_tag or 0] if method is not None else [])
        return bool(tags)

    wait_until(take, what="the message")
    channel.basic_reject(tags[0], requeue=False)


def sent(run: RequeueRun, seconds: float = 20.0) -> RequeueRun:
    return send_run(run.pk, thread_name("test"), for_seconds=seconds, outcomes=False)


def stepped(run: RequeueRun, most: int) -> int:
    """Drive a run until it has sent this many; return how many it has sent."""
    driver = RunSteps(run.pk, thread_name("test"))
    try:
        wait_until(lambda: driver.step() is None or RequeueRun.objects.get(pk=run.pk).sent >= most, what="the run")
    finally:
        driver.end()
    return RequeueRun.objects.get(pk=run.pk).sent


def arrived(channel: BlockingChannel, count: int) -> list[Arrived]:
    """Take this many messages out of the work queue."""
    found: list[Arrived] = []

    def take() -> bool:
        method, properties, _body = channel.basic_get(WORK, auto_ack=True)
        if method is not None and properties is not None:
            where = str(method.exchange), str(method.routing_key)
            found.append((str(properties.message_id), dict(properties.headers or {}), *where))
        return len(found) == count

    wait_until(take, what=f"{count} messages in {WORK}")
    return found


@EACH_KIND
@pytest.mark.parametrize("carrier", CARRIERS)
def test_all_waiting_retries_return_where_their_queue_would_send_them_and_their_attempts_go_on(
    carrier: str, made: Made, amqp: BlockingChannel
) -> None:
    via, bindings, waiting_queue = CARRIERS[carrier]
    made(via, bindings)
    attempts = 1 if carrier == "dead letter" else 2
    failed(amqp, "a", "b", "c", attempts=attempts)
    has(amqp, waiting_queue, 3)

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=3))

    back = arrived(amqp, 3)
    assert [name for name, *_ in back] == ["a", "b", "c"]
    assert {headers["rmq-retry-attempts"] for _, headers, *_ in back} == {attempts}
    assert not any("x-death" in headers or "rmq-retry-wait" in headers for _, headers, *_ in back)
    expected = ("", WORK) if carrier == "ladder" else ("bank", "post")
    assert {(exchange, key) for *_, exchange, key in back} == {expected}
    assert (run.sent, run.total, run.state) == (3, 3, RunState.WAITING)
    assert run.sent_at == max(run.retries.values_list("sent_at", flat=True))
    assert ready(amqp, waiting_queue) == 0


@pytest.mark.parametrize("kind", ["classic"])
def test_a_run_that_sends_whenever_a_full_queue_has_room_keeps_its_reason(made: Made, amqp: BlockingChannel) -> None:
    """What the queue had taken just before it refused the next one went back, too: both copies were handled."""
    made(max_length=1)
    failed(amqp, "a", "b", "c")
    has(amqp, WAITING, 3)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=100), count=3)
    driver = RunSteps(run.pk, thread_name("test"))

    def full(sent: int) -> bool:
        driver.step()
        run.refresh_from_db()
        return (run.sent, run.wait) == (sent, RunWait.QUEUE_FULL)

    try:
        wait_until(lambda: full(1), what="the full queue")
        arrived(amqp, 1)
        wait_until(lambda: full(2), what="the second one")
    finally:
        driver.end()

    assert run.idle_since(timezone.now()) is None
    has(amqp, WAITING, 1)
    assert [name for name, *_ in arrived(amqp, 1)] == ["b"]


def test_a_chosen_retry_is_sent_and_the_others_keep_their_order_and_their_time(
    made: Made, amqp: BlockingChannel
) -> None:
    made(Ladder([6]))
    waiting_queue = f"{WORK}.retry.6s"
    begun = time.monotonic()
    failed(amqp, "a", "b", "c", "d", "e", "f", after=6)
    has(amqp, waiting_queue, 6)

    run = sent(
        early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=1, wanted=RetryFilter(key=("K-c",)))
    )

    assert (run.sent, run.total) == (1, 1)
    assert [name for name, *_ in arrived(amqp, 1)] == ["c"]
    assert ready(amqp, waiting_queue) == 5
    assert [name for name, *_ in arrived(amqp, 5)] == ["a", "b", "d", "e", "f"]
    assert time.monotonic() - begun > 6


def test_what_is_left_out_is_never_sent_and_waits_until_it_is_due(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, "a", "b", "c")
    has(amqp, WAITING, 3)
    wanted = RetryFilter(without=("K-b", "K-B", "gone"))
    found = looked(wanted)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=2, wanted=wanted, left=found.left)

    assert (found.count, found.left.count, found.left.missing) == (2, 1, ("K-B", "gone"))
    assert found.left.alike == {"K-B": ["K-b"]}
    assert [one.key for one in found.due] == ["K-a", "K-c"]
    assert (sent(run).sent, run.excluded) == (2, 1)
    assert [name for name, *_ in arrived(amqp, 2)] == ["a", "c"]
    assert ready(amqp, WAITING) == 1
    assert RetryFilter.of(RequeueRun.objects.get().selection["filter"]) == wanted


def test_a_retry_in_front_of_one_to_leave_out_is_left_out_too(made: Made, amqp: BlockingChannel) -> None:
    """K-z was paid by hand. It waits behind K-a by its ordering key, and would be handled as soon as K-a is."""
    made()
    failed(amqp, "a", "b")
    has(amqp, WAITING, 2)
    identity = attempt_identity(WORK, "a", json.dumps({"key": "K-a"}).encode())
    key = blocked_key(key="ACC-5", identity=identity, queue=WORK, waiting=1)
    names = {"shown": "z", "name": "z", "identity": "message:z", "digest": "z", "waiting_since": timezone.now()}
    BlockedMessage.objects.create(block=key, body=b'{"key": "K-z"}', properties=b"", **names)
    wanted = RetryFilter(without=("K-z",))
    found = looked(wanted)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=1, wanted=wanted, left=found.left)

    [(name, behind)] = found.left.in_front
    assert (name, behind.key, behind.ordering_key, found.count) == ("K-a", "K-z", "ACC-5", 1)
    assert sent(run).sent == 1
    assert [name for name, *_ in arrived(amqp, 1)] == ["b"]
    assert ready(amqp, WAITING) == 1


def test_a_retry_whose_keys_cannot_be_read_may_be_one_to_leave_out(
    made: Made, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    failed(amqp, "a", "b")
    has(amqp, WAITING, 2)
    monkeypatch.setattr(early_choice, "readable_keys", lambda _of, delivery: ["K-b"] if delivery.id == "b" else [])
    found = looked(RetryFilter(without=("K-x",)))

    assert (found.count, found.left.nameless, found.left.total) == (1, 1, 1)


def test_a_retry_behind_many_others_is_found_without_holding_their_bodies(
    made: Made, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withdrawal, "MOST_FETCHED", 2)
    made()
    names = [f"m{number}" for number in range(9)]
    failed(amqp, *names)
    has(amqp, WAITING, 9)

    run = sent(
        early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=1, wanted=RetryFilter(key=("K-m8",)))
    )

    assert (run.sent, run.note) == (1, "")
    assert [name for name, *_ in arrived(amqp, 1)] == ["m8"]
    has(amqp, WAITING, 8)


def test_a_run_that_could_not_look_at_all_says_how_many_it_looked_at_and_what_to_do(
    made: Made, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withdrawal, "FIRST_FETCHED", 1)
    monkeypatch.setattr(withdrawal, "MOST_LOOKED_AT", 3)
    made()
    failed(amqp, "a", "b", "c", "d", "e")
    has(amqp, WAITING, 5)
    wanted = RetryFilter(key=("K-b", "K-e"))
    with broker_connections.connections.session(purpose="test", patience=10) as session:
        assert session is not None
        found = report(session, WORK, wanted)

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=2, wanted=wanted))

    said = f"Only the first 3 messages of {WAITING} were looked at. To send those behind them, choose all that wait"
    assert found.count == 1
    assert found.not_seen.startswith(said)
    assert run.explanation.startswith(said)
    assert [name for name, *_ in arrived(amqp, 1)] == ["b"]
    has(amqp, WAITING, 4)


def test_retries_that_runs_held_and_put_back_arrive_without_a_suspicion(made: Made, amqp: BlockingChannel) -> None:
    """What returns with its channel is counted as lost by a worker, and shown when it arrives in the work queue."""
    made(Ladder([8]))
    failed(amqp, *[f"m{number}" for number in range(5)], after=8)
    has(amqp, f"{WORK}.retry.8s", 5)

    for left in (4, 3, 2):
        run = early_runs.start(WORK, ANN, RequeueOptions(rate=2, stop_at=None), count=5)
        assert stepped(run, 1) == 1
        run_steering.stop_run(run.pk, ANN)
        has(amqp, f"{WORK}.retry.8s", left)

    assert {int(headers.get("x-delivery-count", 0)) for _, headers, *_ in arrived(amqp, 5)} == {0}


def test_what_was_published_with_a_delay_is_counted_apart_from_the_retries(made: Made, amqp: BlockingChannel) -> None:
    charge = made()
    failed(amqp, "a", "b", "c")
    for name in ("x", "y"):
        charge.publish({"key": name}, delay=WAITS_SECONDS)
    has(amqp, WAITING, 5)
    with broker_connections.connections.session(purpose="test", patience=10) as session:
        assert session is not None
        found = report(session, WORK, RetryFilter())
    assert (found.count, found.delayed) == (3, 2)

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=3, delayed=2))

    assert (run.total, run.sent, run.skipped) == (3, 3, 0)
    has(amqp, WAITING, 2)


@EACH_KIND
def test_looking_often_sends_nothing_early_and_keeps_the_order(made: Made, amqp: BlockingChannel) -> None:
    """RabbitMQ 4.0 gives up a quorum queue's message at the 21st return, and 3.10 puts it at the end."""
    made()
    names = [f"m{number}" for number in range(10)]
    failed(amqp, *names)
    has(amqp, WAITING, 10)

    for _ in range(LOOKS):
        with broker_connections.connections.session(purpose="test", patience=10) as session:
            assert session is not None
            assert report(session, WORK, RetryFilter(key=("K-m4",))).count == 1

    assert ready(amqp, WORK) == 0
    sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=10))
    assert [name for name, *_ in arrived(amqp, 10)] == names


@pytest.mark.parametrize(
    "wanted",
    [
        RetryFilter(key=("b",)),
        RetryFilter(key=("K-b", "K-unknown")),
        RetryFilter(error=("LedgerClosed",)),
        RetryFilter(group=(0,)),
        RetryFilter(handler=("post",), error=("LedgerClosed",)),
    ],
    ids=str,
)
def test_retries_are_chosen_by_key_message_id_error_group_and_handler(
    wanted: RetryFilter, made: Made, amqp: BlockingChannel
) -> None:
    made()
    if wanted.handler:
        wanted = replace(wanted, handler=(registry.subscriptions()[0].name,))
    failed(amqp, "a", "c")
    failed(amqp, "b", error="LedgerClosed")
    if wanted.group:
        wanted = replace(wanted, group=(group(fingerprint="f1").pk,))
        Attempt.objects.filter(message_id="b").update(fingerprint="f1")
    has(amqp, WAITING, 3)
    with broker_connections.connections.session(purpose="test", patience=10) as session:
        assert session is not None
        found = report(session, WORK, wanted)
    assert (found.count, [cause.error for cause in found.causes]) == (1, ["LedgerClosed"])

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=1, wanted=wanted))

    assert run.sent == 1
    assert [name for name, *_ in arrived(amqp, 1)] == ["b"]
    has(amqp, WAITING, 2)


def test_messages_published_with_a_delay_wait_on(made: Made, amqp: BlockingChannel) -> None:
    made().publish({"key": "K-later"}, delay=WAITS_SECONDS, message_id="later")
    failed(amqp, "a")
    has(amqp, WAITING, 2)

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=2))

    assert [name for name, *_ in arrived(amqp, 1)] == ["a"]
    has(amqp, WAITING, 1)
    assert (run.sent, run.skipped, run.total) == (1, 1, 2)


def test_a_retry_that_has_to_wait_in_several_queues_waits_in_none_of_them(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, "a", after=WAITS_SECONDS * 2.5)
    has(amqp, WAITING, 1)

    sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20), count=1))

    [(_, headers, *_)] = arrived(amqp, 1)
    assert "rmq-retry-wait" not in headers
    assert headers["rmq-retry-attempts"] == 2


def test_a_run_sends_no_message_twice_that_fails_again_and_its_guard_pauses_it(
    made: Made, amqp: BlockingChannel
) -> None:
    made()
    names = [f"m{number}" for number in range(8)]
    failed(amqp, *names)
    has(amqp, WAITING, 8)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=5, stop_at=20), count=8)

    again = [name for name, *_ in arrived(amqp, stepped(run, 5))]
    failed(amqp, *again, attempts=3)
    Attempt.objects.filter(number=3).update(started_at=timezone.now())
    run = sent(run)

    assert (run.state, run.wait, run.failed) == (RunState.PAUSED, RunWait.GUARD, len(again))
    run_steering.change_rate(run.pk, ANN, rate=100)
    run = sent(run_steering.resume_run(run.pk, ANN, reason="looked into"))
    assert sorted([*again, *(name for name, *_ in arrived(amqp, 8 - len(again)))]) == names
    assert ready(amqp, WAITING) == len(again)
    assert run.sent == 8


def test_what_became_of_each_retry_ends_the_run(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, "a", "b")
    has(amqp, WAITING, 2)
    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=None), count=2))
    arrived(amqp, 2)
    assert run.state == RunState.WAITING

    for name, verdict in (("a", "ack"), ("b", "park")):
        row = Attempt.objects.get(message_id=name)
        row.pk, row.verdict, row.number, row.next_at = None, verdict, 3, None
        row.started_at = timezone.now()
        row.save()
    run = send_run(run.pk, thread_name("test"), for_seconds=10)

    assert (run.state, run.processed, run.failed) == (RunState.FINISHED, 1, 1)
    states = dict(EarlyRetry.objects.filter(run=run).values_list("shown", "state"))
    assert states == {"K-a": ItemState.PROCESSED, "K-b": ItemState.FAILED}


def test_a_paused_run_puts_the_retries_back_that_it_holds(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, *[f"m{number}" for number in range(6)])
    has(amqp, WAITING, 6)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=2, stop_at=None), count=6)

    left = 6 - stepped(run, 2)
    run_steering.stop_run(run.pk, ANN, reason="the bank is away again")

    has(amqp, WAITING, left)
    assert 0 < left < 6
    assert RequeueRun.objects.get(pk=run.pk).skipped == left


def test_a_resumed_run_sends_what_has_not_become_due_while_it_was_paused(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, "a", "b", "c", "d")
    has(amqp, WAITING, 4)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20, canary=True), count=4)
    stepped(run, 1)
    run_steering.pause_run(run.pk, ANN)
    (first, *_), gone = arrived(amqp, 1)[0], "d"

    for name in (first, gone):
        row = Attempt.objects.get(message_id=name)
        row.pk, row.verdict, row.number, row.next_at, row.started_at = None, "ack", 3, None, timezone.now()
        row.save()
    early_runs.leave_out_due()
    run.refresh_from_db()
    assert (first, run.state, run.skipped, run.unsent) == ("a", RunState.PAUSED, 1, 2)

    run = sent(run_steering.resume_run(run.pk, ANN))
    assert (run.state, run.sent, run.skipped) == (RunState.WAITING, 3, 1)
    assert sorted(name for name, *_ in arrived(amqp, 2)) == ["b", "c"]


def test_a_second_run_over_the_same_queue_is_refused_with_the_name_of_the_first(
    made: Made, amqp: BlockingChannel
) -> None:
    made()
    failed(amqp, "a")
    has(amqp, WAITING, 1)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1)

    with pytest.raises(Refused, match=f"Requeue run {run.pk} by ann sends retries of ledger.post already"):
        early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1)
    run_steering.stop_run(run.pk, ANN)
    assert sent(early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1)).sent == 1


def test_the_canary_is_sent_alone_and_the_others_after_it_was_processed(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, "a", "b", "c")
    has(amqp, WAITING, 3)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=20, canary=True), count=3)

    assert stepped(run, 1) == 1
    has(amqp, WAITING, 2)
    row = Attempt.objects.get(message_id=arrived(amqp, 1)[0][0])
    row.pk, row.verdict, row.number, row.next_at, row.started_at = None, "ack", 3, None, timezone.now()
    row.save()
    assert sent(run).sent == 3


def test_twenty_retries_are_sent_and_the_others_wait_in_their_queue_for_the_first_outcomes(
    made: Made, amqp: BlockingChannel
) -> None:
    made()
    consumer(queues=[WORK])
    failed(amqp, *(f"m{number}" for number in range(23)))
    has(amqp, WAITING, 23)
    run = early_runs.start(WORK, ANN, RequeueOptions(rate=1000, stop_at=20), count=23)

    assert stepped(run, 20) == 20
    next_one = RunSteps(run.pk, "next")
    next_one.step()
    next_one.end()
    run.refresh_from_db()
    assert (run.sent, run.wait, ready(amqp, WAITING)) == (20, RunWait.OUTCOMES_WAIT, 3)
    names = [name for name, *_ in arrived(amqp, 20)]
    for row in Attempt.objects.filter(message_id__in=names[:5]):
        row.pk, row.verdict, row.number, row.next_at, row.started_at = None, "ack", 3, None, timezone.now()
        row.save()
    assert sent(run).sent == 23


def test_a_retry_that_was_sent_waits_no_more_while_its_outcome_is_unknown(made: Made, amqp: BlockingChannel) -> None:
    """Its consumer was killed with it, and the group offered to send it once more, with the time when it is due."""
    made()
    cause = group(fingerprint="f1")
    failed(amqp, "a", "b", "c")
    Attempt.objects.update(fingerprint="f1")
    has(amqp, WAITING, 3)
    assert (looked(RetryFilter()).causes[0].count, waiting_for(cause)) == (3, [(WORK, 3)])

    chosen = RetryFilter(key=("K-a",))
    sent(early_runs.start(WORK, ANN, RequeueOptions(rate=100, stop_at=None), count=1, wanted=chosen))
    arrived(amqp, 1)
    found = looked(RetryFilter())

    assert (found.count, found.causes[0].count, waiting_for(cause)) == (2, 2, [(WORK, 2)])
    assert {one.message_id for one in found.due} == {"b", "c"}
    row = Attempt.objects.get(message_id="a")
    row.pk, row.number, row.started_at = None, 3, timezone.now()
    row.save()
    assert waiting_for(cause) == [(WORK, 3)]


def test_the_export_names_each_retry_and_what_became_of_it(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, "a")
    has(amqp, WAITING, 1)
    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1))

    head, line = early_lines(run.pk, ANN)
    assert head.strip() == "message,state,error,sent_at,ended_at,handled,redelivered"
    assert line.split(",")[:3] == ["K-a", "sent", ""]
    assert next(iter(list(early_lines(run.pk, ANN, named=False))[1:])).startswith(",sent,")


def test_the_rate_is_kept(made: Made, amqp: BlockingChannel) -> None:
    made()
    failed(amqp, *[f"m{number}" for number in range(10)])
    has(amqp, WAITING, 10)
    begun = time.monotonic()

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=5, stop_at=None), count=10))

    assert run.sent == 10
    assert time.monotonic() - begun > 1.7


@pytest.mark.parametrize(
    ("via", "why"), [(Republish(), "unacked in its consumer"), (Native(10), "in the queue itself")]
)
def test_retries_that_wait_in_no_queue_are_refused(via: Carrier, why: str) -> None:
    @handler(Queue(WORK), policy=RetryThenPark(attempts=5, via=via))
    def post(message: Delivery) -> None:
        """Nothing."""

    with pytest.raises(Refused, match=why):
        early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1)
    assert not RequeueRun.objects.exists()


def test_a_waiting_queue_of_another_program_is_left_to_it() -> None:
    again = DeadLetter(exchange="ledger.again", queue=Queue("ledger.wait", existing=True), after=60)

    @handler(Queue(WORK, bindings=[BANK.bind("post")]), policy=RetryThenPark(attempts=5, via=again))
    def post(message: Delivery) -> None:
        """Nothing."""

    with pytest.raises(Refused, match=r"Another program declares queue ledger\.wait"):
        early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1)


def test_a_retry_without_a_way_back_pauses_the_run_and_stays(made: Made, amqp: BlockingChannel) -> None:
    via, bindings, waiting_queue = CARRIERS["wait queue"]
    made(via, bindings)
    failed(amqp, "a")
    has(amqp, waiting_queue, 1)
    amqp.queue_unbind(WORK, "bank", "post")

    run = sent(early_runs.start(WORK, ANN, RequeueOptions(rate=1, stop_at=None), count=1))

    assert (run.state, run.wait, run.sent) == (RunState.PAUSED, RunWait.NO_WAY_BACK, 0)
    assert "NO_ROUTE" in run.explanation
    has(amqp, waiting_queue, 1)
