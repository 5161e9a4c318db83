"""Exchanges of every type, declared and used: each routes as RabbitMQ documents it, with the arguments written here."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Exchange, Queue
from tests.amqp.declared import declare, has, redeclare
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.contract

NEWS, LOGS, FILES = Exchange("news", "fanout"), Exchange("logs", "topic"), Exchange("files", "headers")
ERRORS = Exchange("errors", "fanout", bindings=[LOGS.bind("#.error")])
REST = Exchange("rest", "fanout")
MAIN = Exchange("main", "direct", alternate="rest")
TO_KNOWN = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "known"}
QUEUES = [
    Queue("mail", type=None, bindings=[NEWS.bind()]),
    Queue("sms", type=None, bindings=[NEWS.bind()]),
    Queue("one word", type=None, bindings=[LOGS.bind("app.*")]),
    Queue("any words", type=None, bindings=[LOGS.bind("app.#")]),
    Queue("alarms", type=None, bindings=[ERRORS.bind()]),
    Queue("both", type=None, bindings=[FILES.bind(headers={"format": "pdf", "size": 4})]),
    Queue("either", type=None, bindings=[FILES.bind(headers={"format": "pdf", "size": 4}, match="any")]),
    Queue("known", type=None, bindings=[MAIN.bind("known")]),
    Queue("unknown", type=None, bindings=[REST.bind()]),
    Queue("delay", type=None, message_ttl=0.05, arguments=TO_KNOWN),
]
SENT: list[tuple[str, str, dict[str, Any]]] = [
    ("news", "whatever", {}),
    *(("logs", key, {}) for key in ("app.error", "app.error.db", "app", "db.error", "db.info")),
    *(("files", "", headers) for headers in ({"format": "pdf", "size": 4}, {"format": "pdf"}, {"size": 5})),
    ("main", "unbound", {}),
    ("", "delay", {}),
]


def test_exchanges_of_every_type_route_to_their_queues(vhost: Vhost, amqp: BlockingChannel) -> None:
    declare(vhost, topology_of(extra=QUEUES))
    for exchange, key, headers in SENT:
        amqp.basic_publish(exchange, key, b"", pika.BasicProperties(headers=headers))

    counts = {"mail": 1, "sms": 1, "one word": 1, "any words": 3, "alarms": 2, "both": 1, "either": 2}
    for queue, count in {**counts, "known": 1, "unknown": 1, "delay": 0}.items():
        has(amqp, queue, count)
    assert {("logs", "errors", "#.error"), ("errors", "alarms", "")} <= vhost.bindings()
    assert vhost.exchanges()["main"]["arguments"] == {"alternate-exchange": "rest"}


def test_a_queue_is_declared_with_every_option(vhost: Vhost, amqp: BlockingChannel) -> None:
    full = Queue(
        "full",
        type="classic",
        max_priority=5,
        max_length=100,
        max_bytes=5000,
        overflow="drop-head",
        message_ttl=60,
        single_active_consumer=True,
        arguments={"x-queue-mode": "lazy"},
    )
    declare(vhost, topology_of(extra=[full]))
    expected = {
        "x-queue-type": "classic",
        "x-max-priority": 5,
        "x-max-length": 100,
        "x-max-length-bytes": 5000,
        "x-overflow": "drop-head",
        "x-message-ttl": 60000,
        "x-single-active-consumer": True,
        "x-queue-mode": "lazy",
    }
    redeclare(amqp, {"full": expected})

    assert vhost.queues()["full"]["arguments"] == expected
