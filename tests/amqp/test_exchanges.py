"""Exchanges of every type, publish and subscribe, bindings between exchanges, a delay by TTL: declared and used."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Exchange, Queue
from tests.amqp.declared import arguments, declare, has, redeclare
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.contract


def test_a_fanout_exchange_gives_every_queue_a_copy(vhost: Vhost, amqp: BlockingChannel) -> None:
    news = Exchange("news", "fanout")
    declare(vhost, topology_of(extra=[Queue(name, type=None, bindings=[news.bind()]) for name in ("mail", "sms")]))

    amqp.basic_publish("news", "whatever", b"hello")

    has(amqp, "mail", 1)
    has(amqp, "sms", 1)


def test_a_topic_exchange_routes_by_star_and_hash(vhost: Vhost, amqp: BlockingChannel) -> None:
    logs = Exchange("logs", "topic")
    wanted = {"one-word": "app.*", "any-words": "app.#", "exact": "app.error"}
    declare(
        vhost, topology_of(extra=[Queue(name, type=None, bindings=[logs.bind(key)]) for name, key in wanted.items()])
    )

    for key in ("app.error", "app.error.db", "app", "other.error"):
        amqp.basic_publish("logs", key, b"")

    has(amqp, "one-word", 1)
    has(amqp, "any-words", 3)
    has(amqp, "exact", 1)


def test_a_headers_exchange_matches_all_or_any(vhost: Vhost, amqp: BlockingChannel) -> None:
    files = Exchange("files", "headers")
    both = files.bind(headers={"format": "pdf", "size": 4})
    either = files.bind(headers={"format": "pdf", "size": 4}, match="any")
    queues = [Queue("both", type=None, bindings=[both]), Queue("either", type=None, bindings=[either])]
    declare(vhost, topology_of(extra=queues))

    sent: list[dict[str, Any]] = [{"format": "pdf", "size": 4}, {"format": "pdf"}, {"size": 5}]
    for headers in sent:
        amqp.basic_publish("files", "", b"", pika.BasicProperties(headers=headers))

    has(amqp, "both", 1)
    has(amqp, "either", 2)


def test_an_exchange_bound_to_an_exchange_passes_messages_on(vhost: Vhost, amqp: BlockingChannel) -> None:
    everything = Exchange("everything", "topic")
    errors = Exchange("errors", "fanout", bindings=[everything.bind("#.error")])
    declare(vhost, topology_of(extra=[Queue("alarms", type=None, bindings=[errors.bind()])]))

    for key in ("db.error", "db.info"):
        amqp.basic_publish("everything", key, b"")

    has(amqp, "alarms", 1)
    assert vhost.bindings() == {("everything", "errors", "#.error"), ("errors", "alarms", "")}


def test_an_unroutable_message_goes_to_the_alternate_exchange(vhost: Vhost, amqp: BlockingChannel) -> None:
    rest = Exchange("rest", "fanout")
    main = Exchange("main", "direct", alternate="rest")
    queues = [Queue("known", type=None, bindings=[main.bind("known")])]
    declare(vhost, topology_of(extra=[*queues, Queue("unknown", type=None, bindings=[rest.bind()])]))

    amqp.basic_publish("main", "unbound", b"")

    has(amqp, "unknown", 1)
    assert vhost.exchanges()["main"]["arguments"] == {"alternate-exchange": "rest"}


def test_a_message_is_delayed_by_a_queue_with_a_ttl(vhost: Vhost, amqp: BlockingChannel) -> None:
    to_inbox = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "inbox"}
    delay = Queue("delay", type=None, message_ttl=0.05, arguments=to_inbox)
    declare(vhost, topology_of(extra=[delay, Queue("inbox", type=None)]))

    amqp.basic_publish("", "delay", b"later")

    has(amqp, "inbox", 1)
    assert arguments(vhost)["delay"] == {"x-message-ttl": 50, **to_inbox}


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
