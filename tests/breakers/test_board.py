"""The switches of several processes over one table, and over one that does not answer."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections

from django_rmq_retry import Breaker, InPlace, Queue, RetryThenPark
from django_rmq_retry.breakers.gate import LEASE_SECONDS, READ_AGAIN_SECONDS, READ_SECONDS, BreakerGate
from django_rmq_retry.breakers.halts import Halts
from django_rmq_retry.breakers.queue_state import QueueState
from django_rmq_retry.breakers.rates import AHEAD_SECONDS, RateGate
from django_rmq_retry.breakers.table import BreakerTable, RateTable
from django_rmq_retry.breakers.watch import Watch
from django_rmq_retry.handlers import Subscription, work_queues_of
from django_rmq_retry.messages import Instruction
from django_rmq_retry.models import HandlerRate, QueueControl
from django_rmq_retry.policies import ACK, Circuit, Kind, Verdict, retry
from tests.handlers.factories import delivery, subscription
from tests.messages.exceptions import BankDown
from tests.tooling.filled import Own
from tests.tooling.marks import nightly_on_sqlite
from tests.tooling.owned import routed
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
QUEUE = "payments"
NOW = 1_800_000_000.0


class RecordedControl:
    """The calls that a gate has made."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.online = True

    def pause(self, queue: str) -> None:
        self.done.append("shut")

    def resume(self, queue: str) -> None:
        self.done.append("open")

    def probe(self, queue: str) -> None:
        self.done.append("one")

    def able(self) -> bool:
        return self.online


class Away:
    """A table that raises while the test wants it to."""

    def __init__(self) -> None:
        self.table, self.away = BreakerTable(), False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if self.away:
            raise ConnectionError("the database is away")
        found: Callable[..., Any] = getattr(self.table, name)
        return found


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    """Threads of a test work on one database, whichever it is."""
    routed(settings)
    return own_database


BREAKER = Breaker(on=BankDown, probe_after=30)


class Process:
    """One of several, with a clock that the test moves."""

    def __init__(self, who: str, store: Any = None, *, name: str = "charge", breaker: Breaker | None = BREAKER) -> None:
        known = subscription(policy=RetryThenPark(attempts=1))
        self.subscription = Subscription(
            name=name, run=known.run, queue=known.queue, policy=known.policy, park=known.park, breaker=breaker
        )
        self.work_queues = work_queues_of([self.subscription])
        self.queue = self.subscription.queue.name
        self.now = NOW
        self.control = RecordedControl()
        self.gate = BreakerGate(
            self.work_queues, store or BreakerTable(), now=lambda: self.now, chance=lambda: 0.0, who=who
        )
        self.gate.control = self.control

    def ran(self, error: BaseException | None = None) -> Verdict:
        verdict = ACK if error is None else retry(10)
        return self.gate.leave(delivery(), self.subscription, verdict, error)

    def turn(self, after: float = 0.0) -> float:
        self.now += after
        return self.gate.turn()


def row() -> QueueControl:
    return QueueControl.objects.get()


def test_an_auto_delete_queue_keeps_flowing_whatever_its_row_states() -> None:
    QueueControl.objects.create(queue="rates", paused=True)
    queue = Queue("rates", type="classic", auto_delete=True)
    known = subscription(policy=RetryThenPark(via=InPlace()), queue=queue)
    gate = BreakerGate(work_queues_of([known]), BreakerTable(), now=lambda: NOW, chance=lambda: 0.0)
    control = gate.control = RecordedControl()
    gate.turn()

    assert (control.done, gate.enter(delivery(queue="rates"), known)) == ([], None)


def test_an_open_breaker_applies_to_every_process_and_one_of_them_probes() -> None:
    one, two, three = (Process(name) for name in ("one", "two", "three"))
    verdict = one.ran(BankDown("timeout"))
    one.turn()
    for other in (two, three):
        other.turn()
    for process in (two, three, one):
        process.turn(31)
    done = [list(process.control.done) for process in (one, two, three)]
    two.ran()
    for process in (two, one, three):
        process.turn()

    assert (verdict.kind, verdict.counted) == (Kind.RETRY, False)
    assert done == [["shut"], ["shut", "one"], ["shut"]]
    assert [process.control.done[-1] for process in (one, two, three)] == ["open"] * 3
    assert (row().opened, row().failed, row().prober) == (False, 0, "")


def test_after_a_failed_probe_any_process_may_send_the_next() -> None:
    one, two = Process("one"), Process("two")
    one.ran(BankDown("timeout"))
    one.turn()
    one.turn(31)
    one.ran(BankDown("timeout"))
    one.turn()
    two.turn(31 + 59)
    early = list(two.control.done)
    two.turn(2)

    assert one.control.done == ["shut", "one", "shut"]
    assert (early, two.control.done, row().failed) == (["shut"], ["shut", "one"], 1)


