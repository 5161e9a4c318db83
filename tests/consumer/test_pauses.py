"""Unacked messages of a consumer when one of its queues is paused."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from django_rmq_retry import Delivery, Queue, RetryThenPark
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.lines import QueuePauses
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.consumer.workers import Workers
from django_rmq_retry.handlers import Subscription, work_queues_of
from tests.handlers.factories import delivery, subscription

QUEUE = "ledger"


class Source:
    """Keeps the paused queues and the returned messages."""

    def __init__(self) -> None:
        self.paused: list[str] = []
        self.returned: list[Delivery] = []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def pause(self, queue: str) -> None:
        self.paused.append(queue)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self.returned += deliveries


def test_a_message_redelivered_during_a_pause_still_gets_a_thread() -> None:
    line = SimpleNamespace(stale=False)
    first, second = (Delivery(queue=QUEUE, body=b"%d" % number, token=(line, number)) for number in (1, 2))
    handler = Subscription(
        name="post",
        run=print,
        queue=Queue(QUEUE),
        policy=RetryThenPark(),
        park="ledger.parked",
        order_by=lambda message: message.body,
    )
    turns = Sequencer(lambda delivery: delivery.body)
    workers: Workers[Delivery] = Workers(0, lambda _delivery: None)
    source = Source()
    pauses = QueuePauses(work_queues_of([handler]), source, workers, turns)
    turns.add(first)
    turns.take(first)
    turns.keep(first)
    for one in (first, second):
        turns.add(one)
        workers.add(one)

    pauses.pause(QUEUE)

    assert (source.paused, source.returned) == ([QUEUE], [second])
    assert workers.waiting >= 1
    assert [turns.take(first), turns.take(first)] == [first, None]


QUARANTINE = "ledger.quarantine"
Moment = tuple[dict[str, int | None], Sequence[AttemptState]]
"""The unacked messages by queue, and the attempts."""


def begun(name: str | None, queue: str = QUEUE) -> AttemptState:
    one = delivery(queue=queue, message_id=name)
    return AttemptState(one, one)


def left_of(*moments: Moment, lost: Sequence[AttemptState] = ()) -> set[str] | None:
    """What is told to be left of the queue; whichever fact is read, it is of the next moment."""
    ghosts = [state.arrival for state in lost]
    passing = list(moments)

    def now() -> Moment:
        return passing.pop(0) if len(passing) > 1 else passing[0]

    source: Any = SimpleNamespace(unsettled=lambda queue: now()[0][queue], knows=lambda one: one not in ghosts)
    workers: Workers[Delivery] = Workers(0, print)
    work_queues = work_queues_of([subscription(RetryThenPark(), queue=QUEUE)])
    left = QueuePauses(work_queues, source, workers, Sequencer(print), in_flight=lambda: now()[1]).left_of(QUEUE)
    return None if left is None else set(left)


def test_a_handler_whose_line_was_lost_is_not_counted_for_another_message() -> None:
    """One was in its handler as the connection was lost; the next one was handled, and its ack had no answer."""
    ghost = begun("g")

    assert left_of(({QUEUE: 1, QUARANTINE: 0}, [ghost])) == {"g"}
    assert left_of(({QUEUE: 1, QUARANTINE: 0}, [ghost]), lost=[ghost]) is None


@pytest.mark.parametrize(
    ("unacked", "attempts", "left"),
    [
        ((0, 0), [], set()),
        ((2, 0), [begun("a"), begun("b")], {"a", "b"}),
        ((1, 1), [begun("a"), begun("q", QUARANTINE)], {"a", "q"}),
        ((1, 0), [begun("a"), begun("m", "mails")], {"a"}),
        ((3, 0), [begun("a"), begun("b")], None),
        ((None, 0), [], None),
        ((1, None), [begun("a")], None),
        ((0, 0), [begun("a")], None),
        ((2, 0), [begun("a"), begun(None)], None),
    ],
    ids=["none", "all begun", "in quarantine", "of another", "one waits", "flows", "not counted", "line lost", "no id"],
)
def test_what_is_left_of_a_paused_queue_is_told_if_all_of_it_was_begun(
    unacked: tuple[int | None, int | None], attempts: list[AttemptState], left: set[str] | None
) -> None:
    """The consumer was killed while two handlers ran, and 20 payments were "perhaps handled twice"."""
    assert left_of(({QUEUE: unacked[0], QUARANTINE: unacked[1]}, attempts)) == left


def test_what_is_begun_while_another_one_ends_is_not_missed() -> None:
    """A thread that ends a message begins the next one that waits: its name is not known yet."""
    first: Moment = {QUEUE: 2, QUARANTINE: 0}, [begun("a")]
    then: Moment = {QUEUE: 1, QUARANTINE: 0}, [begun("b")]

    assert left_of(first, then) is None
