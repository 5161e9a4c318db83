"""The drainer over a source and a storage of the test's own: no broker, no database, a real thread."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from django_rmq_retry import Delivery
from django_rmq_retry.amqp import Line
from django_rmq_retry.consumer import drainer
from django_rmq_retry.consumer.drainer import Chore, Drainer, DrainerParts
from django_rmq_retry.errors import BrokerRefused
from django_rmq_retry.parked.store import Stored, StoreUnavailable
from django_rmq_retry.topology import Server
from tests.consumer.taps import Tap
from tests.tooling.waiting import wait_until

LINES = [Line(queue="a.parked", prefetch=500), Line(queue="b.parked", prefetch=500)]
AWAY = "The database 'default' does not answer."


class Shelf:
    """A storage that does what the test says, and keeps what it is given."""

    def __init__(self) -> None:
        self.why = ""
        self.problems: dict[bytes, str] = {}
        self.batches: list[list[bytes]] = []
        self.again: list[bool] = []
        self.stored: list[bytes] = []
        self.error: BaseException | None = None
        self.gate: threading.Event | None = None
        self.partly = 0
        self.closed = 0

    def outage(self) -> str:
        return self.why

    def store(self, batch: Sequence[Delivery]) -> Sequence[Stored]:
        self.batches.append([one.body for one in batch])
        self.again += [one.redelivered for one in batch]
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.why:
            done, self.partly = batch[: self.partly], 0
            self.stored += [one.body for one in done]
            raise StoreUnavailable(self.why, dict.fromkeys(done, Stored()))
        self.stored += [one.body for one in batch if one.body not in self.problems]
        return [Stored(problem=self.problems.get(one.body, "")) for one in batch]

    def close(self) -> None:
        self.closed += 1


class Stage:
    """A running drainer, and the parts that it uses."""

    def __init__(self, chores: Sequence[Chore] = ()) -> None:
        self.shelf = Shelf()
        self.taps: list[Tap] = []
        self.set_aside: list[tuple[bytes, str]] = []
        self.no_aside: Exception | None = None
        self.aside_tries = 0
        self.entered = 0
        means = DrainerParts(
            source=self._tap,
            storage=self.shelf,
            aside=self._aside,
            with_connections=self._with_connections,
            chores=tuple(chores),
        )
        self.drainer = Drainer(LINES, means)

    @property
    def tap(self) -> Tap:
        wait_until(lambda: self.taps and self.taps[-1].receiver)
        return self.taps[-1]

    def settled(self) -> list[bytes]:
        return [body for tap in self.taps for body, _ in tap.settled]

    def _tap(self) -> Any:
        self.taps.append(Tap())
        return self.taps[-1]

    def _aside(self, one: Delivery, why: str) -> None:
        self.aside_tries += 1
        if self.no_aside is not None:
            raise self.no_aside
        self.set_aside.append((one.body, why))

    def _with_connections(self) -> Any:
        self.entered += 1
        return nullcontext()


class Doing:
    """A chore that counts its runs, and returns or raises the values it was given."""

    def __init__(self, *answers: bool, error: Exception | None = None) -> None:
        self.answers = iter(answers)
        self.error = error
        self.times = 0

    def __call__(self) -> bool:
        self.times += 1
        if self.error is not None:
            raise self.error
        return next(self.answers, False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "TICK_SECONDS": 0.02,
        "COLLECT_SECONDS": 0.02,
        "FIRST_STORE_WAIT_SECONDS": 0.01,
        "LONGEST_STORE_WAIT_SECONDS": 0.05,
    }.items():
        monkeypatch.setattr(drainer, name, seconds)
    monkeypatch.setattr(drainer, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(drainer, "PUT_ASIDE_AGAIN_SECONDS", 0.05)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that arrive make one batch, however long the second takes."""
    monkeypatch.setattr(drainer, "BATCH_MESSAGES", 2)
    monkeypatch.setattr(drainer, "COLLECT_SECONDS", 60.0)


@contextmanager
def draining(chores: Sequence[Chore] = (), **told: Any) -> Iterator[Stage]:
    stage = Stage(chores)
    for name, value in told.items():
        setattr(stage.shelf, name, value)
    stage.drainer.start()
    try:
        yield stage
    finally:
        if stage.shelf.gate is not None:
            stage.shelf.gate.set()
        assert stage.drainer.stop(timeout=10)


def test_no_parked_message_is_acknowledged_before_it_is_stored() -> None:
    gate = threading.Event()
    with draining(gate=gate) as stage:
        stage.tap.bring(b"1")
        wait_until(lambda: stage.shelf.batches)

        assert stage.settled() == []
        gate.set()
        wait_until(lambda: stage.settled() == [b"1"])


