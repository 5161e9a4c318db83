"""Questions and answers over a real broker; the one who answers is played by the test."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message
from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.errors import CallUnanswered
from tests.amqp.live import calling, to
from tests.tooling.waiting import longer

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

Answer = Callable[[BlockingChannel, pika.BasicProperties, bytes], None]


def question(body: bytes = b"?", key: str = "asked", *, exchange: str = "", **properties: Any) -> Message:
    return to(key, body, exchange=exchange, **{"correlation_id": f"c-{body.decode()}", **properties})


def echo(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
    reply(channel, properties, b"re: " + body)


def reply(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
    known = pika.BasicProperties(correlation_id=properties.correlation_id)
    channel.basic_publish("", properties.reply_to or "", body, known)


@contextmanager
def answering(url: str, answer: Answer = echo) -> Iterator[None]:
    """A program that answers until the test is over."""
    ready, over = threading.Event(), threading.Event()

    def serve() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.queue_declare("asked")
        ready.set()
        for _, properties, body in channel.consume("asked", auto_ack=True, inactivity_timeout=0.02):
            if properties is not None and body is not None:
                answer(channel, properties, body)
            if over.is_set():
                break
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(longer(5))
    try:
        yield
    finally:
        over.set()
        thread.join()


def ask(caller: PikaCaller, body: bytes = b"?", *, timeout: float = 5) -> bytes:
    return caller.call(question(body), timeout=timeout).body


def test_each_call_gets_its_own_answer_in_any_order(broker_url: str) -> None:
    kept: list[tuple[pika.BasicProperties, bytes]] = []

    def backwards(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        kept.append((properties, body))
        if len(kept) == 20:
            for known, asked in reversed(kept):
                reply(channel, known, b"re: " + asked)

    with answering(broker_url, backwards), calling(broker_url) as caller, ThreadPoolExecutor(20) as pool:
        asked = [str(number).encode() for number in range(20)]
        answers = list(pool.map(lambda body: ask(caller, body), asked))

    assert answers == [b"re: " + body for body in asked]


def test_a_late_answer_is_dropped_and_not_taken_for_the_next(broker_url: str) -> None:
    slow = threading.Event()

    def late(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        slow.wait(longer(5))
        echo(channel, properties, body)

    with answering(broker_url, late), calling(broker_url) as caller:
        with pytest.raises(CallUnanswered):
            ask(caller, b"first", timeout=0.2)
        slow.set()

        assert ask(caller, b"second") == b"re: second"


def test_unexpected_answers_disturb_no_call(broker_url: str) -> None:
    def babble(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        channel.basic_publish("", properties.reply_to or "", b"no id")
        channel.basic_publish("", properties.reply_to or "", b"", pika.BasicProperties(correlation_id="other"))
        echo(channel, properties, body)
        echo(channel, properties, body)

    with answering(broker_url, babble), calling(broker_url) as caller:
        assert ask(caller, b"a") == b"re: a"
        assert ask(caller, b"b") == b"re: b"


def test_a_caller_that_was_closed_opens_again_when_it_is_used(broker_url: str) -> None:
    with answering(broker_url), calling(broker_url) as caller:
        for _ in range(3):
            assert ask(caller, timeout=3) == b"re: ?"
            caller.close()
