"""The consumer over a source of the test's own: no broker, real threads."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from django_rmq_retry import Delivery, Fixed, OneShot, Raw, RetryThenPark, StopTheLine
from django_rmq_retry.consumer import consumer as room
from django_rmq_retry.consumer import hung
from django_rmq_retry.consumer.attempt import OUTSIDE_FAILURE_SECONDS
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.consumer import Consumer, ConsumerLimits, Watchers
from django_rmq_retry.consumer.deadlines import Deadlines, TimedRun
from django_rmq_retry.errors import BrokerRefused, BrokerUnfit, QueueUnusable
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import Subscription, WorkQueue, work_queues_of
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.messages import DONE, Instruction, Settlement
from django_rmq_retry.policies import Kind, Policy, Verdict
from django_rmq_retry.topology import Server
from tests.consumer.attempts import surroundings
from tests.consumer.taps import Tap
from tests.handlers.factories import delivery, subscription
from tests.messages.parked_copies import read_back
from tests.tooling.waiting import wait_until

UNHANDLED = b"unhandled"
PATIENT = RetryThenPark(backoff=Fixed(30))
RABBIT = Server(product="RabbitMQ", version=(3, 10, 8))


class Made(BatchPipeline):
    """A pipeline whose attempts are what the test says; each runs a handler, unless no handler takes its body."""

    def __init__(self, make: Callable[[Delivery], Settlement], noted: list[FinishedAttempt] | None) -> None:
        self.noted = [] if noted is None else noted
        super().__init__(joined(OneShot()), surroundings(self))
        self._make = make
        self.deadlines = Deadlines()

    notes_acks = False

    def note(self, attempt: FinishedAttempt) -> None:
        self.noted.append(attempt)

    def attempt(self, delivery: Delivery, begin: Callable[[Delivery], None] | None = None) -> Settlement:
        if begin is not None and delivery.body != UNHANDLED:
            begin(delivery)
        return self._make(delivery)


class Running:
    """A consumer on its own thread."""

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
    monkeypatch.setattr(room, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(room, "CLOSE_SECONDS", 0.2)


def joined(policy: Policy) -> tuple[WorkQueue, ...]:
    return work_queues_of([subscription(policy)])


@contextmanager
def running(
    make: Callable[[Delivery], Settlement] = lambda _: DONE,
    *,
    policy: Policy | None = None,
    threads: int = 2,
    noted: list[FinishedAttempt] | None = None,
    refusal: Callable[[Server], str | None] = lambda _: None,
    watchers: Watchers | None = None,
    **limits: Any,
) -> Iterator[Running]:
    tap = Tap()
    consumer = Consumer(
        joined(policy or OneShot()),
        tap,
        Made(make, noted),
        threads=threads,
        prefetch=7,
        limits=ConsumerLimits(**{"shutdown": 5.0, **limits}),
        refusal=refusal,
        watchers=watchers or Watchers(),
    )
    made = Running(tap, consumer)
    made.thread.start()
    wait_until(lambda: tap.receiver)
    try:
        yield made
    finally:
        consumer.stop("the test is over")
        made.thread.join(10)


def test_each_delivered_message_is_attempted_and_settled() -> None:
    with running() as made:
        made.tap.bring(b"1", b"2", b"3")
        wait_until(lambda: len(made.tap.settled) == 3)
        made.consumer.stop("asked")

        assert made.ended() == Exit.DONE
    assert sorted(made.tap.settled, key=str) == [(b"1", DONE), (b"2", DONE), (b"3", DONE)]
    assert made.tap.words == ["quiesce", "stop"]


@pytest.mark.parametrize(("policy", "prefetch"), [(OneShot(), 7), (StopTheLine(), 1)])
def test_an_ordered_queue_has_one_unacked_message(policy: Policy, prefetch: int) -> None:
    with running(policy=policy) as made:
        assert (made.tap.lines[0].prefetch, made.tap.lines[0].ordered) == (prefetch, policy.ordered)


def test_a_stop_finishes_running_handlers_and_requeues_the_rest() -> None:
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

        assert made.ended() == Exit.DONE
    assert made.tap.settled == [(b"1", DONE)]
    assert made.tap.returned == [b"2", b"3", b"4"]


def test_unconfirmed_last_acks_make_the_exit_unclean() -> None:
    with running(shutdown=0.3) as made:
        made.tap.receives_last_acks = False
        made.consumer.stop("asked")

        assert made.ended() == Exit.ERROR


def test_a_slow_broker_may_use_the_rest_of_the_shutdown_timeout_to_close() -> None:
    with running(shutdown=5.0) as made:
        made.tap.receives_last_acks = False
        made.consumer.stop("asked")
        wait_until(lambda: "stop" in made.tap.words)
        late = threading.Timer(2 * room.CLOSE_SECONDS, made.tap.receiver.closed)
        late.start()

        assert made.ended() == Exit.DONE
    late.join()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerRefused("amqp://x", "no"), Exit.UNREACHABLE),
        (QueueUnusable("q", "gone", advice="Declare it."), Exit.DRIFT),
        (BrokerUnfit("too old"), Exit.DRIFT),
        (ValueError("what"), Exit.ERROR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_permanent_failure_ends_the_consumer_with_its_own_code(error: BaseException, code: int) -> None:
    with running() as made:
        made.tap.receiver.failed(error)

        assert made.ended() == code
        assert made.consumer.why == str(error)


def test_a_broker_unfit_for_a_carrier_ends_the_consumer() -> None:
    with running(refusal=lambda server: f"not on {server}") as made:
        made.tap.receiver.connected(RABBIT)

        assert made.ended() == Exit.DRIFT


def test_a_dead_source_ends_the_consumer() -> None:
    with running() as made:
        made.tap.alive = made.tap.receives_last_acks = False

        assert made.ended() == Exit.ERROR


def test_a_dead_worker_ends_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as made:
        monkeypatch.setattr(type(made.consumer._workers), "dead", ["rmq-worker-1"])

        assert made.ended() == Exit.ERROR
        assert "rmq-worker-1" in made.consumer.why


@pytest.mark.parametrize("policy", [OneShot(), StopTheLine()], ids=["plain", "ordered"])
@pytest.mark.parametrize("error", [OSError("no journal"), SystemExit(2), KeyboardInterrupt()])
def test_a_failure_outside_the_handler_keeps_the_message_uncounted(
    policy: Policy, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[Delivery] = []

    def make(delivery: Delivery) -> Settlement:
        attempts.append(delivery)
        raise error

    with running(make, policy=policy) as made:
        made.tap.bring(b"1")
        wait_until(lambda: made.tap.settled)

        assert made.tap.settled == [(b"1", Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_SECONDS))]
        assert [delivery.attempt for delivery in attempts] == [1]
        assert made.consumer.running in {0, 1}
    assert "The attempt failed outside its handler" in caplog.text


def tried(made: Running, one: Delivery, times: int) -> list[Settlement]:
    """Return the settlements of one message; the source redelivers it while it stays unacked."""
    for number in range(1, times + 1):
        made.tap.receiver.arrived(one)
        wait_until(lambda: len(made.tap.settled) == number)  # noqa: B023 - called at once
    return [settlement for _, settlement in made.tap.settled]


@pytest.mark.parametrize("policy", [OneShot(), StopTheLine()], ids=["plain", "ordered"])
@pytest.mark.parametrize("error", [ValueError("no \x00 here"), RecursionError(), MemoryError(), SystemExit(2)])
def test_a_message_that_always_breaks_the_attempt_is_parked_once(policy: Policy, error: BaseException) -> None:
    def make(_: Delivery) -> Settlement:
        raise error

    headers = {"own": b"\xff", "rmq-retry-summary": b"\xff", "x-death": "hello"}
    one = delivery(body=b"\xfe", message_id="m-1", headers=headers)
    noted: list[FinishedAttempt] = []
    with running(make, policy=policy, noted=noted) as made:
        *held, last = tried(made, one, 3)

    assert held == [Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_SECONDS)] * 2
    assert last.instruction is Instruction.ACK
    assert last.copy is not None
    found = read_back(last.copy)
    assert (found.body, found.raw, found.queue) == (b"\xfe", one.raw, "payments")
    assert (found.reason, found.error, found.handler) == (
        "unsettled",
        type(error).__name__,
        "payments.handlers.charge",
    )
    assert [(note.verdict.kind, note.verdict.counted) for note in noted] == [(Kind.PARK, False)]


@pytest.mark.parametrize("error", [OSError("no disk"), ConnectionError(), TimeoutError(), Unready("no database")])
def test_a_failure_common_to_all_messages_parks_none(error: BaseException) -> None:
    def make(_: Delivery) -> Settlement:
        raise error

    noted: list[FinishedAttempt] = []
    with running(make, noted=noted) as made:
        settled = tried(made, delivery(), 10)

    assert settled == [Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_SECONDS)] * 10
    assert noted == []


class FailingConnections:
    """Fails at the given calls of its entry or its exit."""

    def __init__(self, entries: Iterable[int] = (), exits: Iterable[int] = ()) -> None:
        self._entries, self._exits = set(entries), set(exits)
        self.entered = self.left = 0

    def __enter__(self) -> None:
        self.entered += 1
        if self.entered in self._entries:
            raise ValueError("no entry")

    def __exit__(self, *_error: object) -> None:
        self.left += 1
        if self.left in self._exits:
            raise ValueError("no exit")


class Leave:
    """A gate that fails a number of times before it receives a verdict."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.heard: list[Kind] = []

    def enter(self, delivery: Delivery, subscription: Subscription) -> None: ...

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        if self.failing:
            self.failing -= 1
            raise ValueError("no leave")
        self.heard.append(verdict.kind)
        return verdict