def test_a_batch_is_not_larger_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drainer, "BATCH_MESSAGES", 3)
    gate = threading.Event()
    with draining(gate=gate) as stage:
        stage.tap.bring(b"0")
        wait_until(lambda: stage.shelf.batches)
        stage.tap.bring(*(b"%d" % n for n in range(1, 8)))
        gate.set()
        wait_until(lambda: len(stage.settled()) == 8)

        assert [len(batch) for batch in stage.shelf.batches] == [1, 3, 3, 1]


def test_a_batch_has_at_most_the_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drainer, "BATCH_BYTES", 10)
    gate = threading.Event()
    with draining(gate=gate) as stage:
        stage.tap.bring(b"0")
        wait_until(lambda: stage.shelf.batches)
        stage.tap.bring(b"x" * 6, b"x" * 6, b"x" * 6)
        gate.set()
        wait_until(lambda: len(stage.settled()) == 4)

        assert [len(batch) for batch in stage.shelf.batches] == [1, 2, 1]


class TestDatabaseAway:
    def test_no_message_is_taken_while_the_database_is_not_ready(self, caplog: pytest.LogCaptureFixture) -> None:
        with draining(why="Run `manage.py migrate`.") as stage:
            wait_until(lambda: caplog.text.count("Parked messages stay in their queues: Run `manage.py migrate`.") >= 2)

            assert stage.taps == []
            stage.shelf.why = ""
            stage.tap.bring(b"1")
            wait_until(lambda: stage.settled() == [b"1"])

    @pytest.mark.usefixtures("pairs")
    def test_a_batch_stays_unacked_until_the_database_is_back(self, caplog: pytest.LogCaptureFixture) -> None:
        with draining() as stage:
            tap = stage.tap
            stage.shelf.why = AWAY
            tap.bring(b"1", b"2")
            wait_until(lambda: caplog.text.count("2 parked messages stay unacked") >= 2)

            assert (stage.settled(), tap.returned, AWAY in caplog.text) == ([], [], True)
            stage.shelf.why = ""
            wait_until(lambda: stage.settled() == [b"1", b"2"])
            assert len(stage.taps) == 1

    def test_a_batch_stored_after_an_outage_counts_as_redelivered(self) -> None:
        with draining() as stage:
            tap = stage.tap
            stage.shelf.why = AWAY
            tap.bring(b"1")
            wait_until(lambda: len(stage.shelf.batches) >= 2)
            stage.shelf.why = ""
            wait_until(lambda: stage.settled() == [b"1"])

            assert (stage.shelf.again[0], set(stage.shelf.again[1:])) == (False, {True})

    @pytest.mark.usefixtures("pairs")
    def test_the_stored_part_of_a_batch_is_acknowledged_and_not_stored_again(self) -> None:
        with draining(partly=1) as stage:
            tap = stage.tap
            stage.shelf.why = AWAY
            tap.bring(b"1", b"2")
            wait_until(lambda: stage.settled() == [b"1"])
            stage.shelf.why = ""
            wait_until(lambda: stage.settled() == [b"1", b"2"])

            assert sorted(stage.shelf.stored) == [b"1", b"2"]

    def test_after_a_long_outage_messages_are_requeued_and_taken_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(drainer, "GIVE_UP_SECONDS", 0.03)
        with draining() as stage:
            first = stage.tap
            stage.shelf.why = AWAY
            first.bring(b"1")
            wait_until(lambda: first.words == ["stop"])

            assert "Parked messages return to their queues" in caplog.text
            stage.shelf.why = ""
            wait_until(lambda: len(stage.taps) == 2 and stage.taps[1].receiver)
            stage.tap.bring(b"1")
            wait_until(lambda: stage.settled() == [b"1"])

    def test_a_connection_lost_during_an_outage_drops_the_batch(self) -> None:
        with draining() as stage:
            tap = stage.tap
            stage.shelf.why = AWAY
            tap.bring(b"1")
            wait_until(lambda: stage.shelf.batches)
            tap.receiver.lost("gone", 0.1)
            stage.shelf.why = ""
            tap.bring(b"2")
            wait_until(lambda: stage.settled() == [b"2"])

            assert stage.shelf.stored == [b"2"]


