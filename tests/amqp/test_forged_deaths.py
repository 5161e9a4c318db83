"""A dead-letter loop and an x-death that its own turns did not write: made up, or brought along from elsewhere."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import DeadLetter, Exchange, Queue, RetryThenPark
from django_rmq_retry.amqp import Line
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Headers, Instruction
from django_rmq_retry.messages.properties import encode_entry
from django_rmq_retry.policies import Failure, Kind
from tests.amqp.declared import declare, has, ready
from tests.amqp.live import consuming, publishing, to
from tests.handlers.factories import settled, topology_of
from tests.tooling.tables import entry
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract

QueueType = Literal["classic", "quorum"]
KINDS: Sequence[QueueType] = ["classic", "quorum"]


def died(queue: str, reason: object, **more: Any) -> Mapping[str, object]:
    return {"count": 1, "queue": queue, "reason": reason, "exchange": "", "routing-keys": ["k"], **more}


def x_death(*deaths: object) -> bytes:
    return encode_entry("x-death", list(deaths))


def doubled(name: str, first: object, second: object) -> bytes:
    """One entry with a name that stands in it twice: clients read the last value, RabbitMQ the first."""
    rest = {key: value for key, value in died("work", "rejected").items() if key != name}
    table = b"".join(encode_entry(*one) for one in [(name, first), (name, second), *rest.items()])
    deaths = b"F" + struct.pack(">I", len(table)) + table
    return entry(b"x-death", b"A", struct.pack(">I", len(deaths)) + deaths)


FORGED = {
    "it expired here": x_death(died("work", "expired")),
    "it was pushed out here": x_death(died("work", "maxlen")),
    "it came to its limit here": x_death(died("work", "delivery_limit")),
    "a reason that no broker has": x_death(died("work", "x")),
    "no reason": x_death(died("work", "")),
    "rejected elsewhere before": x_death(died("other", "rejected"), died("work", "expired")),
    "rejected elsewhere after": x_death(died("work", "expired"), died("other", "rejected")),
    "rejected here before": x_death(died("work", "rejected"), died("work", "expired")),
    "rejected here after": x_death(died("work", "expired"), died("work", "rejected")),
    "its own turns": x_death(died("later", "expired"), died("work", "rejected")),
    "its turns without a rejection": x_death(died("later", "expired"), died("work", "expired")),
    "the retry queue alone": x_death(died("later", "expired")),
    "another queue": x_death(died("other", "expired"), died("third", "maxlen")),
    "twice the same": x_death(died("work", "rejected"), died("work", "rejected")),
    "many times the same": x_death(*[died("work", "expired")] * 50),
    "a count of 63 bits": x_death(died("work", "expired", count=2**63 - 1)),
    "two queues in one entry": doubled("queue", "work", "other") + x_death(died("other", "expired")),
    "two reasons in one entry": doubled("reason", "expired", "rejected"),
    "two counts in one entry": doubled("count", "many", 1),
    "two lists": x_death(died("work", "expired")) + x_death(died("other", "expired")),
    "two lists, one malformed": x_death(1, 2) + x_death(died("other", "expired")),
    "numbers": x_death(1, 2),
    "empty entries": x_death({}),
    "a count that is a text": x_death(died("work", "rejected", count="9")),
    "a reason in bytes": x_death(died("work", b"rejected")),
    "a text": encode_entry("x-death", "hello"),
    "nothing": encode_entry("x-death", None),
}


def looping(vhost: Vhost, kind: QueueType) -> Subscription:
    """A loop whose turn takes a moment."""
    main = Exchange("main", "direct")
    found = Subscription(
        name="test",
        run=lambda _: None,
        queue=Queue("work", type=kind, bindings=[main.bind("k")]),
        policy=RetryThenPark(attempts=4, via=DeadLetter(exchange="again", queue="later", after=0.1)),
        park="parked",
    )
    declare(vhost, topology_of(found))
    return found


def gone_round(vhost: Vhost, amqp: BlockingChannel, found: Subscription, messages: int) -> list[Instruction]:
    """The settlements of this number of messages, each of which fails until it is parked."""
    told, parked = [], 0
    with consuming(vhost.url, Line(queue="work", prefetch=1)) as (source, seen):
        while parked < messages:
            arrival = seen.next()
            delivery = replace(arrival, attempt=found.policy.via.attempt(found.route, arrival))
            verdict = found.policy.judge(Failure(delivery=delivery, error=ValueError("again"), chance=0.5))
            settlement = settled(verdict, delivery, found, now=1_800_000_000_000)
            told.append(settlement.instruction)
            source.settle(delivery, settlement)
            parked += verdict.kind is Kind.PARK
        has(amqp, "parked", messages)
    return told


def bodies(channel: BlockingChannel) -> list[bytes]:
    return sorted(channel.basic_get("parked")[2] or b"" for _ in range(ready(channel, "parked")))


@pytest.mark.parametrize("kind", KINDS)
def test_no_forged_x_death_loses_a_message_in_a_dead_letter_loop(
    vhost: Vhost, amqp: BlockingChannel, kind: QueueType
) -> None:
    found = looping(vhost, kind)
    with publishing(vhost.url) as publisher:
        for name, forged in FORGED.items():
            publisher.publish(to("k", name.encode(), exchange="main", headers=Headers(forged)))

    gone_round(vhost, amqp, found, len(FORGED))

    assert bodies(amqp) == sorted(name.encode() for name in FORGED)


@pytest.mark.parametrize("kind", KINDS)
def test_an_x_death_from_another_queue_loses_no_moved_message(
    vhost: Vhost, amqp: BlockingChannel, kind: QueueType
) -> None:
    amqp.queue_declare("rescued", durable=True)
    to_rescued = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rescued", "x-queue-type": kind}
    amqp.queue_declare("work", durable=True, arguments=to_rescued)
    amqp.basic_publish("", "work", b"pay", pika.BasicProperties(delivery_mode=2, expiration="1"))
    method, properties, body = wait_until(lambda: expired(amqp), what="it to expire")
    amqp.basic_ack(method.delivery_tag)
    amqp.queue_delete("work")
    found = looping(vhost, kind)
    assert [(one["queue"], one["reason"]) for one in properties.headers["x-death"]] == [("work", "expired")]

    # As a program that moves messages does, such as a shovel.
    amqp.basic_publish("main", "k", body, properties)

    assert gone_round(vhost, amqp, found, 1) == [Instruction.ACK] * 4
    assert bodies(amqp) == [b"pay"]


def expired(channel: BlockingChannel) -> Any:
    got = channel.basic_get("rescued")
    return got if got[0] is not None else None