@contextmanager
def handling(act: Callable[[Delivery], object], policy: Policy = PATIENT, **options: Any) -> Iterator[Running]:
    """A consumer whose attempts are real, with one handler."""
    surrounded = replace(surroundings(), **options)
    order = (lambda _: "k") if surrounded.gates else None
    found = work_queues_of([replace(subscription(policy), run=act, order_by=order, codec=Raw())])
    consumer = Consumer(
        found, Tap(), BatchPipeline(found, surrounded), threads=1, prefetch=2, limits=ConsumerLimits(shutdown=5.0)
    )
    made = Running(consumer._source, consumer)  # type: ignore[arg-type]  # the Tap above
    made.thread.start()
    wait_until(lambda: made.tap.receiver)
    try:
        yield made
    finally:
        consumer.stop("the test is over")
        made.thread.join(10)


def test_a_failing_cleanup_does_not_change_the_settlement(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[bytes] = []
    failing = FailingConnections(exits=[1])
    with handling(lambda message: runs.append(message.body), with_connections=lambda: failing) as made:
        made.tap.bring(b"1", b"2")
        wait_until(lambda: len(made.tap.settled) == 2)

    assert (made.tap.settled, runs) == ([(b"1", DONE), (b"2", DONE)], [b"1", b"2"])
    assert caplog.messages[:1] == ["An attempt failed after its last step; its message is settled anyway"]


def test_a_failing_cleanup_does_not_stop_the_next_attempt() -> None:
    runs: list[int] = []

    def act(message: Delivery) -> None:
        runs.append(message.attempt)
        if len(runs) == 1:
            raise ConnectionError("no bank")

    failing = FailingConnections(exits=[1])
    with handling(act, StopTheLine(backoff=Fixed(30)), with_connections=lambda: failing) as made:
        halted, done = tried(made, delivery(), 2)

    assert ((halted.instruction, halted.hold), done, runs) == ((Instruction.KEEP, 30), DONE, [1, 2])


def test_only_consecutive_failures_outside_the_handler_count() -> None:
    runs: list[int] = []
    enters = iter([True, True, False] * 3)

    @contextmanager
    def with_connections() -> Iterator[None]:
        if next(enters):
            raise ValueError("no room")
        yield

    def act(message: Delivery) -> None:
        runs.append(message.attempt)
        raise ConnectionError("no bank")

    with handling(act, StopTheLine(backoff=Fixed(30)), with_connections=with_connections) as made:
        settled = tried(made, delivery(), 9)

    kept = Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_SECONDS)
    assert (settled, runs) == ([kept, kept, Settlement(instruction=Instruction.KEEP, hold=30)] * 3, [1, 2, 3])


