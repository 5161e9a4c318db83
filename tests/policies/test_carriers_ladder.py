"""The ladder keeps its promise: never earlier than asked, and later by no more than it says."""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_rmq_retry import Exponential, Fixed, Ladder, Message, Queue, RetryThenPark, Schedule, Steps
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Instruction
from django_rmq_retry.messages.properties import milliseconds
from django_rmq_retry.policies import Backoff, retry
from tests.handlers.factories import arrived, delivery, hop, route, sent_on, settled, subscription, topology_of
from tests.messages.exceptions import BankDown


@dataclass
class Waiting:
    """A queue like RabbitMQ's: only the message at its head can expire; messages behind it wait."""

    ttl: int
    line: deque[tuple[int, int, Message]] = field(default_factory=deque)


class Simulation:
    """The waiting queues of a subscription on a clock of their own, in milliseconds."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        declared = topology_of(subscription).queues.values()
        self.queues = {
            one.name: Waiting(int(str(one.arguments["x-message-ttl"]))) for one in declared if one.role == "waiting"
        }
        self.due: dict[int, int] = {}
        self.hops: dict[int, int] = {}
        self._events: list[tuple[int, int, str, int, Message | None]] = []
        self._order = 0

    def run(self, asked: Iterable[tuple[int, float]]) -> None:
        """Retry one message for each (time, delay); afterwards `due` says when each was back."""
        for number, (time, delay) in enumerate(asked):
            failed = delivery(queue=self.subscription.queue.name)
            first = settled(retry(delay), failed, self.subscription)
            assert first.instruction is Instruction.ACK
            assert first.copy is not None
            self._send(time, number, first.copy)
        while self._events:
            time, _, queue, number, copy = heapq.heappop(self._events)
            if copy is not None:
                self._enter(time, queue, number, copy)
            self._leave(time, queue)

    def _send(self, time: int, number: int, copy: Message) -> None:
        assert copy.exchange == ""
        assert copy.routing_key in self.queues
        self.hops[number] = self.hops.get(number, 0) + 1
        self._at(time, copy.routing_key, number, copy)

    def _at(self, time: int, queue: str, number: int, copy: Message | None = None) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, queue, number, copy))

    def _enter(self, time: int, queue: str, number: int, copy: Message) -> None:
        waiting = self.queues[queue]
        own = copy.properties.expiration
        life = waiting.ttl if own is None else min(int(own), waiting.ttl)
        waiting.line.append((time + life, number, copy))
        self._at(time + life, queue, number)

    def _leave(self, time: int, queue: str) -> None:
        line = self.queues[queue].line
        while line and line[0][0] <= time:
            _, number, copy = line.popleft()
            again = sent_on(arrived(copy, queue=self.subscription.queue.name), self.subscription)
            if again is None:
                self.due[number] = time
            else:
                assert again.copy is not None
                self._send(time, number, again.copy)


SECONDS = st.integers(8_000, 600_000).map(lambda value: value / 1000)
JITTER = st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0])
BACKOFFS: st.SearchStrategy[Backoff] = st.one_of(
    st.builds(Fixed, SECONDS, JITTER),
    st.builds(Steps, st.lists(SECONDS, min_size=1, max_size=6), JITTER),
    st.builds(Exponential, SECONDS, factor=st.sampled_from([1, 1.5, 2, 3]), cap=st.just(600.0), jitter=JITTER),
)
ATTEMPTS = st.integers(1, 9)
LADDERS = st.one_of(st.just(Ladder()), st.builds(Ladder, st.lists(SECONDS, min_size=1, max_size=5)))


def lateness(made: Simulation, asked: Sequence[tuple[int, float]]) -> list[int]:
    return [made.due[number] - time - milliseconds(delay) for number, (time, delay) in enumerate(asked)]


def allowed(policy: RetryThenPark) -> int:
    """The life in the smallest queue, or the most that jitter adds to a step."""
    ladder = policy.via
    assert isinstance(ladder, Ladder)
    spans = ladder._spans(subscription(policy).route)
    return max(spans[0][1], *(rung - step for step, rung in spans))


@given(BACKOFFS, ATTEMPTS, LADDERS, st.floats(0, 1500))
def test_a_single_message_returns_exactly_after_the_delay_of_its_handler(
    backoff: Backoff, attempts: int, ladder: Ladder, delay: float
) -> None:
    made = Simulation(subscription(RetryThenPark(attempts=attempts, backoff=backoff, via=ladder)))
    made.run([(0, delay)])

    assert lateness(made, [(0, delay)]) == [0]


@settings(deadline=None, max_examples=60)
@given(BACKOFFS, ATTEMPTS, LADDERS, st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 900)), max_size=30))
def test_no_message_returns_early_or_later_than_one_step_or_the_jitter(
    backoff: Backoff, attempts: int, ladder: Ladder, asked: list[tuple[int, float]]
) -> None:
    policy = RetryThenPark(attempts=attempts, backoff=backoff, via=ladder)
    made = Simulation(subscription(policy))
    made.run(asked)

    late = lateness(made, asked)
    assert all(0 <= one <= allowed(policy) for one in late)


@settings(deadline=None, max_examples=60)
@given(BACKOFFS, st.lists(st.tuples(st.integers(0, 10**5), st.integers(1, 5), st.floats(0, 0.99)), max_size=60))
def test_a_jittered_wait_is_never_longer_than_its_step_with_all_its_jitter(
    backoff: Backoff, asked: list[tuple[int, int, float]]
) -> None:
    policy = RetryThenPark(attempts=6, backoff=backoff)
    made = Simulation(subscription(policy))
    waits = [(time, backoff.delay(attempt, chance)) for time, attempt, chance in asked]
    made.run(waits)
    smallest = Ladder().rungs(subscription(policy).route)[0]

    for number, (time, attempt, chance) in enumerate(asked):
        whole = milliseconds(backoff.nominal(attempt) * (1 + backoff.spread))
        assert milliseconds(backoff.delay(attempt, chance)) <= made.due[number] - time <= max(whole, smallest)
        assert made.hops[number] == 1


@given(BACKOFFS, ATTEMPTS, LADDERS, st.floats(0, 100_000))
def test_hops_end_and_each_but_the_last_takes_a_whole_step(
    backoff: Backoff, attempts: int, ladder: Ladder, delay: float
) -> None:
    policy = RetryThenPark(attempts=attempts, backoff=backoff, via=ladder)
    rungs = ladder.rungs(subscription(policy).route)
    # So few hops are made with the largest step that the test would not see the end of with the smallest.
    delay = min(delay, rungs[-1] / 1000 * 50)
    made = Simulation(subscription(policy))
    made.run([(0, delay)])

    assert made.hops[0] <= milliseconds(delay) // rungs[0] + 1


def test_ten_thousand_jittered_retries_use_declared_queues_only() -> None:
    policy = RetryThenPark(attempts=5, backoff=Exponential(10, factor=3, jitter=0.2))
    charge = subscription(policy)
    declared = {name for name, queue in topology_of(charge).queues.items() if queue.role == "waiting"}
    chance = random.Random(1)
    named = set()
    for _ in range(10_000):
        wait = Exponential(10, factor=3, jitter=0.2).delay(chance.randint(1, 4), chance.random())
        copy = settled(retry(wait), delivery(), charge).copy
        assert copy is not None
        named.add(copy.routing_key)

    assert named == declared
    assert declared == {
        "payments.retry.12s",
        "payments.retry.36s",
        "payments.retry.108s",
        "payments.retry.324s",
    }


def test_the_waiting_queues_of_a_quorum_queue_are_safe_and_return_to_it_alone() -> None:
    added = Ladder().additions(route(attempts=3, backoffs=(Fixed(30),)))

    assert added.topology.exchanges == {}
    assert added.topology.bindings == ()
    assert dict(added.topology.queues["payments.retry.30s"].arguments) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-message-ttl": 30_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert added.arguments == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments.parked",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def test_a_queue_with_drop_head_parks_the_dropped_messages() -> None:
    added = Ladder().additions(route(max_length=5, overflow="drop-head", attempts=3, backoffs=(Fixed(30),)))

    assert added.arguments == {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "payments.parked"}


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (0.25, "payments.retry.250ms"),
        (30, "payments.retry.30s"),
        (90, "payments.retry.90s"),
        (60, "payments.retry.1m"),
        (7200, "payments.retry.2h"),
        (86400, "payments.retry.1d"),
    ],
)
def test_the_name_of_a_waiting_queue_shows_how_long_a_message_lives_there(seconds: float, name: str) -> None:
    assert list(Ladder([seconds]).additions(route()).topology.queues) == [name]


@pytest.mark.parametrize(
    ("delay", "queue", "expiration", "rest"),
    [
        (0, "payments.retry.12s", "0", 0),
        (10, "payments.retry.12s", "10000", 0),
        (12, "payments.retry.12s", None, 0),
        (31.5, "payments.retry.36s", "31500", 0),
        (36, "payments.retry.36s", None, 0),
        (20, "payments.retry.12s", None, 8000),
        (40, "payments.retry.36s", None, 4000),
        (86400, "payments.retry.324s", None, 86400_000 - 324_000),
    ],
)
def test_a_wait_uses_the_longest_fitting_queue_and_the_copy_has_the_rest(
    delay: float, queue: str, expiration: str | None, rest: int
) -> None:
    path = route(attempts=5, backoffs=(Exponential(10, factor=3, jitter=0.2),))
    carried = Ladder().carry(path, delivery(), hop(delay, attempts=1))

    assert carried.instruction is Instruction.ACK
    assert carried.copy is not None
    assert not carried.ack_first
    assert carried.copy.mandatory
    assert (carried.copy.exchange, carried.copy.routing_key) == ("", queue)
    assert carried.copy.properties.expiration == expiration
    assert carried.copy.headers.get("rmq-retry-wait", 0) == rest


def test_a_further_hop_counts_no_attempt_and_keeps_the_summary() -> None:
    charge = subscription(RetryThenPark(attempts=5, backoff=Fixed(30)))
    copy = settled(retry(100), delivery(), charge).copy
    assert copy is not None
    again = sent_on(arrived(copy, queue="payments"), charge)

    assert again is not None
    assert again.copy is not None
    assert again.copy.headers["rmq-retry-wait"] == 40_000
    assert {**again.copy.headers, "rmq-retry-wait": 70_000} == dict(copy.headers)


def test_an_invalid_attempts_header_counts_as_zero() -> None:
    path = route()

    assert Ladder().attempt(path, delivery(headers={"rmq-retry-attempts": -3})) == 1
    assert Ladder().attempt(path, delivery(headers={"rmq-retry-attempts": "3"})) == 1
    assert Ladder().attempt(path, delivery(headers={"x-death": [{"queue": "payments", "count": 9}]})) == 1


def test_attempts_of_another_queue_do_not_count_here() -> None:
    forwarded = delivery(queue="ledger", headers={"rmq-retry-attempts": 4, "rmq-retry-queue": "payments"})

    assert Ladder().attempt(route("ledger"), forwarded) == 1


def test_an_error_schedule_has_its_own_waiting_queues() -> None:
    policy = RetryThenPark(
        attempts=3, backoff=Fixed(30), schedules={BankDown: Schedule(attempts=3, backoff=Steps([5, 60]))}
    )

    assert list(policy.via.additions(subscription(policy).route).topology.queues) == [
        "payments.retry.5s",
        "payments.retry.30s",
        "payments.retry.1m",
    ]


def test_a_back_off_with_too_many_different_waits_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigurationError) as caught:
        subscription(RetryThenPark(attempts=None, backoff=Exponential(10, factor=3)))

    assert str(caught.value) == (
        "Handler payments.handlers.charge: The back-off has 17 different waits, which would need as many waiting "
        "queues. Name at most 16 with via=Ladder([…]); for other waits, a message waits several times."
    )
    subscription(RetryThenPark(attempts=None, backoff=Exponential(10, factor=3), via=Ladder([10, 60, 3600])))


def test_no_waiting_queue_has_a_ttl_above_the_brokers_limit() -> None:
    endless = Exponential(10, factor=10, jitter=1.0)

    assert max(Ladder().rungs(route(attempts=None, backoffs=(endless,)))) == 315_360_000_000


def test_a_waiting_queue_whose_name_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"is longer than 255 bytes"):
        subscription(RetryThenPark(attempts=2, backoff=Fixed(30)), queue=Queue("p" * 248), park="parked")


@pytest.mark.parametrize("steps", [[], [0], [-1], ["10"], [float("nan")], [10**12], range(1, 18)])
def test_steps_that_no_queue_could_have_are_refused(steps: Sequence[float]) -> None:
    with pytest.raises(ConfigurationError, match="Ladder takes "):
        Ladder(steps)


def test_a_ladder_without_a_back_off_and_without_steps_is_refused() -> None:
    assert Ladder().refusal(route()) == (
        "The policy has no back-off to take waits from; name them with via=Ladder([…])."
    )
