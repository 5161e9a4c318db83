"""Handlers that take batches: which messages share a call, and what a failure in it does to each of them."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from django_rmq_retry import (
    Batch,
    BatchFailed,
    Breaker,
    Delivery,
    Discard,
    Fixed,
    Handler,
    Message,
    OneShot,
    Park,
    Queue,
    Raw,
    RetryThenPark,
    StopTheLine,
    handler,
    publish_many,
)
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.batches import Gathering
from django_rmq_retry.consumer.consumer import Consumer, ConsumerLimits
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import Subscription, registry, work_queues_of
from django_rmq_retry.handlers.call import Unready, guarded
from django_rmq_retry.hooks import AroundAttempt, AroundPublish
from django_rmq_retry.messages import DONE, Instruction
from django_rmq_retry.testing import RmqTest
from tests.consumer.attempts import pipeline_of, surroundings
from tests.consumer.taps import Tap
from tests.handlers.factories import delivery
from tests.tooling.waiting import wait_until

POLICY = RetryThenPark(attempts=2, backoff=Fixed(10))
QUEUE = Queue("payments")
pytestmark = pytest.mark.usefixtures("no_handlers")


class Bank:
    """A handler of batches, which notes the data of each of its calls."""

    def __init__(self, act: Callable[[Sequence[Delivery]], object] = lambda _: None, **options: Any) -> None:
        self.calls: list[list[Any]] = []
        self.handler = self._registered(act, {"policy": POLICY, "batch": Batch(8), **options})

    def _registered(self, act: Callable[[Sequence[Delivery]], object], options: Any) -> Handler[None]:
        @handler("ledger.import", name="import", **options)
        def run(messages: list[Delivery]) -> None:
            self.calls.append([message.data for message in messages])
            act(messages)

        return run

    def publish(self, *data: Any, **options: Any) -> None:
        for one in data:
            self.handler.publish(one, **options)


def fails_on(*bad: Any, error: Callable[[], BaseException] = lambda: ValueError("no account")) -> Any:
    def act(messages: Sequence[Delivery]) -> None:
        for message in messages:
            if message.data in bad:
                raise error()

    return act


def named(messages: Sequence[Delivery]) -> None:
    if failed := {message: ValueError(f"no account {message.data}") for message in messages if message.data < 0}:
        raise BatchFailed(failed)


def tried(rmq: RmqTest, bank: Bank) -> list[tuple[Any, int, str]]:
    """The attempts that failed: data, number, and error."""
    return [(one.message.data, one.number, str(one.error)) for one in rmq.attempts(bank.handler) if one.error]


def test_messages_that_wait_share_a_call_up_to_the_size(rmq: RmqTest) -> None:
    bank = Bank()
    bank.publish(*range(10))
    rmq.drain()

    assert bank.calls == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]


def test_a_failing_message_is_found_by_halving_and_costs_no_other_an_attempt(rmq: RmqTest) -> None:
    bank = Bank(fails_on(5))
    bank.publish(*range(8))
    rmq.drain()

    first = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]
    assert bank.calls == [*first, [5]]
    assert tried(rmq, bank) == [(5, 1, "no account"), (5, 2, "no account")]
    assert [one.data for one in rmq.all_parked(bank.handler)] == [5]


def test_each_failing_message_takes_its_own_policy(rmq: RmqTest) -> None:
    errors = {1: ValueError("later"), 2: Park("never"), 3: Discard("worthless")}

    def act(messages: Sequence[Delivery]) -> None:
        for message in messages:
            if message.data in errors:
                raise errors[message.data]

    bank = Bank(act)
    bank.publish(0, 1, 2, 3, 4)
    rmq.drain()

    assert tried(rmq, bank) == [(1, 1, "later"), (2, 1, "never"), (3, 1, "worthless"), (1, 2, "later")]
    assert sorted(one.data for one in rmq.all_parked(bank.handler)) == [1, 2]


def test_named_messages_fail_and_the_others_are_done_in_one_call(rmq: RmqTest) -> None:
    bank = Bank(named)
    bank.publish(1, -2, 3, -4)
    rmq.drain()

    assert bank.calls == [[1, -2, 3, -4], [-2, -4]]
    assert tried(rmq, bank) == [
        *[(-2, 1, "no account -2"), (-4, 1, "no account -4")],
        *[(-2, 2, "no account -2"), (-4, 2, "no account -4")],
    ]


def test_a_message_that_is_alone_in_its_batch_may_be_named(rmq: RmqTest) -> None:
    bank = Bank(named)
    bank.publish(-1)
    rmq.drain()

    assert tried(rmq, bank) == [(-1, 1, "no account -1"), (-1, 2, "no account -1")]


def test_an_error_that_names_a_foreign_message_fails_the_batch_as_any_other(rmq: RmqTest) -> None:
    def act(_messages: Sequence[Delivery]) -> None:
        raise BatchFailed({delivery(): ValueError("whose?")})

    bank = Bank(act, policy=RetryThenPark(attempts=1))
    bank.publish(1, 2)
    rmq.drain()

    assert bank.calls == [[1, 2], [1], [2]]
    assert [one.data for one in rmq.all_parked(bank.handler)] == [1, 2]


def test_a_message_that_cannot_be_read_is_parked_and_the_others_run(rmq: RmqTest) -> None:
    bank = Bank()
    bank.publish(1)
    publish_many([Message(body=b"{", routing_key="ledger.import")])
    bank.publish(2)
    rmq.drain()

    assert bank.calls == [[1, 2]]
    assert [one.body for one in rmq.all_parked(bank.handler)] == [b"{"]


def test_a_half_gets_fresh_data(rmq: RmqTest) -> None:
    def act(messages: Sequence[Delivery]) -> None:
        for message in messages:
            message.data["seen"] = message.data.get("seen", 0) + 1
        fails_on({"n": 2, "seen": 1})(messages)

    bank = Bank(act, policy=RetryThenPark(attempts=1))
    bank.publish({"n": 1}, {"n": 2})
    rmq.drain()

    assert bank.calls == [[{"n": 1, "seen": 1}, {"n": 2, "seen": 1}], [{"n": 1, "seen": 1}], [{"n": 2, "seen": 1}]]


def test_no_half_is_called_again_once_the_connection_is_lost() -> None:
    """The broker delivers all of them again: those that a half has done would be done twice."""
    line, calls = SimpleNamespace(stale=False, last_acks=deque()), list[int]()

    def act(messages: Sequence[Delivery]) -> None:
        calls.append(len(messages))
        line.stale = len(calls) == 2
        raise ValueError("no account")

    one = Subscription(name="h", run=print, run_batch=act, queue=QUEUE, policy=POLICY, park="p", batch=Batch(4))
    ends = list[object]()
    arrivals = [replace(delivery(), token=(line, number)) for number in range(4)]
    pipeline_of(one).attempt_batch(arrivals, lambda _delivery, end: ends.append(end))

    assert (calls, ends) == ([4, 2], [DONE] * 4)


def test_an_open_breaker_turns_the_rest_of_a_batch_away(rmq: RmqTest) -> None:
    class Down(Exception):
        pass

    bank = Bank(fails_on(*range(8), error=Down), breaker=Breaker(on=Down, probe_after=60))
    bank.publish(*range(8))
    rmq.advance(1)

    assert bank.calls == [list(range(8)), [0, 1, 2, 3], [0, 1], [0]]


def test_a_rate_counts_messages_and_not_calls(rmq: RmqTest) -> None:
    bank = Bank(rate=1)
    bank.publish(*range(5))
    rmq.advance(2.5)

    assert sum(map(len, bank.calls)) <= 4


@pytest.mark.django_db
def test_messages_of_one_key_are_never_in_one_batch(rmq: RmqTest) -> None:
    bank = Bank(order_by=lambda message: message.data[0])
    bank.publish("a1", "a2", "b1", "a3", "b2", "c1")
    rmq.drain()

    assert bank.calls == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


def test_an_async_handler_takes_a_batch(rmq: RmqTest) -> None:
    calls: list[list[int]] = []

    @handler("ledger.import", name="import", policy=POLICY, batch=Batch(8), timeout=5)
    async def run(messages: list[Delivery]) -> None:
        await asyncio.sleep(0)
        calls.append([message.data for message in messages])
        named(messages)

    for data in (1, -2, 3):
        run.publish(data)
    rmq.drain()

    assert calls == [[1, -2, 3], [-2]]


class TestGathering:
    """The messages that wait for their batch."""

    def test_a_full_batch_is_handed_on_at_once(self) -> None:
        gathering = Gathering("q", Batch(2))
        added = [gathering.add(delivery()) for _ in range(4)]

        assert [one.full for one in added] == [False, True, False, True]
        assert [len(gathering.take()) for _ in range(2)] == [2, 2]

    def test_a_timer_hands_on_what_is_there(self) -> None:
        gathering = Gathering("q", Batch(3))
        timer = gathering.add(delivery()).timer

        assert timer
        assert gathering.add(delivery()).timer == 0
        assert gathering.due(timer)
        assert not gathering.due(timer)
        assert len(gathering.take()) == 2

    def test_the_timer_of_a_batch_that_filled_hands_on_nothing(self) -> None:
        gathering = Gathering("q", Batch(2))
        timer = gathering.add(delivery()).timer
        gathering.add(delivery())
        second = gathering.add(delivery()).timer

        assert not gathering.due(timer)
        assert gathering.due(second)

    def test_a_worker_that_comes_late_takes_what_arrived_since(self) -> None:
        gathering = Gathering("q", Batch(3))
        gathering.due(gathering.add(delivery()).timer)
        added = [gathering.add(delivery()) for _ in range(2)]

        assert not any(one.full or one.timer for one in added)
        assert len(gathering.take()) == 3

    def test_a_message_that_came_back_is_handled_alone(self) -> None:
        gathering = Gathering("q", Batch(2))
        gathering.add(delivery())

        assert gathering.add(delivery(redelivered=True)).full
        assert gathering.add(delivery()).full
        assert [[one.redelivered for one in gathering.take()] for _ in range(2)] == [[True], [False, False]]

    def test_what_is_taken_back_leaves_jobs_that_find_nothing(self) -> None:
        gathering = Gathering("q", Batch(2))
        for one in (delivery(), delivery(), delivery(redelivered=True)):
            gathering.add(one)

        assert len(gathering.take_back(lambda _: True)) == 3
        assert [gathering.take() for _ in range(2)] == [[], []]
        assert gathering.add(delivery()).timer


class Working:
    """A consumer of one queue with batches, on its own threads; its handler waits until it may go on."""

    def __init__(self, batch: Batch, act: Callable[[Sequence[Delivery]], object], **limits: Any) -> None:
        run = guarded(act, "import")
        made = Subscription(
            name="import",
            run=lambda message: run([message]),
            run_batch=run,
            batch=batch,
            queue=Queue("payments"),
            policy=POLICY,
            park="payments.parked",
            codec=Raw(),
            timeout=limits.pop("timeout", None),
        )
        queues = work_queues_of([made])
        self.tap = Tap()
        self.consumer = Consumer(
            queues,
            self.tap,
            BatchPipeline(queues, surroundings()),
            threads=1,
            prefetch=7,
            limits=ConsumerLimits(**{"shutdown": 5.0, **limits}),
        )
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(self.consumer.run()))

    def __enter__(self) -> Self:
        self.thread.start()
        wait_until(lambda: self.tap.receiver)
        return self

    def __exit__(self, *_error: object) -> None:
        self.consumer.stop("the test is over")
        self.thread.join(10)
        assert not self.thread.is_alive()

    @property
    def settled(self) -> list[bytes]:
        return [body for body, settlement in self.tap.settled if settlement is DONE]


class TestConsumer:
    """Batches in a consumer with its threads."""

    def test_the_prefetch_lets_one_batch_gather_while_another_is_handled(self) -> None:
        with Working(Batch(100), lambda _: None) as made:
            assert made.tap.lines[0].prefetch == 200

    def test_what_waits_for_its_batch_is_handled_after_the_wait(self) -> None:
        calls: list[int] = []
        with Working(Batch(100, wait=0.01), lambda messages: calls.append(len(messages))) as made:
            made.tap.bring(b"1", b"2")
            wait_until(lambda: made.settled == [b"1", b"2"])

        assert sum(calls) == 2

    def test_a_stop_returns_what_waits_for_its_batch(self) -> None:
        with Working(Batch(100, wait=60), lambda _: None) as made:
            made.tap.bring(b"1", b"2")
            wait_until(lambda: made.consumer.waiting == 2)
            made.consumer.stop("asked")
            made.thread.join(10)

        assert (made.tap.returned, made.settled, made.codes) == ([b"1", b"2"], [], [0])

    def test_a_pause_returns_what_waits_for_its_batch(self) -> None:
        with Working(Batch(100, wait=60), lambda _: None) as made:
            made.tap.bring(b"1", b"2")
            made.consumer.pauses.pause("payments")

            assert (made.tap.returned, made.consumer.waiting) == ([b"1", b"2"], 0)

    def test_max_messages_counts_messages(self) -> None:
        calls: list[int] = []
        with Working(Batch(2, wait=60), lambda messages: calls.append(len(messages)), messages=4) as made:
            made.tap.bring(b"1", b"2", b"3", b"4", b"5", b"6")
            made.thread.join(10)

        assert (calls, made.codes, made.settled) == ([2, 2], [0], [b"1", b"2", b"3", b"4"])
        assert sorted(made.tap.returned) == [b"5", b"6"]

    def test_a_process_whose_batch_hangs_settles_none_of_it(self, caplog: pytest.LogCaptureFixture) -> None:
        held = threading.Lock()
        held.acquire()
        calls: list[int] = []

        def act(messages: Sequence[Delivery]) -> None:
            calls.append(len(messages))
            held.acquire()

        with Working(Batch(2), act, timeout=0.05) as made:
            made.tap.bring(b"1", b"2")
            made.thread.join(10)
            codes = list(made.codes)
            held.release()
            wait_until(lambda: not made.consumer.running)

        assert (codes, made.tap.settled, calls) == ([Exit.ERROR], [], [2])
        assert "Its 2 messages return to their queue, and each is then handled alone" in caplog.text

    def test_a_failure_outside_the_handler_costs_only_its_own_message(self) -> None:
        def act(messages: Sequence[Delivery]) -> None:
            if any(message.body == b"2" for message in messages):
                raise Unready("no database")

        with Working(Batch(2, wait=0.01), act) as made:
            made.tap.bring(b"1", b"3", b"2", b"4")
            wait_until(lambda: len(made.tap.settled) == 4)

        kept = [body for body, settlement in made.tap.settled if settlement.instruction is Instruction.KEEP]
        assert (made.settled, kept) == ([b"1", b"3"], [b"2", b"4"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policy": OneShot()}, "OneShot answers each message, and a batch has one result. Omit batch."),
        ({"policy": StopTheLine()}, "StopTheLine handles one message at a time, so a batch would never fill."),
        ({"type": "row"}, "batch=… needs a queue for this handler alone. Omit type, routing_key and headers."),
        ({"ack": "auto", "policy": None}, "Omit batch, or ack."),
    ],
)
def test_options_that_no_batch_can_keep_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Bank(**options)

    assert problem in str(caught.value)


def test_a_handler_of_batches_shares_its_queue_with_no_other() -> None:
    Bank()
    handler("ledger.import", name="other", type="row")(lambda _message: None)

    with pytest.raises(ConfigurationError, match=r"other.*batch=… needs a queue for itself\. Use two queues\."):
        registry.work_queues()


def test_a_list_names_the_type_of_its_messages(rmq: RmqTest) -> None:
    calls: list[list[int]] = []

    @handler("ledger.import", name="import", policy=POLICY, batch=Batch(8))
    def run(messages: Sequence[Delivery[int]]) -> None:
        calls.append([message.data for message in messages])

    publish_many([Message(body=body, routing_key="ledger.import") for body in (b"1", b'"two"', b"3")])
    rmq.drain()

    assert (calls, [one.body for one in rmq.all_parked(run)]) == ([[1, 3]], [b'"two"'])


@pytest.mark.parametrize(
    ("batch", "problem"),
    [(None, "takes a list of messages. Add batch"), (Batch(8), "takes one message, but has batch")],
)
def test_an_annotation_that_does_not_fit_the_option_is_refused(batch: Batch | None, problem: str) -> None:
    def one(message: Delivery[int]) -> None: ...

    def many(messages: list[Delivery[int]]) -> None: ...

    made = handler("ledger.import", name="import", batch=batch)(many if batch is None else one)
    with pytest.raises(ConfigurationError, match=problem):
        made.subscription  # noqa: B018 - it is made here


@pytest.mark.parametrize("given", [{}, [], {1: ValueError()}, {delivery(): "no error"}])
def test_failures_are_named_by_message_and_error(given: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="BatchFailed takes a dict of the messages that failed"):
        BatchFailed(given)


def test_hooks_are_left_in_the_opposite_order_with_the_verdict_of_each_message(rmq: RmqTest, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [f"{__name__}.noted"]}
    SEEN.clear()
    bank = Bank(fails_on(2), policy=RetryThenPark(attempts=1))
    bank.publish(1, 2, 3)
    rmq.drain()

    assert SEEN == ["enter 3", "enter 2", "enter 1", "leave 1 ack", "leave 2 park", "leave 3 ack"]


SEEN: list[str] = []


@contextmanager
def noted(one: AroundAttempt | AroundPublish) -> Iterator[None]:
    if isinstance(one, AroundPublish):
        yield
        return
    SEEN.append(f"enter {one.delivery.data}")
    yield
    SEEN.append(f"leave {one.delivery.data} {one.verdict.kind.value if one.verdict else None}")
