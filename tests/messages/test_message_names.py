"""A message keeps its name through retries; another message has another name."""

from dataclasses import replace

import pytest

from django_rmq_retry import Delivery
from django_rmq_retry.messages import Headers, Properties, Stamp, encode_properties
from django_rmq_retry.messages.identity import message_name, named_by_bytes
from django_rmq_retry.messages.stamp import copy_of

SENT = Properties(content_type="application/json", timestamp=7, headers=Headers.of({"tenant": "bank"}), priority=3)


def delivered(properties: Properties = SENT, *, body: bytes = b"{}") -> Delivery:
    return Delivery(queue="work", body=body, raw=encode_properties(properties), exchange="in", routing_key="pay")


def test_a_messages_name_is_its_id() -> None:
    name = message_name(delivered(replace(SENT, message_id="7")))

    assert name == "7"
    assert not named_by_bytes(name)


@pytest.mark.parametrize("reply_to", [None, "answers", "amq.rabbitmq.reply-to"])
def test_without_an_id_a_retry_has_the_name_of_its_original(reply_to: str | None) -> None:
    first = delivered(replace(SENT, reply_to=reply_to))
    copy = copy_of(first, Stamp(attempts=2, since=5, queue="work"), exchange="", routing_key="work.retry.10s")
    again = Delivery(
        queue="work", body=copy.body, raw=encode_properties(copy.properties), exchange="in", routing_key="pay"
    )

    assert message_name(again) == message_name(first)
    assert named_by_bytes(message_name(first))


def test_without_an_id_different_messages_have_different_names() -> None:
    others = [
        delivered(body=b"[]"),
        delivered(replace(SENT, timestamp=8)),
        delivered(replace(SENT, headers=Headers.of({"tenant": "shop"}))),
    ]

    assert len({message_name(one) for one in (delivered(), *others)}) == 4


def test_a_redelivery_has_the_name_of_its_first_delivery() -> None:
    counted = replace(SENT, headers=Headers.of({"tenant": "bank", "x-delivery-count": 1}))

    assert message_name(delivered(counted)) == message_name(delivered())
