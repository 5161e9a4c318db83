"""Calls from Django to a handler that a real consumer runs."""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.test import override_settings
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import wiring
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.conf import settings
from django_rmq_retry.core.codec import JSON, Codec, Raw
from django_rmq_retry.core.errors import CallFailed, CallUnanswered, ConfigurationError, MessageReturned, NotDelayable
from django_rmq_retry.core.layout import layout
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.policy import OneShot
from django_rmq_retry.core.subscription import Subscription, intakes
from django_rmq_retry.core.topology import Queue
from django_rmq_retry.options import Options
from django_rmq_retry.replies import acall, call
from django_rmq_retry.runtime.attempt import Attempts
from django_rmq_retry.runtime.consumer import Consumer
from django_rmq_retry.runtime.events import Events
from django_rmq_retry.runtime.limits import Limits
from django_rmq_retry.runtime.surroundings import Surroundings
from tests.broker.declared import declare
from tests.tooling.vhosts import Vhost


class NoRate(Exception):
    """What the handler raises for what it does not know."""


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
    surroundings = Surroundings(
        around=nullcontext,
        journal=Events(time.time),
        clock=time.monotonic,
        today=lambda: time.time_ns() // 1_000_000,
        chance=random.random,
    )
    made = intakes([subscription])
    source = PikaSource(wiring.io("rmq-test"), settings().access(), wiring.publisher())
    consumer = Consumer(made, source, Attempts(made, surroundings), threads=2, prefetch=5, limits=Limits(shutdown=5))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(consumer.run()))
    thread.start()
    try:
        yield subscription
    finally:
        consumer.stop("the test is over")
        thread.join(15)

    assert codes == [0]


@pytest.fixture(autouse=True)
def wired(vhost: Vhost) -> Iterator[None]:
    wiring.close()
    declare(vhost, layout(intakes([subscribed()])))
    with override_settings(RMQ_RETRY={"URL": vhost.url}):
        yield
        wiring.close()


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_call_gets_what_the_handler_returns(exclusive: bool) -> None:
    with served(subscribed()) as subscription:
        assert call("EURUSD", subscription=subscription, exclusive=exclusive) == {"asked": "EURUSD"}


def test_none_is_an_answer_as_well() -> None:
    with served(subscribed(lambda _: None)) as subscription:
        assert call(1, subscription=subscription) is None


def test_data_that_looks_like_an_error_is_data() -> None:
    looks = {"error": {"type": "NoRate", "message": "x"}}
    with served(subscribed(lambda _: looks)) as subscription:
        assert call(1, subscription=subscription) == looks


def test_an_error_of_the_handler_is_raised_where_it_was_called() -> None:
    with served(subscribed()) as subscription, pytest.raises(CallFailed) as caught:
        call("unknown", subscription=subscription)

    assert (caught.value.kind, caught.value.text) == ("NoRate", "for this pair")


def test_raw_bytes_are_answered_with_bytes_and_errors_in_words() -> None:
    with served(subscribed(codec=Raw())) as subscription:
        assert call(b"abc", subscription=subscription) == b"cba"
    with served(subscribed(lambda _: None, Raw())) as subscription, pytest.raises(CallFailed, match="takes bytes"):
        call(b"abc", subscription=subscription)


def test_an_event_loop_is_not_blocked_while_it_awaits_an_answer() -> None:
    async def many(subscription: Subscription) -> list[object]:
        return await asyncio.gather(*(acall(number, subscription=subscription) for number in range(5)))

    with served(subscribed()) as subscription:
        assert asyncio.run(many(subscription)) == [{"asked": number} for number in range(5)]


def test_nobody_there_ends_with_the_time() -> None:
    with pytest.raises(CallUnanswered, match="Is its consumer running"):
        call(1, subscription=subscribed(), timeout=0.3)


def test_no_queue_is_told_at_once(amqp: BlockingChannel) -> None:
    amqp.queue_delete("rates")
    with pytest.raises(MessageReturned):
        call(1, subscription=subscribed(), timeout=5)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "2", None, True])
def test_a_time_that_is_none_is_refused_before_anything_is_asked(timeout: Any, amqp: BlockingChannel) -> None:
    for ask in (call, lambda *given, **options: asyncio.run(acall(*given, **options))):
        with pytest.raises(ConfigurationError, match=r"timeout=… takes seconds above 0 and up to ten years, not "):
            ask(1, subscription=subscribed(), timeout=timeout)

    assert amqp.queue_declare("rates", passive=True).method.message_count == 0


def test_a_call_cannot_be_delayed() -> None:
    with pytest.raises(NotDelayable):
        call(1, subscription=subscribed(), options=Options(delay=5))


def test_a_correlation_id_of_the_callers_own_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="makes its own correlation_id"):
        call(1, subscription=subscribed(), options=Options(correlation_id="mine"))
