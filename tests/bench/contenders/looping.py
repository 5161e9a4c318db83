"""The base of the bare pika contenders: a SelectConnection with one channel, until SIGTERM."""

import signal
from collections.abc import Callable
from typing import Any

import pika

from tests.bench.task import Task

Ready = Callable[[Any], None]


def run(task: Task, ready: Ready) -> None:
    """Open a channel, hand it to `ready`, and loop until SIGTERM or until the connection is closed."""

    def opened(connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=ready)

    connection = pika.SelectConnection(
        pika.URLParameters(task.url),
        on_open_callback=opened,
        on_close_callback=lambda connection, _reason: connection.ioloop.stop(),
    )
    signal.signal(signal.SIGTERM, lambda *_: connection.ioloop.add_callback_threadsafe(connection.close))
    connection.ioloop.start()


def consume(task: Task, on_message: Callable[..., None]) -> None:
    """Consume the task's queue with its prefetch."""

    def ready(channel: Any) -> None:
        channel.basic_qos(
            prefetch_count=task.prefetch, callback=lambda _: channel.basic_consume(task.queue, on_message)
        )

    run(task, ready)
