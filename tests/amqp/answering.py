"""Questions, and a program that answers them over a real broker."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message
from django_rmq_retry.amqp.caller import PikaCaller
from tests.amqp.live import to
from tests.tooling.waiting import longer

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