def test_an_unrenewed_probe_lease_expires() -> None:
    one, two = Process("one"), Process("two")
    one.ran(BankDown("timeout"))
    one.turn()
    one.turn(31)
    two.turn(31)
    one.turn(LEASE_SECONDS - 1)
    two.turn(LEASE_SECONDS + 1)
    renewed = list(two.control.done)
    two.turn(LEASE_SECONDS)

    assert (renewed, two.control.done) == (["shut"], ["shut", "one"])


def test_a_process_that_ends_lets_others_probe_at_once() -> None:
    one, two = Process("one"), Process("two")
    one.ran(BankDown("timeout"))
    one.turn()
    one.turn(31)
    one.gate.end()
    two.turn(32)

    assert two.control.done == ["one"]


def test_a_process_without_a_broker_does_not_probe_and_blocks_no_other() -> None:
    one, two, three = (Process(name) for name in ("one", "two", "three"))
    one.control.online = False
    two.ran(BankDown("timeout"))
    two.turn()
    waits = [one.turn(31) for _ in range(2)]
    two.turn(31)
    tried = list(two.control.done)
    two.control.online = False
    two.turn(1)
    three.turn(31 + 1 + LEASE_SECONDS)
    two.turn(LEASE_SECONDS)

    assert (one.control.done, waits) == (["shut"], [READ_SECONDS, READ_SECONDS])
    assert tried == ["shut", "one"]
    assert three.control.done == ["one"]
    assert two.control.done == ["shut", "one", "shut"]


@pytest.mark.parametrize("error", [None, BankDown("timeout")])
def test_the_breaker_of_a_renamed_handler_can_be_probed_by_any_process(error: BankDown | None) -> None:
    old, new = Process("old"), Process("new", name="pay")
    old.ran(BankDown("timeout"))
    old.turn()
    new.turn(31)
    new.ran(error)
    new.turn()

    assert new.control.done == ["one", "open" if error is None else "shut"]
    assert (row().opened, row().failed) == (error is not None, int(error is not None))


def test_the_breaker_of_a_handler_that_lost_it_closes_when_its_probe_is_due() -> None:
    old, new = Process("old"), Process("new", breaker=None)
    old.ran(BankDown("timeout"))
    old.turn()
    new.turn()
    shut = list(new.control.done)
    new.turn(31)
    new.turn(1)

    assert (shut, new.control.done) == (["shut"], ["shut", "open"])
    assert not row().opened


def test_every_process_counts_failures_anew_after_the_breaker_was_open() -> None:
    share = Breaker(share=0.5, of=4, probe_after=30)
    one, two = Process("one", breaker=share), Process("two", breaker=share)
    for process in (two, one, one):
        process.ran(ValueError("no"))
    for process in (one, two):
        process.turn()
    opened = row().opened
    two.turn(31)
    two.ran()
    for process in (two, one):
        process.turn()
        process.ran(ValueError("no"))
        process.turn()

    assert (opened, row().opened) == (True, False)


@pytest.mark.parametrize("trying", [False, True])
@pytest.mark.parametrize("ahead", [3600, 86400 * 3650])
def test_a_breaker_opened_by_a_fast_clock_is_still_probed(ahead: float, trying: bool) -> None:
    one, two = Process("one"), Process("two")
    one.now += ahead
    one.ran(BankDown("timeout"))
    one.turn()
    if trying:
        one.turn(31)
    two.turn()
    two.turn(1)
    two.ran()
    two.turn(1)

    assert two.control.done == ["one", "open"]
    assert not row().opened


def test_a_read_only_table_is_polled_with_a_pause() -> None:
    class ReadOnly(BreakerTable):
        def claim(self, *args: Any, **options: Any) -> bool:
            raise ConnectionError("cannot execute UPDATE in a read-only transaction")

    one, two = Process("one"), Process("two", ReadOnly())
    one.ran(BankDown("timeout"))
    one.turn()
    two.turn()

    assert two.turn(31) == READ_SECONDS


@pytest.mark.usefixtures("own")
def test_of_many_processes_one_probes() -> None:
    BreakerTable().put(QUEUE, Circuit().trip(handler="charge", kind="", cause="", now=NOW, wait=1), "another process")
    claimed: list[bool] = []
    ready = threading.Barrier(6)

    def claim(number: int) -> None:
        try:
            ready.wait(20)
            claimed.append(BreakerTable().claim(QUEUE, f"process {number}", now=NOW + 2, until=NOW + 20, most=600))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(claimed) == [False] * 5 + [True]


