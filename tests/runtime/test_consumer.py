"""The consumer over a source of the test's own: no broker, real threads."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from django_rmq_retry.broker.base import Line, Server
from django_rmq_retry.core.errors import BrokerRefused, BrokerUnfit, QueueUnusable
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.policy import OneShot, Policy, StopTheLine
from django_rmq_retry.core.settlement import DONE, Settlement, Tell
from django_rmq_retry.core.subscription import Intake, intakes
from django_rmq_retry.runtime import consumer as room
from django_rmq_retry.runtime.attempt import Attempts
from django_rmq_retry.runtime.consumer import BROKEN, NO_BROKER, STOPPED, UNFIT, Consumer
from django_rmq_retry.runtime.limits import Limits
from tests.core.made import delivery, subscription
from tests.tooling.waiting import wait_until

NOBODYS = b"nobody's"
Settled = tuple[bytes, Settlement]
RABBIT = Server(product="RabbitMQ", version=(3, 10, 8))


class Tap:
    """A source that brings what the test says, and keeps what it is told."""

    def __init__(self) -> None:
        self.alive = True
        self.is_empty = False
        self.hears_last_words = True
        self.lines: Sequence[Line] = ()
        self.settled: list[Settled] = []
        self.returned: list[bytes] = []
        self.words: list[str] = []
        self.receiver: Any = None

    def start(self, lines: Sequence[Line], receiver: object) -> None:
        self.lines, self.receiver = lines, receiver

    def settle(self, arrival: Delivery, settlement: Settlement) -> None:
        self.settled.append((arrival.body, settlement))

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self.returned += [one.body for one in deliveries]

    def pause(self, queue: str) -> None:
        self.words.append(f"pause {queue}")

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self.words.append(f"resume {queue} {prefetch}")

    def quiesce(self) -> None:
        self.words.append("quiesce")

    def stop(self) -> None:
        self.words.append("stop")
        if self.hears_last_words:
            self.receiver.drained()

    def empty(self, told: Callable[[bool], None]) -> None:
        told(self.is_empty)

    def bring(self, *bodies: bytes) -> None:
        for body in bodies:
            self.receiver.arrived(delivery(body=body))


class Made(Attempts):
    """Attempts that are whatever the test says; each runs a handler, unless its body says that none takes it."""

    def __init__(self, make: Callable[[Delivery], Settlement] = lambda _: DONE) -> None:
        self._make = make

    def settlement(self, delivery: Delivery, begin: Callable[[Delivery], None] | None = None) -> Settlement:
        if begin is not None and delivery.body != NOBODYS:
            begin(delivery)
        return self._make(delivery)


class Running:
    """A consumer on a thread of its own."""

    def __init__(self, tap: Tap, consumer: Consumer) -> None:
        self.tap = tap
        self.consumer = consumer
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(consumer.run()))

    def ended(self) -> int:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.codes[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "TICK", 0.02)
    monkeypatch.setattr(room, "LAST_WORDS", 0.2)


def joined(policy: Policy) -> tuple[Intake, ...]:
    return intakes([subscription(policy)])


@contextmanager
def running(
    make: Callable[[Delivery], Settlement] = lambda _: DONE,
    *,
    policy: Policy | None = None,
    threads: int = 2,
    refusal: Callable[[Server], str | None] = lambda _: None,
    **limits: Any,
) -> Iterator[Running]:
    tap = Tap()
    consumer = Consumer(
        joined(policy or OneShot()),
        tap,
        Made(make),
        threads=threads,
        prefetch=7,
        limits=Limits(**{"shutdown": 5.0, **limits}),
        refusal=refusal,
    )
    made = Running(tap, consumer)
    made.thread.start()
    wait_until(lambda: tap.receiver)
    try:
        yield made
    finally:
        consumer.stop("the test is over")
        made.thread.join(10)


def test_what_arrives_is_attempted_and_settled() -> None:
    with running() as made:
        made.tap.bring(b"1", b"2", b"3")
        wait_until(lambda: len(made.tap.settled) == 3)
        made.consumer.stop("asked")

        assert made.ended() == STOPPED
    assert sorted(made.tap.settled, key=str) == [(b"1", DONE), (b"2", DONE), (b"3", DONE)]
    assert made.tap.words == ["quiesce", "stop"]


@pytest.mark.parametrize(("policy", "prefetch"), [(OneShot(), 7), (StopTheLine(), 1)])
def test_an_ordered_queue_has_one_message_in_hand(policy: Policy, prefetch: int) -> None:
    with running(policy=policy) as made:
        assert (made.tap.lines[0].prefetch, made.tap.lines[0].ordered) == (prefetch, policy.ordered)


def test_a_stop_lets_what_has_begun_end_and_gives_the_rest_back() -> None:
    begun, go = threading.Event(), threading.Event()

    def make(_: Delivery) -> Settlement:
        begun.set()
        go.wait(5)
        return DONE

    with running(make, threads=1) as made:
        made.tap.bring(b"1", b"2", b"3")
        assert begun.wait(5)
        made.consumer.stop("asked")
        wait_until(lambda: made.tap.returned == [b"2", b"3"])
        made.tap.bring(b"4")
        go.set()

        assert made.ended() == STOPPED
    assert made.tap.settled == [(b"1", DONE)]
    assert made.tap.returned == [b"2", b"3", b"4"]


def test_handlers_that_do_not_end_in_time_make_the_exit_unclean(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def make(_: Delivery) -> Settlement:
        go.wait(5)
        return DONE

    with running(make, shutdown=0.05) as made:
        made.tap.bring(b"1")
        wait_until(lambda: made.consumer.running == 1)
        made.consumer.stop("asked")

        assert made.ended() == BROKEN
        go.set()
    assert "did not finish" in caplog.text


def test_a_broker_that_does_not_hear_the_last_words_makes_the_exit_unclean() -> None:
    with running() as made:
        made.tap.hears_last_words = False
        made.consumer.stop("asked")

        assert made.ended() == BROKEN


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerRefused("amqp://x", "no"), NO_BROKER),
        (QueueUnusable("q", "gone", advice="Declare it."), UNFIT),
        (BrokerUnfit("too old"), UNFIT),
        (ValueError("what"), BROKEN),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_mended_ends_it_with_its_own_code(error: BaseException, code: int) -> None:
    with running() as made:
        made.tap.receiver.failed(error)

        assert made.ended() == code
        assert made.consumer.why == str(error)


def test_a_broker_that_a_carrier_cannot_use_ends_it() -> None:
    with running(refusal=lambda server: f"not on {server}") as made:
        made.tap.receiver.connected(RABBIT)

        assert made.ended() == UNFIT


def test_a_source_that_is_dead_ends_it() -> None:
    with running() as made:
        made.tap.alive = made.tap.hears_last_words = False

        assert made.ended() == BROKEN


def test_a_worker_that_is_dead_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as made:
        monkeypatch.setattr(type(made.consumer._workers), "dead", ["rmq-worker-1"])

        assert made.ended() == BROKEN
        assert "rmq-worker-1" in made.consumer.why


@pytest.mark.parametrize("policy", [OneShot(), StopTheLine()], ids=["plain", "ordered"])
@pytest.mark.parametrize("error", [OSError("no journal"), SystemExit(2), KeyboardInterrupt()])
def test_an_attempt_that_itself_fails_keeps_its_message_and_counts_for_nothing(
    policy: Policy, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[Delivery] = []

    def make(delivery: Delivery) -> Settlement:
        attempts.append(delivery)
        raise error

    with running(make, policy=policy) as made:
        made.tap.bring(b"1")
        wait_until(lambda: made.tap.settled)

        assert made.tap.settled == [(b"1", Settlement(tell=Tell.AGAIN, hold=room.AFTER_MISHAP))]
        # The source counts one up before the next: then it is the first attempt again.
        assert [delivery.attempt for delivery in attempts] == [0]
        assert made.consumer.running in {0, 1}
    assert "The attempt itself failed" in caplog.text


def test_it_ends_after_so_many_messages_and_gives_the_rest_back() -> None:
    with running(threads=3, messages=5) as made:
        made.tap.bring(*(str(number).encode() for number in range(9)))

        assert made.ended() == STOPPED
    assert len(made.tap.settled) == 5
    assert len(made.tap.settled) + len(made.tap.returned) == 9


@pytest.mark.parametrize("threads", [1, 3])
def test_what_no_handler_was_run_for_is_not_one_of_so_many(threads: int) -> None:
    with running(threads=threads, messages=2) as made:
        made.tap.bring(b"1", NOBODYS, NOBODYS, NOBODYS, b"2", b"3", NOBODYS)

        assert made.ended() == STOPPED
    ran = [body for body, _ in made.tap.settled if body != NOBODYS]
    assert len(ran) == 2
    assert len(made.tap.settled) + len(made.tap.returned) == 7


@pytest.mark.parametrize(("messages", "prefetch"), [(1, 1), (5, 5), (9, 7)])
def test_it_holds_no_more_than_so_many(messages: int, prefetch: int) -> None:
    with running(messages=messages) as made:
        assert made.tap.lines[0].prefetch == prefetch


def test_nothing_more_is_taken_once_the_last_of_so_many_has_begun() -> None:
    begun, go = threading.Event(), threading.Event()

    def make(_: Delivery) -> Settlement:
        begun.set()
        go.wait(5)
        return DONE

    with running(make, threads=1, messages=1) as made:
        made.tap.bring(b"1")
        assert begun.wait(5)

        assert (made.tap.words, made.tap.settled, made.codes) == (["quiesce"], [], [])
        go.set()
        assert made.ended() == STOPPED
    assert made.tap.settled == [(b"1", DONE)]


def test_it_ends_after_so_many_seconds() -> None:
    with running(seconds=0.05) as made:
        assert made.ended() == STOPPED
        assert made.consumer.why == "0.05 s were asked for"


def test_a_burst_ends_when_everything_is_empty() -> None:
    with running(burst=True) as made:
        ticked = threading.Event()
        made.consumer.ticked = ticked.set
        assert ticked.wait(5)
        assert made.codes == []
        made.tap.is_empty = True

        assert made.ended() == STOPPED


def test_a_reason_of_somebody_elses_ends_it() -> None:
    reasons: list[str] = []
    with running(also=[lambda: reasons[0] if reasons else None]) as made:
        reasons.append("too much memory")

        assert made.ended() == STOPPED
        assert made.consumer.why == "too much memory"


def test_without_a_broker_it_waits_unless_told_otherwise() -> None:
    with running() as made:
        online = [made.consumer.online]
        made.tap.receiver.connected(RABBIT)
        online.append(made.consumer.online)
        made.tap.receiver.lost("refused", 0.5)
        online.append(made.consumer.online)
        assert online == [False, True, False]
        assert made.codes == []
    with running(fail_fast=True) as made:
        made.tap.receiver.lost("refused", 0.5)

        assert made.ended() == NO_BROKER


def test_the_first_reason_is_the_one_that_counts() -> None:
    with running() as made:
        made.consumer.stop("first")
        made.consumer.stop("second", BROKEN)

        assert (made.ended(), made.consumer.why) == (STOPPED, "first")