@pytest.mark.parametrize("failing", [1, 2])
def test_a_gate_that_fails_after_a_success_runs_no_handler_again(failing: int) -> None:
    runs: list[bytes] = []
    gate = Leave(failing)
    with handling(lambda message: runs.append(message.body), gates=(gate,)) as made:
        settled = tried(made, delivery(body=b"1"), failing + 1)

    held = Settlement(instruction=Instruction.KEEP, hold=OUTSIDE_FAILURE_SECONDS)
    assert (settled, runs, gate.heard) == ([held] * failing + [DONE], [b"1"], [Kind.ACK])


@pytest.mark.parametrize(
    ("error", "reason", "detail"),
    [
        (None, "handled", "Its handler succeeded, but the next step failed: ValueError: no leave"),
        (
            ConnectionError("no bank"),
            "unsettled",
            "Its handler failed (ConnectionError: no bank), and so did the next step: ValueError: no leave",
        ),
    ],
    ids=["succeeded", "failed"],
)
def test_a_message_parked_after_failures_shows_its_handlers_result(
    error: BaseException | None, reason: str, detail: str
) -> None:
    runs: list[bytes] = []

    def act(message: Delivery) -> None:
        runs.append(message.body)
        if error is not None:
            raise error

    with handling(act, gates=(Leave(3),)) as made:
        last = tried(made, delivery(body=b"1"), 3)[-1]

    assert last.copy is not None
    found = read_back(last.copy)
    assert (runs, found.reason, found.detail) == ([b"1"], reason, detail)


