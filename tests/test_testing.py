"""The test kit: what runs, how long it waited, what became of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from django_rmq_retry import (
    AckFirst,
    DeadLetter,
    Delivery,
    Exchange,
    Exponential,
    Fixed,
    Handler,
    Ladder,
    Message,
    NackRequeue,
    Native,
    OneShot,
    Park,
    Queue,
    Raw,
    Republish,
    Retry,
    RetryThenPark,
    Steps,
    StopTheLine,
    WaitQueue,
    handler,
    publish,
)
from django_rmq_retry.errors import BrokerUnfit, CallFailed, CallUnanswered
from django_rmq_retry.handlers.loop import LifespanFailed
from django_rmq_retry.messages import ErrorNote, Headers, Properties
from django_rmq_retry.policies import Carrier, Kind, Policy
from django_rmq_retry.testing import NeverQuiet, RmqTest, isolated_handlers, message_of
from tests.messages.exceptions import BankDown
from tests.tooling.brokers import is_replaced

DAY = 86_400


class Bank:
    """What the handler does: fail so often, with this error, then succeed."""

    def __init__(self) -> None:
        self.down: int | None = 0
        self.error: Exception = BankDown("timeout")
        self.charged: list[Any] = []
        self.seen: list[Delivery] = []

    def charge(self, message: Delivery) -> None:
        self.seen.append(message)
        if self.down is None or self.down > 0:
            self.down = self.down and self.down - 1
            raise self.error
        self.charged.append(message.data)


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def bank() -> Bank:
    return Bank()


Made = Callable[..., Handler[None]]


@pytest.fixture
def made(bank: Bank) -> Made:
    """A handler with a policy: the bank's."""

    def made(policy: Policy, queue: Queue | str = "payments.charge", **options: Any) -> Handler[None]:
        return handler(queue, policy=policy, name="charge", **options)(bank.charge)

    return made


def house(via: Carrier | None = None, **changes: Any) -> RetryThenPark:
    known = {"attempts": 5, "backoff": Exponential(10, factor=3, jitter=0.2), "via": via or Ladder()}
    return RetryThenPark(**{**known, **changes})


@pytest.mark.usefixtures("rmq")
def test_an_async_handler_answers_a_call() -> None:
    @handler("rates.quote", policy=OneShot(), name="quote")
    async def quote(message: Delivery) -> int:
        await asyncio.sleep(0)
        return int(message.data) + 1

    assert quote.call(1) == 2


def test_the_kit_enters_the_lifespan_for_async_handlers_and_leaves_it_at_its_end() -> None:
    notes: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, list[str]]]:
        notes.append("opened")
        yield {"notes": notes}
        notes.append("closed")

    with isolated_handlers(), override_settings(RMQ_RETRY={"LIFESPAN": lifespan}):

        @handler("payments.charge", name="charge")
        async def charge(message: Delivery) -> None:
            message.state["notes"].append(f"handled {message.data}")

        for number in (1, 2):
            with RmqTest() as rmq:
                charge.publish(number)
                rmq.drain()

    assert notes == ["opened", "handled 1", "closed", "opened", "handled 2", "closed"]


def test_the_kit_says_why_a_lifespan_fails() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        notes[0].append("the bank is away")
        yield

    notes: list[list[str]] = []
    with isolated_handlers(), override_settings(RMQ_RETRY={"LIFESPAN": lifespan}):

        @handler("payments.charge", name="charge")
        async def charge(message: Delivery) -> None: ...

        with pytest.raises(LifespanFailed, match="failed before the first message: IndexError"), RmqTest():
            pass


def test_a_message_of_the_kit_has_the_state_that_the_test_gives() -> None:
    assert message_of({}, state={"bank": 7}).state == {"bank": 7}
    assert message_of({}).state is None


