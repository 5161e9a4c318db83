"""Handlers with ``order_by`` in the test kit, on its virtual clock."""

import pytest

from django_rmq_retry import Delivery, Discard, Exchange, Message, Queue, Republish, RetryThenPark, handler
from django_rmq_retry.models import BlockedKey
from django_rmq_retry.ordering.keys import unblock
from django_rmq_retry.testing import RmqTest
from tests.ordering.bank import QUEUE, Bank, BankDown, blocked, waiting
from tests.tooling.brokers import publish_exactly

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


def test_messages_behind_a_retry_of_their_key_wait_and_other_keys_flow(bank: Bank, rmq: RmqTest) -> None:
    bank.down[1] = 1
    bank.publish(1, 2, 3)
    bank.publish(4, account="B")
    rmq.advance(5)

    assert (bank.began, blocked(), waiting()) == ([1, 4], {"A": ("m1", False, 2)}, ["m2", "m3"])

    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([4, 1, 2, 3], {}, [])
    assert rmq.waits == [10]


def test_messages_behind_a_parked_message_of_their_key_wait(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1, 2, 3)
    bank.publish(4, account="B")
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([4], {"A": ("m1", True, 2)}, ["m2", "m3"])
    assert rmq.parked(bank.post).message.id == "m1"


def test_a_resolved_key_resumes_in_order_and_stops_at_the_next_failure(bank: Bank, rmq: RmqTest) -> None:
    bank.closed |= {1, 3}
    bank.publish(1, 2, 3, 4)
    rmq.drain()
    unblock(BlockedKey.objects.get())
    rmq.drain()

    assert (bank.began, bank.posted, blocked()) == ([1, 2, 3], [2], {"A": ("m3", True, 1)})

    unblock(BlockedKey.objects.get())
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([2, 4], {}, [])


def test_a_message_that_waited_keeps_its_own_attempts_and_place(bank: Bank, rmq: RmqTest) -> None:
    bank.down |= {1: 1, 2: 2}
    bank.publish(1, 2, 3)
    rmq.drain()

    assert bank.posted == [1, 2, 3]
    assert [(one.number, one.verdict.kind.value) for one in rmq.attempts()] == [
        *((1, "retry"), (2, "ack")),
        *((1, "retry"), (2, "retry"), (3, "ack"), (1, "ack")),
    ]


def test_a_message_discarded_by_its_handler_unblocks_its_key(bank: Bank, rmq: RmqTest) -> None:
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


def test_an_unreadable_body_is_parked_and_blocks_no_message(bank: Bank, rmq: RmqTest) -> None:
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


def test_another_message_with_the_same_id_waits_too(bank: Bank, rmq: RmqTest) -> None:
    bank.closed.add(1)
    bank.publish(1, 2)
    bank.post.publish({"account": "A", "number": 3}, message_id="m2")
    rmq.drain()

    assert waiting() == ["m2", "m2"]


def test_a_message_with_the_id_of_the_failed_one_does_not_overtake_it(bank: Bank, rmq: RmqTest) -> None:
    bank.down[1] = 2
    for number in (1, 2, 3):
        bank.post.publish({"account": "A", "number": number}, message_id="order 7")
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([1, 2, 3], {}, [])


def test_two_equal_messages_without_an_id_both_wait(bank: Bank, rmq: RmqTest) -> None:
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


def test_two_handlers_of_one_queue_have_separate_keys(rmq: RmqTest) -> None:
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


def test_a_message_routed_by_its_routing_key_finds_its_handler_after_waiting(rmq: RmqTest) -> None:
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
def test_a_key_resumes_in_order_after_any_fault_that_follows_its_handler(bank: Bank, rmq: RmqTest, fault: str) -> None:
    bank.down[1] = 1
    bank.publish(1, 2, 3)
    rmq.advance(5)
    rmq.fail_next(bank.post, fault)
    rmq.drain()

    first = {number: bank.posted.index(number) for number in (1, 2, 3)}
    assert sorted(first, key=lambda number: first[number]) == [1, 2, 3]
    assert (blocked(), waiting()) == ({}, [])


def test_unacked_messages_of_a_lost_channel_do_not_overtake_its_failure(bank: Bank, rmq: RmqTest) -> None:
    bank.down[2] = 1
    bank.publish(1, 2, 3)
    rmq.fail_next(bank.post, "duplicate delivery")
    rmq.drain()

    assert bank.began == [1, 1, 2, 2, 3]
    assert blocked() == {}


def test_a_retry_that_waits_unacked_keeps_the_order(rmq: RmqTest) -> None:
    made = Bank(policy=RetryThenPark(attempts=3, via=Republish()), name="republished")
    made.down[1] = 2
    made.publish(1, 2, 3)
    rmq.drain()

    assert made.posted == [1, 2, 3]


def test_with_once_a_duplicate_is_skipped_and_its_key_resumes(rmq: RmqTest) -> None:
    made = Bank(once=True, name="once")
    made.down[1] = 1
    made.publish(1, 2)
    rmq.advance(5)
    rmq.fail_next(made.post, "crash before ack")
    rmq.drain()

    assert (made.posted, blocked(), waiting()) == ([1, 2], {}, [])


def test_a_message_whose_key_changed_unblocks_its_old_key(rmq: RmqTest) -> None:
    renamed: dict[str, str] = {}
    bank = Bank(order_by=lambda message: renamed.get(message.data["account"], message.data["account"]))
    bank.down |= {1: 1, 2: 1}
    bank.publish(1, 2, 3)
    rmq.advance(5)
    renamed["A"] = "a"
    rmq.drain()

    assert (bank.posted, blocked(), waiting()) == ([1, 2, 3], {}, [])