@pytest.mark.parametrize("threads", [1, 3])
def test_messages_without_handler_do_not_count_for_max_messages(threads: int) -> None:
    with running(threads=threads, messages=2) as made:
        made.tap.bring(b"1", UNHANDLED, UNHANDLED, UNHANDLED, b"2", b"3", UNHANDLED)

        assert made.ended() == Exit.DONE
    ran = [body for body, _ in made.tap.settled if body != UNHANDLED]
    assert len(ran) == 2
    assert len(made.tap.settled) + len(made.tap.returned) == 7


@pytest.mark.parametrize(("messages", "prefetch"), [(1, 1), (5, 5), (9, 7)])
def test_max_messages_limits_the_prefetch(messages: int, prefetch: int) -> None:
    with running(messages=messages) as made:
        assert made.tap.lines[0].prefetch == prefetch


def test_max_messages_takes_no_message_after_the_last_has_begun() -> None:
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
        assert made.ended() == Exit.DONE
    assert made.tap.settled == [(b"1", DONE)]


def test_the_first_reason_is_the_one_that_counts() -> None:
    with running() as made:
        made.consumer.stop("first")
        made.consumer.stop("second", Exit.ERROR)

        assert (made.ended(), made.consumer.why) == (Exit.DONE, "first")


def test_each_hanging_handler_is_logged_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    # A bare lock waits in C, so that the handler's own line is where it hangs.
    at_bank, at_ledger = threading.Lock(), threading.Lock()
    at_bank.acquire()
    at_ledger.acquire()

    def wait_for_bank(_: Delivery) -> None:
        at_bank.acquire()

    def wait_for_ledger(_: Delivery) -> None:
        at_ledger.acquire()

    bank = replace(subscription(PATIENT, name="bank", queue="bank"), run=wait_for_bank, timeout=0.05)
    ledger = replace(subscription(PATIENT, name="ledger", queue="ledger"), run=wait_for_ledger, timeout=0.2)
    found, tap = work_queues_of([replace(one, codec=Raw()) for one in (bank, ledger)]), Tap()
    pipeline = BatchPipeline(found, surroundings())
    made = Running(tap, Consumer(found, tap, pipeline, threads=2, prefetch=2, limits=ConsumerLimits(shutdown=5.0)))
    made.thread.start()
    wait_until(lambda: tap.receiver)
    tap.receiver.arrived(delivery(queue="bank"))
    tap.receiver.arrived(delivery(queue="ledger"))
    code = made.ended()
    at_bank.release()
    at_ledger.release()
    wait_until(lambda: not made.consumer.running)

    assert code == Exit.ERROR
    said = [line for line in caplog.messages if "or the handler caught DeadlineExceeded. It is at " in line]
    assert [(line.split()[1], line.partition("(")[2].partition(")")[0]) for line in said] == [
        ("bank", "wait_for_bank"),
        ("ledger", "wait_for_ledger"),
    ]
    assert f"{__file__}:" in said[1]