def test_a_dead_bank_is_retried_and_then_parked(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(house())
    bank.down = None
    name = charge.publish({"payment": 7})
    attempts = rmq.drain()
    parked = rmq.parked(charge)

    assert rmq.waits == [10, 30, 90, 270]
    assert rmq.now == 400
    assert attempts == 5
    assert parked.reason == "Gave up after 5 attempts: BankDown: timeout"
    assert (parked.code, parked.error, parked.attempts) == (
        "retries_exhausted",
        ErrorNote(kind="BankDown", text="timeout"),
        5,
    )
    assert (parked.handler, parked.queue, parked.message.id) == ("charge", "payments.charge", name)
    assert (parked.data, parked.body) == ({"payment": 7}, b'{"payment":7}')
    assert parked.headers["rmq-retry-attempts"] == 5


def test_a_bank_that_comes_back_is_charged_once(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(house())
    bank.down = 2
    charge.publish({"payment": 7})
    rmq.drain()

    assert bank.charged == [{"payment": 7}]
    assert rmq.waits == [10, 30]
    assert [(one.number, one.at, one.verdict.kind) for one in rmq.attempts(charge)] == [
        (1, 0, Kind.RETRY),
        (2, 10, Kind.RETRY),
        (3, 40, Kind.ACK),
    ]
    assert [str(one.error) for one in rmq.attempts(charge)] == ["timeout", "timeout", "None"]
    with pytest.raises(AssertionError, match=r"No message of charge is parked. It has made 3 attempts; .* with ack\."):
        rmq.parked(charge)


@pytest.mark.parametrize(
    ("via", "waits"),
    [
        (WaitQueue("wait", "charge.wait"), [10, 30, 90, 270]),
        (Republish(), [10, 30, 90, 270]),
        (AckFirst(), [10, 30, 90, 270]),
        (Ladder([60, 20]), [10, 30, 90, 270]),
        (DeadLetter(exchange="again", queue="charge.again", after=45), [45, 45, 45, 45]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Carrier) else "",
)
def test_every_carrier_waits_as_long_as_its_messages(
    rmq: RmqTest, made: Made, bank: Bank, via: Carrier, waits: list[float]
) -> None:
    backoff = None if via.pace else Exponential(10, factor=3)
    charge = made(RetryThenPark(attempts=5, backoff=backoff, via=via))
    bank.down = None
    charge.publish({"payment": 7})
    rmq.drain()

    assert rmq.waits == waits
    assert rmq.parked(charge).attempts == 5


def test_a_requeued_message_waits_unacked(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=2, backoff=Fixed(20), via=NackRequeue()))
    bank.down = None
    charge.publish({"payment": 7})
    rmq.drain()

    assert rmq.waits == [20]
    assert rmq.parked(charge).attempts == 2


@pytest.mark.rmq(version="4.3")
def test_native_delays_work_on_a_broker_version_that_has_them(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=4, via=Native(10, cap=25)))
    bank.down = None
    charge.publish({"payment": 7})
    rmq.drain()

    assert rmq.waits == [10, 20, 25]


@pytest.mark.usefixtures("rmq")
def test_a_broker_version_without_native_delays_refuses_the_handler(made: Made) -> None:
    charge = made(RetryThenPark(attempts=4, via=Native(10)))

    with pytest.raises(BrokerUnfit, match=r"needs RabbitMQ 4.3 or newer; this is RabbitMQ 4.0.5.*version='4.3'"):
        charge.publish({"payment": 7})


def test_a_delayed_message_arrives_on_time(rmq: RmqTest, made: Made) -> None:
    charge = made(house())
    charge.publish({"payment": 7}, delay=3600)

    assert rmq.advance(3599) == 0
    assert rmq.advance(1) == 1
    assert rmq.now == 3600
    assert [one.routing_key for one in rmq.published(charge)] == ["payments.charge"]


def test_time_advances_only_when_the_test_advances_it(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(house())
    bank.down = None
    charge.publish({"payment": 7})

    assert [rmq.advance(seconds) for seconds in (0, 9.9, 0.1, 30)] == [1, 0, 1, 1]
    assert rmq.waits == [10, 30]
    assert rmq.all_parked(charge) == []


def test_no_message_overtakes_a_failing_ordered_message(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(StopTheLine(backoff=Exponential(1, factor=2, cap=60)))
    bank.down = 3
    for number in (1, 2, 3):
        charge.publish(number)
    rmq.drain()

    assert bank.charged == [1, 2, 3]
    assert rmq.waits == [1, 2, 4]
    assert [one.number for one in rmq.attempts(charge)] == [1, 2, 3, 4, 1, 1]


def test_an_ordered_queue_that_never_resumes_raises_an_error(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(StopTheLine())
    bank.down = None
    charge.publish({"payment": 7})

    with pytest.raises(
        NeverQuiet, match=r"charge has attempted one message .* 100 times in .* halt, BankDown: timeout"
    ):
        rmq.drain()
    assert rmq.advance(120) == 2


def test_a_message_requeued_forever_raises_an_error(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=None, backoff=Fixed(1), via=NackRequeue()))
    bank.down = None
    charge.publish({"payment": 7})

    with pytest.raises(NeverQuiet, match="30 times in 29 s, and there is no end: retry"):
        rmq.drain(limit=30)


def test_endless_retries_without_a_delay_raise_an_error(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=None, backoff=Fixed(1)))
    bank.down, bank.error = None, Retry(after=0)
    charge.publish({"payment": 7})

    with pytest.raises(NeverQuiet, match="1000 times in 0 s"):
        rmq.advance(1)


def test_a_retry_with_a_moment_waits_until_then(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=3, backoff=Fixed(60)))
    bank.down, bank.error = 2, Retry(at=timezone.now() + timedelta(hours=1))
    charge.publish({"payment": 7})

    assert rmq.drain() == 3
    assert [3000 < wait <= 3600 for wait in rmq.waits] == [True, True]


def test_a_policy_may_have_150_attempts(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=150, backoff=Fixed(60)))
    bank.down = None
    charge.publish({"payment": 7})

    assert rmq.drain() == 150
    assert rmq.parked(charge).attempts == 150


