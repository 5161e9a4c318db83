"""Calls from Django to a handler that a real consumer runs."""

import asyncio
import base64
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from django.conf import settings as project
from django.test import override_settings
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Fixed, Json, OneShot, Queue, Raw, RetryThenPark
from django_rmq_retry.conf import settings
from django_rmq_retry.consumer.consumer import Consumer, ConsumerLimits
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.errors import (
    CallFailed,
    CallUnanswered,
    ConfigurationError,
    MessageReturned,
    NotDelayable,
    UndecodableBody,
)
from django_rmq_retry.handlers import Subscription, work_queues_of
from django_rmq_retry.handlers.handler import destination_of
from django_rmq_retry.messages import Codec
from django_rmq_retry.publishing.calls import acall, call
from django_rmq_retry.publishing.options import PublishOptions
from tests.amqp.declared import declare
from tests.amqp.live import io_thread, publisher_on, source_on
from tests.consumer.attempts import pipeline_of
from tests.handlers.factories import topology_of
from tests.tooling.brokers import using_broker
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until


class NoRate(Exception):
    """What the handler raises for what it does not know."""


JSON = Json()


def quote(message: Delivery) -> object:
    if message.data == "unknown":
        raise NoRate("for this pair")
    return {"asked": message.data} if not isinstance(message.data, bytes) else message.data[::-1]


def subscribed(run: Callable[[Delivery], object] = quote, codec: Codec = JSON) -> Subscription:
    return Subscription(
        name="rates.quote", run=run, queue=Queue("rates"), policy=OneShot(), park="rates.parked", codec=codec
    )


@contextmanager
def served(subscription: Subscription) -> Iterator[Subscription]:
    """Somebody consumes, for as long as it is asked."""
    events = Events(time.time)
    pipeline = pipeline_of(
        subscription,
        journals=(events,),
        reply_to=settings().reply_to,
        refused=events.refuse_answer,
        clock=time.monotonic,
        now_ms=lambda: time.time_ns() // 1_000_000,
        chance=random.random,
    )
    url = str(project.RMQ_RETRY["URL"])
    with io_thread() as io:
        publisher = publisher_on(io, url)
        source, made, limits = source_on(io, url, publisher), work_queues_of([subscription]), ConsumerLimits(shutdown=5)
        consumer = Consumer(made, source, pipeline, threads=2, prefetch=5, limits=limits)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(consumer.run()))
        thread.start()
        try:
            yield subscription
        finally:
            consumer.stop("the test is over")
            thread.join(15)
            publisher.close()

    assert codes == [0]


@pytest.fixture(autouse=True)
def wired(vhost: Vhost, settings: Any) -> Iterator[None]:
    declare(vhost, topology_of(subscribed()))
    with using_broker(settings, vhost.url):
        yield


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_call_returns_the_result_of_the_handler(exclusive: bool) -> None:
    with served(subscribed()) as subscription:
        assert call("EURUSD", destination=destination_of(subscription), exclusive=exclusive) == {"asked": "EURUSD"}


def test_a_call_can_return_none() -> None:
    with served(subscribed(lambda _: None)) as subscription:
        assert call(1, destination=destination_of(subscription)) is None


def test_data_shaped_like_an_error_is_returned_as_data() -> None:
    looks = {"error": {"type": "NoRate", "message": "x"}}
    with served(subscribed(lambda _: looks)) as subscription:
        assert call(1, destination=destination_of(subscription)) == looks


def test_an_error_of_the_handler_is_raised_at_the_caller() -> None:
    with served(subscribed()) as subscription, pytest.raises(CallFailed) as caught:
        call("unknown", destination=destination_of(subscription))

    assert (caught.value.kind, caught.value.text) == ("NoRate", "for this pair")


def test_an_answer_beyond_the_limits_of_a_body_is_not_decoded(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "BODY_ELEMENTS": 70_000}
    many = subscribed(lambda _: [{}] * 70_000)
    with served(many) as subscription, pytest.raises(UndecodableBody, match="more elements than"):
        call(1, destination=destination_of(subscription))


def test_raw_bytes_are_answered_with_bytes_and_errors_as_text() -> None:
    with served(subscribed(codec=Raw())) as subscription:
        assert call(b"abc", destination=destination_of(subscription)) == b"cba"
    with served(subscribed(lambda _: None, Raw())) as subscription, pytest.raises(CallFailed, match="takes bytes"):
        call(b"abc", destination=destination_of(subscription))


