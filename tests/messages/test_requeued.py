"""The requeued copy: the message as it first came, to one queue, with a ticket, and without what failed before."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import Fixed, Message, RetryThenPark
from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.messages.stamp import stamp_of
from django_rmq_retry.policies import retry
from tests.handlers.factories import arrived, delivery, settled, subscription
from tests.messages.parked_copies import requeued_copy

TICKET = "7.2:signature"
OWN = {"rmq-retry-exchange": "main", "rmq-retry-routing-key": "pay.cash", "rmq-retry-queue": "payments"}
FOREIGN = (
    b"\x01d" + b"d@\x0e\x00\x00\x00\x00\x00\x00" + b"\x01d" + b"I\x00\x00\x00\x01" + b"\x04when" + b"T" + b"\xff" * 8
)
"""A double, which pika would cut; the same name twice; a time that Python cannot represent."""


def copy(properties: Properties, body: bytes = b"{}") -> Message:
    raw = encode_properties(properties)
    return requeued_copy(body=body, raw=raw, exchange="main", routing_key="pay.cash", ticket=TICKET)


def test_a_requeued_copy_goes_to_one_queue_and_keeps_its_origin() -> None:
    made = copy(Properties(message_id="m"))

    assert (made.exchange, made.routing_key, made.mandatory) == ("", "payments", True)
    assert dict(made.headers) == {**OWN, "rmq-retry-ticket": TICKET}


@given(body=st.binary(max_size=300))
def test_the_body_and_foreign_headers_keep_their_bytes(body: bytes) -> None:
    made = copy(Properties(headers=Headers(FOREIGN)), body)

    assert made.body == body
    assert made.headers.raw.startswith(FOREIGN)


def test_a_requeued_copy_keeps_the_senders_properties() -> None:
    sent = Properties(
        content_type="a/b", content_encoding="gzip", delivery_mode=1, priority=4, correlation_id="c", reply_to="back",
        expiration="500", message_id="m", timestamp=5, type="payment", user_id="guest", app_id="shop", cluster_id="x",
    )  # fmt: skip
    made = copy(sent)

    kept = replace(sent, delivery_mode=2, expiration=None, user_id=None, headers=made.headers)
    assert made.properties == kept


def test_a_requeued_copy_drops_failures_broker_headers_and_old_ticket() -> None:
    failed = {"rmq-retry-attempts": 5, "rmq-retry-since": 9, "rmq-retry-wait": 50, "rmq-retry-summary": "#1 BankDown",
              "rmq-retry-reason": "retries_exhausted", "rmq-retry-fingerprint": "f", "rmq-retry-ticket": "7.1:old",
              "x-death": [], "x-delivery-count": 3, "CC": ["others"], "tenant": "acme"}  # fmt: skip
    made = copy(Properties(headers=Headers.of(failed)))

    assert dict(made.headers) == {"tenant": "acme", **OWN, "rmq-retry-ticket": TICKET}


def test_a_requeued_copy_restarts_attempts_and_retries_keep_the_ticket() -> None:
    one = arrived(copy(Properties(headers=Headers.of({"rmq-retry-attempts": 5}))), queue="payments")
    assert stamp_of(one).attempts == 0
    again = settled(retry(30), one, subscription(RetryThenPark(backoff=Fixed(30)))).copy

    assert again is not None
    assert (again.headers["rmq-retry-attempts"], again.headers["rmq-retry-ticket"]) == (1, TICKET)
    assert again.headers["rmq-retry-routing-key"] == "pay.cash"


def test_undecodable_properties_are_requeued_with_id_and_ticket() -> None:
    made = requeued_copy(body=b"\0", raw=b"\xff\xff\xff", message_id="m", ticket=TICKET)

    assert (made.body, made.properties.message_id, made.headers["rmq-retry-ticket"]) == (b"\0", "m", TICKET)


def test_a_bare_reply_address_moves_to_a_header_on_requeue() -> None:
    bare = copy(Properties(reply_to="amq.rabbitmq.reply-to"))

    assert (bare.properties.reply_to, bare.headers["rmq-retry-reply-to"]) == (None, "amq.rabbitmq.reply-to")
    assert copy(Properties(reply_to="amq.rabbitmq.reply-to.g1.x")).properties.reply_to == "amq.rabbitmq.reply-to.g1.x"


def test_a_delivery_without_headers_can_be_requeued() -> None:
    one = delivery()

    assert requeued_copy(body=one.body, raw=one.raw, ticket=TICKET).headers["rmq-retry-ticket"] == TICKET
