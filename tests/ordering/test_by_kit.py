"""Handlers with ``order_by`` in the test kit, on its virtual clock."""

import pytest

from django_rmq_retry import Delivery, Discard, Exchange, Message, Queue, Republish, RetryThenPark, handler
from django_rmq_retry.models import BlockedKey
from django_rmq_retry.ordering.keys import unblock
from django_rmq_retry.testing import RmqTest
from tests.ordering.bank import QUEUE, Bank, BankDown, blocked, waiting
from tests.tooling.brokers import publish_exactly

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


def test_while_one_waits_for_its_retry_those_of_its_key_wait_and_others_flow(bank: Bank, rmq: RmqTest) -> None:
    bank.down[1] = 1
    bank.publish(1, 2, 3)
    bank.publish(4, account="B")
    rmq.advance(5)

    assert (bank.began, blocked(), waiting()) == ([1, 4], {"A": ("m1", False, 2)}, ["m2", "m3"])

    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([4, 1, 2, 3], {}, [])
    assert rmq.waits == [10]


def test_behind_one_that_is_parked_its_key_waits(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1, 2, 3)
    bank.publish(4, account="B")
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([4], {"A": ("m1", True, 2)}, ["m2", "m3"])
    assert rmq.parked(bank.post).message.id == "m1"


def test_when_it_is_resolved_the_rest_continues_in_order_and_stops_at_the_next_failure(
    bank: Bank, rmq: RmqTest
) -> None:
    bank.closed |= {1, 3}
    bank.publish(1, 2, 3, 4)
    rmq.drain()
    unblock(BlockedKey.objects.get())
    rmq.drain()

    assert (bank.began, bank.posted, blocked()) == ([1, 2, 3], [2], {"A": ("m3", True, 1)})

    unblock(BlockedKey.objects.get())
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([2, 4], {}, [])


def test_what_fails_after_it_waited_keeps_its_own_count_and_place(bank: Bank, rmq: RmqTest) -> None:
    bank.down |= {1: 1, 2: 2}
    bank.publish(1, 2, 3)
    rmq.drain()

    assert bank.posted == [1, 2, 3]
    assert [(one.number, one.verdict.kind.value) for one in rmq.attempts()] == [
        *((1, "retry"), (2, "ack")),
        *((1, "retry"), (2, "retry"), (3, "ack"), (1, "ack")),
    ]


def test_what_its_handler_discards_lets_the_rest_continue(bank: Bank, rmq: RmqTest) -> None:
    rmq.fail_next(bank.post, BankDown("now"))
    rmq.fail_next(bank.post, Discard("booked elsewhere"))
    bank.publish(1, 2)
    rmq.drain()

    assert (bank.posted, blocked()) == ([2], {})


@pytest.mark.parametrize("found", [None, "", 1.5])
def test_a_message_without_a_key_is_parked_and_blocks_no_message(rmq: RmqTest, found: object) -> None:
    made = Bank(order_by=lambda message: found if message.data["number"] == 1 else "A", name=f"keyless{found}")
    made.publish(1, 2)
    rmq.drain()

    assert made.posted == [2]
    assert rmq.parked(made.post).reason.startswith("Its ordering key cannot be computed: order_by returned")
    assert blocked() == {}


def test_a_body_that_nobody_reads_is_parked_and_blocks_no_message(bank: Bank, rmq: RmqTest) -> None:
    publish_exactly(Message(body=b"{", routing_key=QUEUE))
    bank.publish(2)
    rmq.drain()

    assert (bank.posted, blocked()) == ([2], {})


def test_a_message_delivered_twice_waits_once(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1, 2)
    rmq.drain()
    bank.publish(2)
    rmq.drain()

    assert (waiting(), blocked()) == (["m2"], {"A": ("m1", True, 1)})


def test_another_message_under_the_same_id_is_held_too(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1, 2)
    bank.post.publish({"account": "A", "number": 3}, message_id="m2")
    rmq.drain()

    assert waiting() == ["m2", "m2"]


def test_another_message_under_the_id_of_the_one_that_failed_does_not_pass_it(bank: Bank, rmq: RmqTest) -> None:
    bank.down[1] = 2
    for number in (1, 2, 3):
        bank.post.publish({"account": "A", "number": number}, message_id="order 7")
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([1, 2, 3], {}, [])


def test_two_without_an_id_and_with_the_same_bytes_both_wait(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1)
    for _ in range(2):
        publish_exactly(Message(body=b'{"account": "A", "number": 2}', routing_key=QUEUE))
    rmq.drain()

    assert len(waiting()) == 2

    unblock(BlockedKey.objects.get())
    rmq.drain()

    assert (bank.posted, blocked()) == ([2, 2], {})


