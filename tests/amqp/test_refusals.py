"""The meaning of the broker's refusals, word for word as RabbitMQ 3.10, 4.0 and 4.3 write them."""

import re

import pytest
from pika.exceptions import AMQPHeartbeatTimeout, IncompatibleProtocolError, StreamLostError

from django_rmq_retry.amqp import Refusal
from django_rmq_retry.amqp.refusals import Unequal, error_text

UNEQUAL = "PRECONDITION_FAILED - inequivalent arg '{}' for queue 'q' in vhost '/': "


@pytest.mark.parametrize(
    ("argument", "words", "value"),
    [
        ("x-message-ttl", "received '30000' but current is '60000'", 60000),
        ("x-message-ttl", "received none but current is the value '60000' of type 'signedint'", 60000),
        ("x-queue-type", "received 'classic' but current is 'quorum'", "quorum"),
        ("x-dead-letter-exchange", "received none but current is the value '' of type 'longstr'", ""),
        ("x-max-length", "received the value '5' of type 'signedint' but current is none", None),
        ("x-single-active-consumer", "received none but current is the value 'true' of type 'bool'", True),
        ("x-dead-letter-routing-key", "received 'but current is' but current is '12'", 12),
        ("x-dead-letter-routing-key", "received none but current is the value '12' of type 'longstr'", "12"),
        ("durable", "received 'false' but current is 'true'", True),
    ],
)
def test_a_refusal_gives_the_brokers_value_with_its_type(argument: str, words: str, value: object) -> None:
    refusal = Refusal(406, UNEQUAL.format(argument) + words)

    assert refusal.unequal == Unequal(argument=argument, value=value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StreamLostError("Stream connection lost: ConnectionResetError(104, 'Connection reset by peer')"), "closed"),
        (
            IncompatibleProtocolError("StreamLostError: ('lost: ConnectionResetError(104)',)"),
            "closed",
        ),
        (StreamLostError("Transport indicated EOF"), "closed"),
        (IncompatibleProtocolError("The server speaks 1.0"), "AMQP 0-9-1"),
        (AMQPHeartbeatTimeout("No activity or too many missed heartbeats in the last 60 seconds"), "heartbeat"),
    ],
)
def test_a_lost_connection_is_explained_without_names_of_python(error: Exception, words: str) -> None:
    assert words in error_text(error)
    assert not re.search(r"Error|[()']|pika|Timeout", error_text(error))


def test_a_truncated_refusal_gives_the_argument_only() -> None:
    refusal = Refusal(406, UNEQUAL.format("x-message-ttl") + "received 'aaaaaaaaaaaaaaaaaaaaaaaaa")

    assert refusal.unequal == Unequal(argument="x-message-ttl", reported=False)


@pytest.mark.parametrize(
    "text",
    [
        "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or inaccessible",
        "NOT_FOUND - failed to perform operation on queue 'q' in vhost '/' due to timeout",
    ],
)
def test_a_node_that_is_down_is_not_a_missing_queue(text: str) -> None:
    refusal = Refusal(404, text)

    assert (refusal.away, refusal.missing) == (True, False)
    assert refusal.sentence().startswith("The node that holds it is down or does not answer. Nothing was created")


def test_a_missing_queue_is_not_taken_for_an_unavailable_node() -> None:
    refusal = Refusal(404, "NOT_FOUND - no queue 'q' in vhost '/'")

    assert (refusal.away, refusal.missing) == (False, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'app'",
            "The user 'app' lacks the configure right on the queue 'q'. Grant it with `rabbitmqctl set_permissions`.",
        ),
        (
            "ACCESS_REFUSED - write access to exchange 'dlx' in vhost '/' refused for user 'app'",
            "The user 'app' lacks the write right on the exchange 'dlx'. Grant it with `rabbitmqctl set_permissions`.",
        ),
        (
            "ACCESS_REFUSED - queue name 'amq.q' contains reserved prefix 'amq.*'",
            "The broker refuses it: queue name 'amq.q' contains reserved prefix 'amq.*' (403).",
        ),
    ],
)
def test_a_missing_right_names_the_user_the_right_and_the_thing(text: str, said: str) -> None:
    assert Refusal(403, text).sentence() == said
