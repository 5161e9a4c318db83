"""The order of deliveries: by arrival within a key, concurrent otherwise."""

import threading
from collections import defaultdict

from django_rmq_retry import Delivery
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.consumer.workers import Workers
from tests.tooling.waiting import wait_until


class Line:
    """A line, which distinguishes the deliveries of one connection from those of another."""

    stale = False


def arrival(key: str, number: int, line: object, *, queue: str = "q") -> Delivery:
    body, token = str(number).encode(), (line, number)
    return Delivery(queue=queue, body=body, routing_key=key, token=token, key=key or None)


def sequencer(*arrivals: Delivery) -> Sequencer:
    made = Sequencer(lambda delivery: delivery.key)
    for one in arrivals:
        made.add(one)
    return made


def taken(turns: Sequencer, queue: str = "q") -> Delivery | None:
    """Take the next arrival of a queue; the token is that of any of its arrivals."""
    return turns.take(arrival("", 0, None, queue=queue))


def test_messages_of_one_ordering_key_take_turns_and_others_do_not_wait() -> None:
    line = Line()
    a1, a2, b1 = (arrival(key, number, line) for number, key in enumerate("aab"))
    turns = sequencer(a1, a2, b1)

    assert [taken(turns), taken(turns), taken(turns)] == [a1, None, b1]
    assert turns.waiting == 1
    assert turns.done(b1) is None
    assert turns.done(a1) is a2
    assert turns.done(a2) is None
    assert turns.waiting == 0


def test_messages_without_ordering_key_do_not_wait() -> None:
    line = Line()
    first, second = arrival("", 1, line), arrival("", 2, line)
    turns = sequencer(first, second)

    assert [taken(turns), taken(turns), taken(turns)] == [first, second, None]
    assert turns.done(first) is None


def test_a_message_with_a_failing_key_blocks_none_and_is_attempted() -> None:
    def broken(delivery: Delivery) -> str:
        raise RecursionError(delivery.routing_key)

    line = Line()
    first, second = arrival("a", 1, line), arrival("a", 2, line)
    turns = Sequencer(broken)
    turns.add(first)
    turns.add(second)

    assert [taken(turns), taken(turns), taken(turns)] == [first, second, None]


def test_an_unacked_message_blocks_its_key_until_it_is_done() -> None:
    line = Line()
    first, second = arrival("a", 1, line), arrival("a", 2, line)
    turns = sequencer(first)
    taken(turns)

    assert turns.keep(first) is None
    turns.add(second)
    assert taken(turns) is None
    turns.add(first)
    assert taken(turns) is first
    assert turns.done(first) is second


def test_messages_waiting_on_a_lost_channel_are_dropped() -> None:
    old, new = Line(), Line()
    first, second = arrival("a", 1, old), arrival("a", 2, old)
    again, too = arrival("a", 1, new), arrival("a", 2, new)
    turns = sequencer(first, second)
    taken(turns)
    taken(turns)
    turns.add(again)
    turns.add(too)

    assert [taken(turns), taken(turns)] == [None, None]
    assert turns.done(first) is again
    assert turns.done(again) is too
    assert turns.done(too) is None


def test_an_unacked_message_of_a_lost_channel_unblocks_its_key() -> None:
    old, new = Line(), Line()
    first, again = arrival("a", 1, old), arrival("a", 1, new)
    turns = sequencer(first)
    taken(turns)
    turns.keep(first)
    turns.add(again)

    assert taken(turns) is again
    assert turns.done(again) is None


def test_a_message_kept_on_a_lost_channel_unblocks_its_key() -> None:
    old, new = Line(), Line()
    first, again, other = arrival("a", 1, old), arrival("a", 1, new), arrival("b", 2, new)
    turns = sequencer(first)
    taken(turns)
    turns.add(other)
    taken(turns)
    turns.add(again)
    taken(turns)

    assert turns.keep(first) is again


def test_a_delivery_of_a_closed_channel_is_not_started() -> None:
    closed = Line()
    closed.stale = True
    turns = sequencer(arrival("a", 1, closed))

    assert taken(turns) is None
    assert turns.waiting == 0


def test_a_lost_channel_leaves_other_queues_alone() -> None:
    here, there = Line(), Line()
    first, second = arrival("a", 1, here), arrival("a", 2, here)
    turns = sequencer(first, second, arrival("z", 3, there, queue="other"))

    assert [taken(turns) is first, taken(turns)] == [True, None]
    assert taken(turns, "other") is not None
    assert turns.done(first) is second