class HangingGate:
    """A gate whose database does not answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def enter(self, delivery: Delivery, subscription: Subscription) -> None: ...

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        self.answers.wait()
        return verdict


def test_a_hanging_gate_does_not_delay_ending_a_hung_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hung, "RECORD_SECONDS", 0.2)
    held, gate, tap = threading.Lock(), HangingGate(), Tap()
    held.acquire()
    one = replace(
        subscription(PATIENT), run=lambda _: held.acquire(), timeout=0.05, order_by=lambda _: "k", codec=Raw()
    )
    found = work_queues_of([one])
    pipeline = BatchPipeline(found, replace(surroundings(), gates=(gate,)))
    made = Running(tap, Consumer(found, tap, pipeline, threads=2, prefetch=2, limits=ConsumerLimits(shutdown=1.0)))
    made.thread.daemon = True
    made.thread.start()
    try:
        wait_until(lambda: tap.receiver)
        tap.bring(b"1")
        code = made.ended()
    finally:
        gate.answers.set()
        held.release()

    assert (code, made.consumer.hung, tap.words[-1]) == (Exit.ERROR, True, "stop")
    assert (
        "1 hanging handlers have no record of their attempt; their messages return to their queues, or are lost with "
        "ack=auto"
    ) in caplog.messages


def hang(lock: threading.Lock) -> str:
    """Wait in C code, where no exception can be raised."""
    lock.acquire()
    return "k"


@contextmanager
def ordering(order_by: Callable[[Delivery], object], *, key_timeout: float, shutdown: float) -> Iterator[Running]:
    """A consumer of the queue "ledger", with this order_by, and of the queue "bank"."""
    ledger = replace(subscription(PATIENT, name="ledger", queue="ledger"), run=lambda _: None, order_by=order_by)
    bank = replace(subscription(PATIENT, name="bank", queue="bank"), run=lambda _: None)
    found, tap = work_queues_of([replace(one, codec=Raw()) for one in (ledger, bank)]), Tap()
    pipeline = BatchPipeline(found, replace(surroundings(), key_timeout=key_timeout))
    made = Running(tap, Consumer(found, tap, pipeline, threads=2, prefetch=5, limits=ConsumerLimits(shutdown=shutdown)))
    made.thread.daemon = True
    made.thread.start()
    wait_until(lambda: tap.receiver)
    try:
        yield made
    finally:
        made.consumer.stop("the test is over")
        made.thread.join(10)


def bring(made: Running, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        made.tap.receiver.arrived(delivery(queue=queue, body=body))


def test_a_hanging_order_by_ends_the_process_and_stops_no_other_queue() -> None:
    held, begun = threading.Lock(), threading.Event()
    held.acquire()

    def order_by(message: Delivery) -> str:
        begun.set()
        return hang(held) if message.body == b"1" else "k"

    with ordering(order_by, key_timeout=1.0, shutdown=5.0) as made:
        bring(made, "ledger", b"1", b"2", b"3")
        assert begun.wait(10)
        bring(made, "bank", b"4", b"5")
        wait_until(lambda: len(made.tap.settled) == 2)
        assert made.tap.settled == [(b"4", DONE), (b"5", DONE)]
        code = made.ended()
        held.release()
        wait_until(lambda: not made.consumer.running)

    assert (code, made.consumer.hung) == (Exit.ERROR, True)
    assert made.consumer.why.startswith(
        "The order_by of handler ledger did not end within twice its timeout of 1 s: a call that Python cannot "
        "interrupt, or the order_by caught DeadlineExceeded. It is at "
    )
    assert "(hang). Its message is parked." in made.consumer.why
    assert [body for body, _ in made.tap.settled[2:]] == [b"1"]
    copy = made.tap.settled[2][1].copy
    assert copy is not None
    assert read_back(copy).detail.startswith(
        "Its ordering key cannot be computed: order_by raised DeadlineExceeded: The order_by of handler ledger did not"
    )


def test_an_order_by_over_its_timeout_is_ended_and_its_message_parked() -> None:
    calls: list[bytes] = []

    def order_by(message: Delivery) -> str:
        calls.append(message.body)
        while message.body == b"1":
            pass
        return "k"

    with ordering(order_by, key_timeout=2.0, shutdown=5.0) as made:
        bring(made, "ledger", b"1", b"2", b"3")
        wait_until(lambda: len(made.tap.settled) == 3)

    settled = dict(made.tap.settled)
    parked = settled.pop(b"1")
    assert (settled, calls) == ({b"2": DONE, b"3": DONE}, [b"1", b"2", b"3"])
    assert parked.copy is not None
    assert read_back(parked.copy).detail.startswith(
        "Its ordering key cannot be computed: order_by raised DeadlineExceeded: The order_by of handler ledger ran for "
        "longer than its timeout of 2 s"
    )


def test_a_stop_does_not_wait_for_an_order_by() -> None:
    held, begun = threading.Lock(), threading.Event()
    held.acquire()

    def order_by(_: Delivery) -> str:
        begun.set()
        return hang(held)

    with ordering(order_by, key_timeout=60.0, shutdown=0.2) as made:
        bring(made, "ledger", b"1", b"2")
        assert begun.wait(10)
        made.consumer.stop("SIGTERM")
        code = made.ended()
        held.release()
        wait_until(lambda: not made.consumer.running)

    assert (code, made.tap.settled, made.tap.words[-1]) == (Exit.ERROR, [], "stop")


def test_an_ordering_key_is_computed_without_a_watcher_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Deadlines, _run: TimedRun) -> None:
        raise Unready("No thread can be started.")

    monkeypatch.setattr(Deadlines, "_ensure_watcher", fail)
    handler = replace(subscription(PATIENT, name="ledger", queue="ledger"), order_by=lambda _: "k", codec=Raw())
    pipeline = BatchPipeline(work_queues_of([handler]), replace(surroundings(), key_timeout=1.0))

    assert pipeline.read_key(delivery(queue="ledger")) == ("ledger", "k")


@pytest.mark.parametrize("policy", [OneShot(), StopTheLine()])
def test_what_has_not_begun_as_the_connection_is_lost_does_not_begin(policy: Policy) -> None:
    """The broker delivers it again."""
    line, begun, goes_on = SimpleNamespace(stale=False, last_acks=deque()), list[bytes](), threading.Event()

    def run(message: Delivery) -> None:
        begun.append(message.body)
        goes_on.wait(10)

    found = work_queues_of([replace(subscription(policy), run=run)])
    tap = Tap()
    pipeline = BatchPipeline(found, surroundings())
    made = Running(tap, Consumer(found, tap, pipeline, threads=1, prefetch=3, limits=ConsumerLimits(shutdown=5.0)))
    made.thread.start()
    wait_until(lambda: tap.receiver)
    for number in range(3):
        tap.receiver.arrived(replace(delivery(body=b"%d" % number), token=(line, number)))
    wait_until(lambda: begun)
    line.stale = True
    goes_on.set()
    tap.receiver.arrived(replace(delivery(body=b"7"), token=(SimpleNamespace(stale=False, last_acks=deque()), 1)))
    wait_until(lambda: b"7" in begun)
    made.consumer.stop("the test is over")

    assert made.ended() == 0
    assert begun == [b"0", b"7"]