def test_the_event_loop_is_not_blocked_while_a_call_waits() -> None:
    async def many(subscription: Subscription) -> list[object]:
        return await asyncio.gather(*(acall(number, destination=destination_of(subscription)) for number in range(5)))

    with served(subscribed()) as subscription:
        assert asyncio.run(many(subscription)) == [{"asked": number} for number in range(5)]


def test_a_call_without_a_consumer_ends_with_its_timeout() -> None:
    with pytest.raises(CallUnanswered, match="Is its consumer running"):
        call(1, destination=destination_of(subscribed()), timeout=0.3)


def test_a_call_to_a_missing_queue_fails_at_once(amqp: BlockingChannel) -> None:
    amqp.queue_delete("rates")
    with pytest.raises(MessageReturned):
        call(1, destination=destination_of(subscribed()), timeout=5)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "2", None, True])
def test_an_invalid_timeout_is_refused_before_the_call_is_sent(timeout: Any, amqp: BlockingChannel) -> None:
    for ask in (call, lambda *given, **options: asyncio.run(acall(*given, **options))):
        with pytest.raises(ConfigurationError, match=r"timeout=… takes seconds above 0 and up to ten years, not "):
            ask(1, destination=destination_of(subscribed()), timeout=timeout)

    assert amqp.queue_declare("rates", passive=True).method.message_count == 0


def test_a_call_cannot_be_delayed() -> None:
    with pytest.raises(NotDelayable):
        call(1, destination=destination_of(subscribed()), options=PublishOptions(delay=5))


def test_a_correlation_id_set_by_the_caller_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sets correlation_id=… itself"):
        call(1, destination=destination_of(subscribed()), options=PublishOptions(correlation_id="mine"))


def test_invented_reply_addresses_do_not_disturb_answers_and_retries(
    vhost: Vhost, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    policy = RetryThenPark(attempts=2, backoff=Fixed(0.1))
    runs: list[object] = []

    def answer(message: Delivery) -> object:
        runs.append(message.data)
        if str(message.data).startswith("fails"):
            raise NoRate(message.data)
        return message.data

    subscription = Subscription(
        name="rates.quote", run=answer, queue=Queue("rates.more"), policy=policy, park="rates.more.parked", codec=Json()
    )
    declare(vhost, topology_of(subscription))
    for number in range(60):
        invented = f"amq.rabbitmq.reply-to.{base64.b64encode(os.urandom(30)).decode()}.a2V5"
        foreign = "amq.rabbitmq.reply-to.g2dkAA5yYWJiaXRAZm9yZWlnbgAAAfQAAAAAYw==.YWJj"
        for reply_to in (invented, foreign):
            amqp.basic_publish("", "rates.more", b'"hostile"', pika.BasicProperties(reply_to=reply_to))
        amqp.basic_publish("", "rates.more", b'"fails %d"' % number)
    with served(subscription), ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(call, number, destination=destination_of(subscription), timeout=20) for number in range(20)
        ]
        assert [one.result(20) for one in asked] == list(range(20))
        wait_until(lambda: amqp.queue_declare("rates.more.parked", passive=True).method.message_count == 60, 20)

    expected: dict[object, int] = {"hostile": 120}
    expected |= {f"fails {number}": 2 for number in range(60)}
    expected |= dict.fromkeys(range(20), 1)
    assert Counter(runs) == expected
    assert [one for one in caplog.messages if "not stored" in one] == []


def test_reply_to_cannot_address_a_queue_of_another_project(
    amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ledger", "answers.7"):
        amqp.queue_declare(name)
    mine = amqp.queue_declare("", exclusive=True).method.queue

    def answered(reply_to: str) -> int:
        amqp.basic_publish("", "rates", b"1", pika.BasicProperties(reply_to=reply_to))
        amqp.basic_publish("", "rates", b"1", pika.BasicProperties(reply_to=mine))
        wait_until(lambda: amqp.basic_get(mine, auto_ack=True)[0], 10)
        return int(amqp.queue_declare(reply_to, passive=True).method.message_count)

    with served(subscribed()):
        assert [answered(name) for name in ("ledger", "answers.7", "ledger")] == [0, 0, 0]
    allowing = {**project.RMQ_RETRY, "REPLY_TO": ["answers.*", "amq.gen-*"]}
    with override_settings(RMQ_RETRY=allowing), served(subscribed()):
        assert [answered(name) for name in ("ledger", "answers.7")] == [0, 1]
    told = [message for message in caplog.messages if "REPLY_TO" in message]
    assert [message.split(" was not")[0] for message in told] == [
        "The answer to 'ledger'",
        "The answer to 'answers.7'",
        "The answer to 'ledger'",
    ]