def test_each_parked_message_has_its_reason(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(house())
    publish(b"{", routing_key="payments.charge", codec=Raw())
    rmq.drain()
    bank.down, bank.error = 1, Park("the account is frozen")
    charge.publish({"payment": 7})
    rmq.drain()
    undecodable, frozen = rmq.all_parked(charge)

    assert (undecodable.code, undecodable.data, undecodable.body) == ("undecodable_body", None, b"{")
    assert (frozen.code, frozen.reason, frozen.error) == (
        "parked_by_handler",
        "the account is frozen",
        None,
    )


def test_a_message_dead_lettered_by_the_broker_is_parked(rmq: RmqTest, made: Made) -> None:
    line = StopTheLine(attempts=2, backoff=Fixed(60))
    charge = made(line, Queue("payments.charge", message_ttl=30))
    rmq.fail_next(charge, BankDown, times=2)
    charge.publish(1)
    charge.publish(2)
    rmq.drain()
    gone, failed = rmq.all_parked(charge)

    assert (gone.code, gone.reason, gone.data, gone.handler) == ("expired", "The broker removed it: expired", 2, "")
    assert (failed.code, failed.data) == ("retries_exhausted", 1)


def test_a_message_that_another_consumer_parked_after_a_retry_did_not_expire(rmq: RmqTest, made: Made) -> None:
    charge = made(RetryThenPark(attempts=3, backoff=Fixed(60)))
    charge.publish({"payment": 7})
    rest = {"count": 1, "exchange": "", "routing-keys": ["q"], "time": datetime(2026, 11, 29, tzinfo=UTC)}
    ways = ("payments.charge.retry.1m", "expired"), ("payments.charge", "rejected")
    headers = Headers.of({"x-death": [{"queue": queue, "reason": reason, **rest} for queue, reason in ways]})
    properties = Properties(delivery_mode=2, headers=headers)
    rmq._broker.publisher.publish(Message(body=b"7", routing_key="payments.charge.parked", properties=properties))

    assert [(one.code, one.queue) for one in rmq.all_parked(charge)] == [("foreign", "payments.charge")]


def test_handlers_of_one_queue_have_separate_published_messages(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(house(), type="card")
    other = handler("payments.charge", policy=house(), type="cash", name="other")(bank.charge)
    bank.down = None
    charge.publish(1)
    other.publish(2)
    rmq.drain()

    assert [one.data for one in rmq.published(charge)] == [1]
    assert [one.data for one in rmq.published("other")] == [2]
    assert (rmq.parked(charge).data, rmq.parked(other).data) == (1, 2)
    assert (len(rmq.attempts(charge)), len(rmq.attempts())) == (5, 10)


def test_published_includes_messages_routed_by_bindings(rmq: RmqTest, made: Made) -> None:
    main = Exchange("main", "topic")
    charge = made(house(), Queue("payments.charge", bindings=[main.bind("charge.#")]))
    publish({"payment": 0.5}, exchange="main", routing_key="charge.card", headers={"source": "import"})
    (found,) = rmq.published(charge)

    assert (found.data, found.exchange, found.routing_key) == ({"payment": Decimal("0.5")}, "main", "charge.card")
    assert found.headers["source"] == "import"
    assert len(rmq.published()) == 1


def test_a_call_is_answered_in_the_same_process(rmq: RmqTest) -> None:
    asked: list[str] = []

    @handler("rates.quote", policy=OneShot())
    def quote(message: Delivery) -> dict[str, str]:
        asked.append(str(message.reply_to)[:7])
        if message.data["pair"] != "EURUSD":
            raise KeyError(message.data["pair"])
        return {"rate": "1.0831"}

    assert quote.call({"pair": "EURUSD"}) == {"rate": "1.0831"}
    assert quote.call({"pair": "EURUSD"}, exclusive=True) == {"rate": "1.0831"}
    with pytest.raises(CallFailed, match="KeyError"):
        quote.call({"pair": "EURXXX"})
    assert rmq.now == 0
    assert len(rmq.published(quote)) == 3
    assert asked == ["amq.rab", "amq.gen", "amq.rab"]


def test_an_unanswered_call_waits_its_whole_timeout(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=3, backoff=Fixed(60)))
    bank.down = None

    with pytest.raises(CallUnanswered):
        charge.call({"payment": 7}, timeout=2)
    assert (rmq.now, len(rmq.attempts())) == (2, 1)


def test_a_handler_may_call_another_handler(rmq: RmqTest) -> None:
    quote = handler("rates.quote", policy=OneShot(), name="quote")(lambda message: message.data + 1)
    answers: list[object] = []

    @handler("asking", policy=OneShot(park=True))
    def ask(message: Delivery) -> None:
        answers.append(quote.call(message.data))

    for number in range(20):
        ask.publish(number)
    rmq.fail_next(ask, "crash before ack")
    rmq.drain()

    assert sorted(map(str, answers)) == sorted(map(str, [*range(1, 21), 1]))
    assert rmq.all_parked(ask) == []


def test_the_same_seed_gives_the_same_delays_and_order(made: Made, bank: Bank) -> None:
    charge = made(house())
    bank.down = None

    def run(seed: int) -> tuple[list[float], list[object]]:
        with RmqTest(seed=seed) as rmq:
            for number in range(10):
                charge.publish(number)
            rmq.drain()
            return rmq.waits, [parked.data for parked in rmq.all_parked(charge)]

    first = run(7)

    assert first == run(7)
    assert first != run(8)
    assert all(10 <= wait <= 12.001 for wait in first[0][:10])
    assert len(set(first[0])) > 10


@pytest.mark.nightly
def test_a_thousand_messages_are_retried_over_a_simulated_week(rmq: RmqTest, made: Made, bank: Bank) -> None:
    charge = made(RetryThenPark(attempts=4, backoff=Steps([3600, DAY, 6 * DAY])))
    bank.down = None

    def took(count: int) -> float:
        """CPU seconds, so that what the machine does beside is not counted."""
        began = time.process_time()
        for number in range(count):
            charge.publish({"payment": number})
        rmq.drain()
        return time.process_time() - began

    few = took(200)
    past, start = len(rmq.attempts(charge)), rmq.now
    many = took(1000)
    ats = [one.at - start for one in rmq.attempts(charge)[past:]]

    assert rmq.now - start == 3600 + 7 * DAY
    assert {at: ats.count(at) for at in sorted(set(ats))} == {
        0: 1000,
        3600: 1000,
        3600 + DAY: 1000,
        3600 + 7 * DAY: 1000,
    }
    assert all(one <= two for one, two in pairwise(ats))
    assert [parked.data["payment"] for parked in rmq.all_parked(charge)][200:] == list(range(1000))
    # Five times as many take five times as long; if each looked at all others, it would be twenty-five times.
    assert many < 15 * few


def test_a_handler_is_called_directly_with_a_message(made: Made, bank: Bank) -> None:
    charge = made(house(), type="card")
    charge(message_of({"amount": 0.5}, attempt=3, headers={"source": "import"}))
    charge(message_of({"amount": 1}, handler=charge, redelivered=True))
    first, second = bank.seen

    assert (first.data, first.attempt, first.headers["source"]) == ({"amount": Decimal("0.5")}, 3, "import")
    assert first.id
    assert (second.queue, second.type, second.redelivered) == ("payments.charge", "card", True)


def test_many_concurrent_calls_are_each_answered(rmq: RmqTest) -> None:
    quote = handler("rates.quote", policy=OneShot(), name="quote")(lambda message: message.data + 1)

    async def ask() -> list[object]:
        return list(await asyncio.gather(*(quote.acall(number) for number in range(20))))

    assert asyncio.run(ask()) == list(range(1, 21))
    assert len(rmq.attempts(quote)) == 20


def test_a_kit_that_fails_to_start_restores_everything(made: Made) -> None:
    made(RetryThenPark(attempts=4, via=Native(10)))

    with pytest.raises(BrokerUnfit), RmqTest():
        raise AssertionError("it is not to be entered")
    assert not is_replaced()


def test_ctrl_c_in_a_handler_ends_the_test(rmq: RmqTest) -> None:
    @handler("payments.notify")
    def notify(_message: Delivery) -> None:
        raise KeyboardInterrupt

    notify.publish(1)

    with pytest.raises(KeyboardInterrupt):
        rmq.drain()


def test_answers_are_in_the_reply_queue(rmq: RmqTest, settings: Any) -> None:
    settings.RMQ_RETRY = {"TOPOLOGY": [Queue("replies")], "REPLY_TO": ["replies"]}
    quote = handler("rates.quote", policy=OneShot(), name="quote")(lambda _message: {"rate": "1.0831"})
    quote.publish({"pair": "EURUSD"}, reply_to="replies", correlation_id="c-1")
    rmq.drain()
    (answer,) = rmq.messages("replies")

    assert (answer.correlation_id, answer.data) == ("c-1", {"rate": "1.0831"})


def test_a_handler_that_exceeds_its_timeout_is_retried_and_parked(rmq: RmqTest) -> None:
    def charge(_: Delivery) -> None:
        while True:
            pass

    late = handler("payments", policy=RetryThenPark(attempts=2, backoff=Fixed(10)), timeout=0.05, name="late")(charge)
    late.publish({"payment": 7})
    rmq.drain()

    assert rmq.waits == [10]
    said = "Gave up after 2 attempts: DeadlineExceeded: Handler late ran for longer than its timeout of 0.05 s"
    assert rmq.parked(late).reason == said