def test_a_redelivered_message_without_an_id_waits_beside_equal_ones(bank: Bank, rmq: RmqTest) -> None:
    body = b'{"account": "A", "number": 2}'
    bank.closed.add(1)
    bank.publish(1)
    rmq.drain()
    publish_exactly(Message(body=body, routing_key=QUEUE))
    rmq.drain()
    bank.publish(3, account="B")
    for _ in range(2):
        publish_exactly(Message(body=body, routing_key=QUEUE))
    rmq.fail_next(bank.post, "crash before ack")
    rmq.drain()

    assert (len(waiting()), blocked()) == (3, {"A": ("m1", True, 3)})


def test_keys_of_two_handlers_of_one_queue_are_their_own(rmq: RmqTest) -> None:
    posted: list[str] = []

    def order_by(message: Delivery) -> object:
        return message.data["account"]

    @handler(QUEUE, type="debit", order_by=order_by, name="debit", policy=RetryThenPark(attempts=1))
    def debit(_message: Delivery) -> None:
        raise BankDown

    @handler(QUEUE, type="credit", order_by=order_by, name="credit", policy=RetryThenPark(attempts=1))
    def credit(message: Delivery) -> None:
        posted.append(message.data["account"])

    @handler(QUEUE, name="rest", policy=RetryThenPark(attempts=1))
    def rest(_message: Delivery) -> None:
        posted.append("rest")

    debit.publish({"account": "A"}, type="debit")
    debit.publish({"account": "A"}, type="debit")
    credit.publish({"account": "A"}, type="credit")
    rest.publish({"account": "A"})
    rmq.drain()

    assert posted == ["A", "rest"]
    assert [(row.handler, row.key, row.waiting) for row in BlockedKey.objects.all()] == [("debit", "A", 1)]


def test_a_message_that_came_by_a_routing_key_finds_its_handler_after_it_waited(rmq: RmqTest) -> None:
    bank = Exchange("bank", "topic")
    seen: list[tuple[str, str]] = []

    @handler(
        Queue(QUEUE, bindings=[bank.bind("post.#")]),
        routing_key="post.debit",
        order_by=lambda message: message.data,
        name="debit",
        policy=RetryThenPark(attempts=2),
    )
    def debit(message: Delivery) -> None:
        if not seen:
            seen.append(("failed", message.routing_key))
            raise BankDown
        seen.append((message.exchange, message.routing_key))

    for _ in range(2):
        debit.publish("A", exchange="bank", routing_key="post.debit")
    rmq.drain()

    assert seen == [("failed", "post.debit"), ("bank", "post.debit"), ("bank", "post.debit")]


@pytest.mark.parametrize("fault", ["crash before ack", "duplicate delivery", "broker loss"])
def test_whatever_breaks_after_a_handler_its_key_continues_in_order(bank: Bank, rmq: RmqTest, fault: str) -> None:
    bank.down[1] = 1
    bank.publish(1, 2, 3)
    rmq.advance(5)
    rmq.fail_next(bank.post, fault)
    rmq.drain()

    first = {number: bank.posted.index(number) for number in (1, 2, 3)}
    assert sorted(first, key=lambda number: first[number]) == [1, 2, 3]
    assert (blocked(), waiting()) == ({}, [])


def test_what_is_unacked_of_a_lost_channel_does_not_pass_what_failed_on_it(bank: Bank, rmq: RmqTest) -> None:
    bank.down[2] = 1
    bank.publish(1, 2, 3)
    rmq.fail_next(bank.post, "duplicate delivery")
    rmq.drain()

    assert bank.began == [1, 1, 2, 2, 3]
    assert blocked() == {}


def test_a_retry_that_waits_unacked_keeps_the_order_too(rmq: RmqTest) -> None:
    made = Bank(policy=RetryThenPark(attempts=3, via=Republish()), name="republished")
    made.down[1] = 2
    made.publish(1, 2, 3)
    rmq.drain()

    assert made.posted == [1, 2, 3]


def test_with_once_a_duplicate_does_not_run_and_its_key_continues(rmq: RmqTest) -> None:
    made = Bank(once=True, name="once")
    made.down[1] = 1
    made.publish(1, 2)
    rmq.advance(5)
    rmq.fail_next(made.post, "crash before ack")
    rmq.drain()

    assert (made.posted, blocked(), waiting()) == ([1, 2], {}, [])


def test_a_test_that_asks_sees_what_waits(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1, 2)
    rmq.drain()

    row = BlockedKey.objects.get()
    assert (str(row), row.queue, row.handler) == ("post A", QUEUE, "post")


def test_whose_key_has_changed_meanwhile_lets_those_go_on_that_wait_under_the_old_one(rmq: RmqTest) -> None:
    renamed: dict[str, str] = {}
    bank = Bank(order_by=lambda message: renamed.get(message.data["account"], message.data["account"]))
    bank.down |= {1: 1, 2: 1}
    bank.publish(1, 2, 3)
    rmq.advance(5)
    renamed["A"] = "a"
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([1, 2, 3], {}, [])
