"""Exceeded limits, or no database: messages stay unacked in their order, and no handler runs twice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_rmq_retry import Delivery, Message
from django_rmq_retry.consumer.assembly import _away
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.messages import Headers, Properties, Settlement
from django_rmq_retry.models import BlockedKey
from django_rmq_retry.ordering import gate, keys
from django_rmq_retry.ordering.keys import unblock
from django_rmq_retry.policies import Verdict
from django_rmq_retry.testing import RmqTest
from tests.handlers.factories import delivery
from tests.inbox.vendors import POSTGRESQL, SQLITE, end_own, not_on
from tests.ordering.bank import QUEUE, Bank, blocked, waiting
from tests.tooling.brokers import publish_exactly

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("limit", ["BLOCKED_PER_KEY", "BLOCKED_TOTAL"])
def test_above_the_limit_messages_slow_down_and_keep_their_order(
    bank: Bank, settings: Any, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    settings.RMQ_RETRY = {"URL": "embedded://", limit: 2}
    with RmqTest() as rmq:
        bank.closed.add(1)
        bank.publish(1, 2, 3, 4, 5)
        bank.publish(6, account="B")
        rmq.advance(0.5)
        at_first = (list(bank.posted), waiting())
        rmq.advance(1)
        then = waiting()
        rmq.advance(30)

        assert (at_first, then) == (([6], ["m2", "m3"]), ["m2", "m3", "m4"])
        assert (waiting(), bank.posted) == (["m2", "m3", "m4", "m5"], [6])
        assert [record.levelname for record in caplog.records if "Too many" in record.getMessage()] == ["CRITICAL"]

        unblock(BlockedKey.objects.get())
        rmq.drain()

        assert (bank.posted, blocked(), waiting()) == ([6, 2, 3, 4, 5], {}, [])
        assert {one.number for one in rmq.attempts()} == {1}


class Away:
    """A step that fails for a number of times because of the database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.times = times
        self.step: Callable[..., Any] = getattr(gate, name)
        monkeypatch.setattr(gate, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise OperationalError("the server closed the connection unexpectedly")
        return self.step(*args, **options)


class Patient:
    """Act like a consumer if an attempt itself fails: the message stays unacked, unless it is the cause."""

    def __init__(self, rmq: RmqTest) -> None:
        self.rmq = rmq

    def drain(self) -> None:
        self.take_on()
        self.rmq.drain()

    def advance(self, seconds: float) -> None:
        self.take_on()
        self.rmq.advance(seconds)

    def take_on(self) -> None:
        pipeline = self.rmq._driver._pipeline
        assert pipeline is not None
        pipeline._surroundings = replace(pipeline._surroundings, away=_away)
        attempt = pipeline.attempt

        def settled(arrival: Delivery, begin: Any = None) -> Settlement:
            try:
                return attempt(arrival, begin)
            except (OperationalError, gate.NotStored, Unready) as error:
                return pipeline.after_outside_failure(arrival, error)

        pipeline.attempt = settled  # type: ignore[method-assign]


def test_a_waiting_message_that_cannot_return_to_its_queue_is_parked(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1)
    much = Properties(message_id="m2", headers=Headers.of({"much": "x" * 131_000}))
    publish_exactly(Message(body=b'{"account": "A", "number": 2}', properties=much, routing_key=QUEUE))
    bank.publish(3)
    rmq.drain()

    assert waiting() == ["m3"]
    assert [one.reason[:37] for one in rmq.all_parked(bank.post)][1:] == ["The message cannot wait behind a fail"]


@pytest.mark.parametrize("over", [1 << 20, 8 << 20], ids=["refused", "hung up on"])
def test_a_message_that_loses_the_connection_each_time_is_parked(bank: Bank, rmq: RmqTest, over: int) -> None:
    not_on(SQLITE)
    not_on(POSTGRESQL)
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        # Each is two bytes of the statement, because the embedded broker accepts no body that large.
        quotes = "'" * ((cursor.fetchone()[0] + over) // 2)
    bank.closed.add(1)
    bank.publish(1)
    bank.post.publish({"account": "A", "number": 2, "pad": quotes}, message_id="m2")
    bank.publish(3)
    bank.publish(4, account="B")
    Patient(rmq).advance(60)

    assert (bank.posted, blocked(), waiting()) == ([4], {"A": ("m1", True, 1)}, ["m3"])
    assert [one.message.id for one in rmq.all_parked(bank.post)] == ["m1", "m2"]
    parked = rmq.all_parked(bank.post)[1]
    assert f"its {len(parked.message.body)} bytes broke the connection to database 'default'" in parked.reason


@pytest.mark.parametrize("until", [1, 2], ids=["as its transaction is left", "as it is asked"])
def test_a_database_unavailable_after_each_loss_parks_no_message(
    bank: Bank, rmq: RmqTest, monkeypatch: pytest.MonkeyPatch, until: int
) -> None:
    not_on(SQLITE)
    connect = connections["default"].get_new_connection
    losses = iter(range(5))
    coming: list[int] = []

    def loses(*args: Any, **options: Any) -> None:
        if next(losses, None) is not None:
            coming[:] = range(until)
            end_own(delivery())
        keys.add_waiting(*args, **options)

    def away_once(params: Any) -> Any:
        if coming and not coming.pop():
            raise OperationalError("the database does not answer")
        return connect(params)

    monkeypatch.setattr(gate, "add_waiting", loses)
    monkeypatch.setattr(connections["default"], "get_new_connection", away_once)
    bank.closed.add(1)
    bank.publish(1, 2)
    bank.publish(4, account="B")
    Patient(rmq).advance(60)

    assert (next(losses, None), coming) == (None, [])
    assert (bank.posted, blocked(), waiting()) == ([4], {"A": ("m1", True, 1)}, ["m2"])
    assert [one.message.id for one in rmq.all_parked(bank.post)] == ["m1"]


def test_a_lost_commit_answer_stores_a_message_without_an_id_once(
    bank: Bank, rmq: RmqTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_behind, losses = gate.OrderGate._wait_behind, iter(range(2))

    def lost(self: gate.OrderGate, delivery: Delivery, key: str) -> Settlement | Verdict | None:
        settlement = wait_behind(self, delivery, key)
        if next(losses, None) is not None:
            raise OperationalError("the server closed the connection unexpectedly")
        return settlement

    monkeypatch.setattr(gate.OrderGate, "_wait_behind", lost)
    bank.closed.add(1)
    bank.publish(1)
    for _ in range(2):
        publish_exactly(Message(body=b'{"account": "A", "number": 2}', routing_key=QUEUE))
    Patient(rmq).advance(60)

    assert next(losses, None) is None
    assert len(waiting()) == 2


@pytest.mark.parametrize(("step", "down"), [("block", 1), ("pass_on", 1), ("add_waiting", 1)])
def test_without_a_database_a_handled_message_stays_unacked_and_is_not_rerun(
    bank: Bank, rmq: RmqTest, monkeypatch: pytest.MonkeyPatch, step: str, down: int
) -> None:
    bank.down[1] = down
    Away(monkeypatch, step, times=3)
    bank.publish(1, 2, 3)
    bank.publish(4, account="B")
    Patient(rmq).drain()

    assert bank.posted == [4, 1, 2, 3] if step != "block" else bank.posted[-3:] == [1, 2, 3]
    assert sorted(bank.began) == [1, 1, 2, 3, 4]
    assert [one.number for one in rmq.attempts() if one.message.id == "m1"] == [1, 2]
    assert (blocked(), waiting()) == ({}, [])