def test_a_stop_drops_messages_that_have_not_begun() -> None:
    line = Line()
    first, second, third = arrival("a", 1, line), arrival("a", 2, line), arrival("b", 3, line)
    turns = sequencer(first, second, third)
    taken(turns)
    taken(turns)

    turns.clear()

    assert taken(turns) is None
    assert turns.done(first) is None


def test_under_many_threads_each_key_keeps_its_order_and_never_runs_twice_at_once() -> None:
    line = Line()
    arrivals = [arrival("abcde"[number % 5], number, line) for number in range(2000)]
    seen: dict[str, list[int]] = defaultdict(list)
    busy: dict[str, threading.Lock] = defaultdict(threading.Lock)
    overlaps: list[str] = []
    for key in "abcde":
        busy[key], seen[key] = threading.Lock(), []

    def work(token: Delivery) -> None:
        turn = turns.take(token)
        while turn is not None:
            key = turn.routing_key
            if not busy[key].acquire(blocking=False):
                overlaps.append(key)
            seen[key].append(int(turn.body))
            busy[key].release()
            turn = turns.done(turn)

    workers = Workers(6, work)
    turns = Sequencer(lambda delivery: delivery.key, again=workers.add)
    workers.start()
    for one in arrivals:
        turns.add(one)
        workers.add(one)
    wait_until(lambda: sum(map(len, seen.values())) == len(arrivals), what="every message has had its turn")
    workers.stop()

    assert overlaps == []
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_different_keys_run_side_by_side() -> None:
    line = Line()
    both = threading.Barrier(2, timeout=20)
    met: list[str] = []

    def work(token: Delivery) -> None:
        turn = turns.take(token)
        while turn is not None:
            both.wait()
            met.append(turn.routing_key)
            turn = turns.done(turn)

    workers = Workers(2, work)
    turns = Sequencer(lambda delivery: delivery.key, again=workers.add)
    workers.start()
    for one in (arrival("a", 1, line), arrival("b", 2, line)):
        turns.add(one)
        workers.add(one)
    wait_until(lambda: len(met) == 2, what="both have run")
    workers.stop()

    assert sorted(met) == ["a", "b"]


class Slow:
    """Computes the keys of deliveries; for the key "slow" it takes until ``ends`` is set."""

    def __init__(self, *arrivals: Delivery, wait: bool = True) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()
        self.again: list[Delivery] = []
        self.results: list[Delivery | None] = []
        self.turns = Sequencer(self._key, again=self.again.append)
        for one in arrivals:
            self.turns.add(one)
        self._thread = threading.Thread(target=lambda: self.results.append(taken(self.turns)), daemon=True)
        if wait:
            self.start()

    def start(self) -> None:
        """Take the next arrival in a thread, and wait until its key is computed."""
        self._thread.start()
        assert self.begun.wait(10)

    def end(self) -> Delivery | None:
        """Let the key be computed, and return the delivery whose turn it is."""
        self.ends.set()
        self._thread.join(10)
        return self.results[0]

    def _key(self, delivery: Delivery) -> str | None:
        if delivery.body == b"1":
            self.begun.set()
            self.ends.wait(20)
        return delivery.key


def test_a_slow_order_by_delays_only_its_own_queue() -> None:
    line = Line()
    first, second, third = (arrival(key, number, line) for number, key in ((1, "a"), (2, "a"), (3, "b")))
    slow = Slow(first, second, third, arrival("a", 4, line, queue="other"))
    turns = slow.turns

    elsewhere = taken(turns, "other")
    assert elsewhere is not None
    assert [turns.take(second), turns.take(third)] == [None, None]
    assert (turns.waiting, slow.again) == (2, [])
    assert turns.done(elsewhere) is None

    assert slow.end() is first
    assert slow.again == [second, third]
    assert [turns.take(one) for one in slow.again] == [None, third]
    assert turns.done(first) is second


def test_a_kept_message_is_attempted_during_a_slow_order_by() -> None:
    line = Line()
    kept, first = arrival("k", 0, line), arrival("a", 1, line)
    slow = Slow(kept, first, wait=False)
    assert taken(slow.turns) is kept
    assert slow.turns.keep(kept) is None
    slow.start()
    slow.turns.add(kept)

    assert taken(slow.turns) is kept
    assert slow.end() is first


def test_a_stop_and_a_pause_do_not_wait_for_order_by() -> None:
    line = Line()
    first, second, third = (arrival("a", number, line) for number in (1, 2, 3))
    slow = Slow(first, second)

    assert slow.turns.give_up(["q"]) == [second]
    slow.turns.add(third)
    slow.turns.clear()

    assert slow.end() is None
    assert taken(slow.turns) is None
