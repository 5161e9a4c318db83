"""After a wait, a handler receives the original exchange and key, which a sender cannot forge."""

from django_rmq_retry import Delivery
from django_rmq_retry.handlers import Match
from django_rmq_retry.handlers.handler import destination_of
from django_rmq_retry.policies import retry
from django_rmq_retry.publishing.options import PublishOptions
from django_rmq_retry.publishing.publish import message_of
from tests.consumer.attempts import Bench
from tests.handlers.factories import delivery, settled

CARD = Match(routing_key="pay.card")


def arrived(queue: str, raw: bytes, *, exchange: str, routing_key: str) -> Delivery:
    return Delivery(queue=queue, body=b"{}", raw=raw, exchange=exchange, routing_key=routing_key)


def test_a_retried_message_is_dispatched_by_its_first_routing_key() -> None:
    seen: list[tuple[str, str]] = []
    bench = Bench(match=CARD, act=lambda message: seen.append((message.exchange, message.routing_key)))
    first = delivery(exchange="bank", routing_key="pay.card")
    copy = settled(retry(10), first, bench.work_queues()[0].subscriptions[0], now=0).copy
    assert copy is not None
    again = delivery(headers=dict(copy.headers), exchange="", routing_key="payments")
    bench.settle(again)

    assert seen == [("bank", "pay.card")]


def test_a_delayed_message_is_dispatched_by_its_routing_key() -> None:
    seen: list[str] = []
    bench = Bench(match=CARD, act=lambda message: seen.append(message.routing_key))
    subscription = bench.work_queues()[0].subscriptions[0]
    message = message_of(
        {},
        exchange="bank",
        routing_key="pay.card",
        options=PublishOptions(delay=10),
        destination=destination_of(subscription),
    )
    bench.settle(delivery(headers=dict(message.headers), exchange="", routing_key="payments"))

    assert seen == ["pay.card"]


def test_a_sender_cannot_choose_another_handler_by_forged_headers() -> None:
    bench = Bench(match=CARD)
    forged = {"rmq-retry-queue": "payments", "rmq-retry-exchange": "bank", "rmq-retry-routing-key": "pay.card"}
    bench.settle(delivery(headers=forged, exchange="bank", routing_key="pay.cash"))

    assert bench.log == ["enter", "leave"]
    assert [note.verdict.detail for note in bench.book.notes] == [
        "No handler of queue 'payments' takes a message with the routing key 'pay.cash'."
    ]