class TestProblems:
    def test_an_unstorable_message_is_put_aside_and_acknowledged(self) -> None:
        with draining(problems={b"2": "too large"}) as stage:
            stage.tap.bring(b"1", b"2", b"3")
            wait_until(lambda: len(stage.settled()) == 3)

            assert (stage.set_aside, stage.shelf.stored) == ([(b"2", "too large")], [b"1", b"3"])

    def test_a_message_that_cannot_be_put_aside_stays_unacked(self, caplog: pytest.LogCaptureFixture) -> None:
        with draining(problems={b"2": "too large"}) as stage:
            stage.no_aside = ValueError("no such queue")
            stage.tap.bring(b"1", b"2", b"3")
            wait_until(lambda: stage.settled() == [b"1", b"3"])
            stage.tap.bring(b"4")
            wait_until(lambda: stage.settled() == [b"1", b"3", b"4"])

            assert (
                "stays unacked, because it can be neither stored (too large) nor put aside (no such queue)"
                in caplog.text
            )
            stage.no_aside = None
            wait_until(lambda: stage.settled() == [b"1", b"3", b"4", b"2"])

    def test_a_second_unstorable_message_is_not_put_aside_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drainer, "PUT_ASIDE_AGAIN_SECONDS", 600)
        with draining(problems={b"1": "a", b"2": "b"}) as stage:
            stage.no_aside = ValueError("no such queue")
            stage.tap.bring(b"1", b"2", b"3")
            wait_until(lambda: stage.settled() == [b"3"])

            assert stage.aside_tries == 1

    @pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3), MemoryError()])
    def test_an_unexpected_error_is_logged_and_the_drainer_continues(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        with draining(error=error) as stage:
            first = stage.tap
            first.bring(b"1")
            wait_until(lambda: len(stage.taps) == 2)

            assert ("The drainer failed" in caplog.text, first.words) == (True, ["stop"])
            stage.tap.bring(b"1")
            wait_until(lambda: stage.settled() == [b"1"])

    def test_a_refusing_broker_is_logged_by_the_drainer(self, caplog: pytest.LogCaptureFixture) -> None:
        with draining() as stage:
            stage.tap.receiver.failed(BrokerRefused("amqp://here", "it refused the user name or password"))
            stage.tap.receiver.connected(Server())

            assert "The drainer cannot consume parked messages: " in caplog.text


class TestStopping:
    def test_a_stop_acknowledges_the_batch_being_stored(self) -> None:
        gate = threading.Event()
        stage = Stage()
        stage.shelf.gate = gate
        stage.drainer.start()
        stage.tap.bring(b"1")
        wait_until(lambda: stage.shelf.batches)

        assert stage.drainer.stop(timeout=0.01) is False
        gate.set()
        assert stage.drainer.stop(timeout=10) is True
        assert (stage.settled(), stage.tap.words, stage.shelf.closed) == ([b"1"], ["stop"], 1)

    def test_a_stop_during_an_outage_requeues_the_batch(self) -> None:
        with draining() as stage:
            tap = stage.tap
            stage.shelf.why = AWAY
            tap.bring(b"1")
            wait_until(lambda: len(stage.shelf.batches) >= 2)

        assert (stage.settled(), stage.tap.words) == ([], ["stop"])

    def test_unconfirmed_last_acks_are_logged_by_the_drainer(self, caplog: pytest.LogCaptureFixture) -> None:
        with draining() as stage:
            stage.tap.receives_last_acks = False

        assert "The connection of the drainer did not close in time" in caplog.text


class TestEmpty:
    def reports_empty(self, stage: Stage) -> bool:
        answers: list[bool] = []
        stage.drainer.report_emptiness(answers.append)
        return wait_until(lambda: answers)[0]

    @pytest.mark.parametrize("empty", [True, False])
    def test_the_drainer_is_empty_when_its_queues_are(self, empty: bool) -> None:
        with draining() as stage:
            stage.tap.is_empty = empty

            assert self.reports_empty(stage) is empty

    def test_the_drainer_counts_as_empty_during_an_outage(self) -> None:
        with draining(why=AWAY) as stage:
            wait_until(lambda: self.reports_empty(stage))

    def test_the_drainer_counts_as_empty_with_unstorable_messages_only(self) -> None:
        with draining(problems={b"1": "too large"}) as stage:
            stage.no_aside = ValueError("no")
            stage.tap.bring(b"1")

            wait_until(lambda: self.reports_empty(stage))

    def test_the_drainer_is_not_empty_before_its_first_look(self) -> None:
        gate = threading.Event()
        stage = Stage()
        stage.shelf.outage = lambda: "" if gate.wait(10) else "no"  # type: ignore[method-assign]
        stage.drainer.start()

        assert self.reports_empty(stage) is False
        gate.set()
        assert stage.drainer.stop(timeout=10)


class TestChores:
    def test_chores_run_when_due_with_database_connections_managed(self) -> None:
        often, rarely = Doing(), Doing()
        chores = [Chore(name="often", every=0.01, run=often), Chore(name="rarely", every=600, run=rarely)]
        with draining(chores) as stage:
            wait_until(lambda: often.times >= 3)

            assert (rarely.times, stage.entered >= 4) == (1, True)

    def test_an_unfinished_chore_runs_again_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drainer, "MORE_WORK_SECONDS", 0.01)
        doing = Doing(True, True, False)
        chore = Chore(name="long", every=600, run=doing)
        with draining([chore]):
            wait_until(lambda: doing.times == 3)

        assert chore.due > 500

    def test_a_failing_chore_is_logged_once_and_runs_again(self, caplog: pytest.LogCaptureFixture) -> None:
        doing = Doing(error=ValueError("no"))
        caplog.set_level(logging.ERROR)
        with draining([Chore(name="Retention", every=0.01, run=doing)]):
            wait_until(lambda: doing.times >= 3)

        assert caplog.text.count("Retention failed") == 1