def test_a_resume_by_an_operator_closes_the_breaker_even_during_a_probe() -> None:
    one = Process("one")
    one.ran(BankDown("timeout"))
    one.turn()
    one.turn(31)
    QueueControl.objects.update(opened=False, prober="", probe_until=None)
    one.turn(1)
    verdict = one.ran()

    assert one.control.done == ["shut", "one", "open"]
    assert verdict is ACK


def test_a_pause_by_an_operator_stops_every_probe() -> None:
    one = Process("one")
    one.ran(BankDown("timeout"))
    one.turn()
    QueueControl.objects.update(paused=True, by="ann")
    one.turn(600)
    held = list(one.control.done)
    QueueControl.objects.update(paused=False)
    one.turn(1)

    assert (held, one.control.done) == (["shut"], ["shut", "one"])


def test_nothing_flows_until_the_pauses_were_read_once(caplog: pytest.LogCaptureFixture) -> None:
    QueueControl.objects.create(queue=QUEUE, paused=True, by="ann", reason="closing")
    store = Away()
    store.away = True
    one, delivered = Process("one", store), delivery(queue=QUEUE)
    one.gate.hold_back()
    with caplog.at_level(logging.INFO):
        waits = [one.turn(after) for after in (0, 1, 58, 1)]
        held = one.gate.unread, one.gate.enter(delivered, one.subscription) is not None, list(one.control.done)
        store.away = False
        one.turn()
        read = one.gate.unread, list(one.control.done)
        QueueControl.objects.update(paused=False)
        one.turn()
        store.away = True
        one.turn()

    assert (waits, held) == ([READ_AGAIN_SECONDS] * 4, (True, True, ["shut"]))
    assert (read, one.control.done) == ((False, ["shut"]), ["shut", "open"])
    assert one.gate.enter(delivered, one.subscription) is None
    assert [vars(record)["event"] for record in caplog.records] == [
        *("unread", "unread", "switched", "read", "switched", "unshared"),
    ]


def test_a_queue_that_nobody_paused_flows_after_the_first_read_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Process("one")
    one.gate.hold_back()
    held = list(one.control.done)
    with caplog.at_level(logging.INFO):
        one.turn()

    assert (held, one.control.done, one.gate.unread) == (["shut"], ["shut", "open"], False)
    assert caplog.records == []


@pytest.mark.parametrize("database", [True, False])
def test_a_project_without_the_table_has_no_pauses_to_wait_for(
    database: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if database:
        monkeypatch.setattr(QueueControl._meta, "db_table", "nowhere")
    else:
        none = connections.configure_settings({"default": {}, "none": {}})["none"]
        monkeypatch.setitem(connections.settings, "none", none)
        monkeypatch.setattr("django_rmq_retry.breakers.table.controls_alias", lambda: "none")
    one = Process("one")
    one.gate.hold_back()
    one.turn()

    assert (one.control.done, one.gate.unread) == (["shut", "open"], False)


def test_a_database_that_hangs_holds_the_queues_but_not_the_process(caplog: pytest.LogCaptureFixture) -> None:
    answers = threading.Event()

    class Hanging(BreakerTable):
        def read(self, queues: Collection[str]) -> Mapping[str, QueueState]:
            answers.wait(20)
            return {}

    one = Process("one", Hanging())
    watch = Watch(one.gate, Halts(list, "one", holds=bool, let_go=print), with_connections=nullcontext)
    watch.start()
    during = one.gate.unread, list(one.control.done), caplog.messages
    answers.set()
    wait_until(lambda: not one.gate.unread)
    watch.stop(20)

    assert during[:2] == (True, ["shut"])
    assert [line.rpartition(": ")[2] for line in during[2]][:1] == ["it does not answer"]
    assert one.control.done == ["shut", "open"]


def test_without_the_database_a_process_uses_its_last_known_state(caplog: pytest.LogCaptureFixture) -> None:
    store = Away()
    one = Process("one", store)
    one.turn()
    store.away = True
    with caplog.at_level(logging.INFO):
        one.ran(BankDown("timeout"))
        for _ in range(5):
            one.turn(1)
        one.turn(31)
        one.ran(BankDown("timeout"))
        one.turn(61)
        alone = list(one.control.done)
        store.away = False
        one.turn()
    told = [record.getMessage() for record in caplog.records if "shared state" in record.getMessage()]
    known = row()
    one.ran()
    one.turn()

    assert alone == ["shut", "one", "shut", "one"]
    assert (known.opened, known.failed) == (True, 1)
    assert (one.control.done[-1], row().opened) == ("open", False)
    assert len(told) == 2
    assert "(the database is away)" in told[0]


def test_a_message_delivered_to_a_stopped_queue_returns_uncounted() -> None:
    one = Process("one")
    one.ran(BankDown("timeout"))
    came = delivery(queue=one.queue)
    back = one.gate.enter(came, one.subscription)

    assert back is not None
    assert back.copy is not None
    assert (back.instruction, back.copy.exchange, back.copy.routing_key) == (Instruction.ACK, "", one.queue)
    assert "rmq-retry-attempts" not in back.copy.headers


def test_a_row_of_an_unknown_queue_stops_nothing() -> None:
    one = Process("one")
    QueueControl.objects.create(queue="another consumer's", paused=True)
    one.turn()

    assert one.control.done == []


class Taken:
    """Runs of several processes that take their moments out of one row."""

    def __init__(self, count: int, rate: float) -> None:
        known = subscription(policy=RetryThenPark())
        self.subscription = Subscription(
            name="charge", run=known.run, queue=known.queue, policy=known.policy, park=known.park, rate=rate
        )
        self.now = NOW
        self.paces = [
            RateGate(work_queues_of([self.subscription]), RateTable(), now=lambda: self.now) for _ in range(count)
        ]

    def run(self, messages: int, step: float = 0.01) -> list[float]:
        """Return the time at which each message runs, if each process always has this number of unacked messages."""
        waiting = [(self.now, pace, delivery()) for pace in self.paces for _ in range(messages)]
        ran: list[float] = []
        while waiting:
            due = [one for one in waiting if one[0] <= self.now]
            waiting = [one for one in waiting if one[0] > self.now]
            for _at, pace, message in due:
                told = pace.enter(message, self.subscription)
                if told is None:
                    ran.append(self.now)
                else:
                    waiting.append((self.now + told.hold, pace, message))
            self.now += step
        return ran


@nightly_on_sqlite
def test_several_processes_share_one_rate_and_its_burst() -> None:
    ran = sorted(Taken(3, 50).run(150))
    spent = ran[-1] - ran[0]

    assert (len(ran) - 1) / spent == pytest.approx(50, rel=0.1)
    assert max(sum(start <= one < start + 1 for one in ran) for start in ran) <= 50 * 1.5 + 1


def test_no_process_reserves_rate_slots_far_ahead() -> None:
    taken = Taken(1, 2)
    for _ in range(20):
        taken.paces[0].enter(delivery(), taken.subscription)

    assert HandlerRate.objects.get().next_at.timestamp() <= NOW + AHEAD_SECONDS + 0.5


def test_unused_rate_slots_expire() -> None:
    taken = Taken(1, 10)
    taken.run(10)
    taken.now += 3600
    ran = taken.run(20)

    assert ran[-1] - ran[0] == pytest.approx(1.9, abs=0.15)


@pytest.mark.parametrize("meters", [RateTable(), None], ids=["table", "own"])
def test_a_clock_that_was_ahead_delays_no_process(meters: RateTable | None) -> None:
    taken = Taken(1, 10)
    taken.paces = [RateGate(work_queues_of([taken.subscription]), meters, now=lambda: taken.now)]
    taken.run(5)
    for _ in range(3):
        taken.paces[0].enter(delivery(), taken.subscription)
    taken.now -= 1800
    ran = taken.run(20)

    assert ran[-1] - (NOW - 1800) == pytest.approx(2.5, abs=0.75)


def test_a_raised_rate_applies_at_once() -> None:
    Taken(1, 1 / 1800).run(1)
    ran = Taken(1, 10).run(20)

    assert ran[-1] - NOW == pytest.approx(2.5, abs=0.75)


def test_a_process_slower_than_the_others_waits_without_taking_slots() -> None:
    taken = Taken(1, 10)
    HandlerRate.objects.create(handler="charge", next_at=datetime.fromtimestamp(NOW - 5, UTC))
    lost = 0

    def lose(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal lost
        if sql.startswith("UPDATE"):
            lost += 1
            return execute(sql.replace("WHERE", "WHERE 1 = 0 AND"), params, many, context)
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(lose):
        told = taken.paces[0].enter(delivery(), taken.subscription)

    assert lost > 1
    assert told is not None
    assert (told.instruction, told.copy) == (Instruction.KEEP, None)


def test_without_the_database_each_process_keeps_the_whole_rate(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(RateTable):
        def take(self, handler: str, count: int, rate: float, now: float) -> float:
            raise ConnectionError("the database is away")

    taken = Taken(1, 10)
    taken.paces = [RateGate(work_queues_of([taken.subscription]), Gone(), now=lambda: taken.now)]
    ran = taken.run(20)

    assert ran[-1] - ran[0] == pytest.approx(1.9, abs=0.15)
    assert caplog.text.count("each process uses the whole rate") == 1
