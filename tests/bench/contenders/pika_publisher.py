"""Bare pika: a SelectConnection that keeps a window of confirms outstanding."""

import json
from typing import Any

import pika

from tests.bench.contenders.looping import run
from tests.bench.marks import Marks
from tests.bench.task import Task, payload

MESSAGE_ID = "0f8e7d6c5b4a439281706f5e4d3c2b1a"


class Window:
    """Publishes the next messages as confirms arrive."""

    def __init__(self, task: Task, channel: Any) -> None:
        self._task = task
        self._channel = channel
        self._tick = Marks(task).tick
        self._sent = 0
        self._confirmed = 0

    def fill(self) -> None:
        for number in range(self._sent, min(self._task.total, self._confirmed + self._task.window)):
            properties = pika.BasicProperties(content_type="application/json", delivery_mode=2, message_id=MESSAGE_ID)
            self._channel.basic_publish("", self._task.queue, json.dumps(payload(number)).encode(), properties)
            self._sent += 1

    def confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag if frame.method.multiple else self._confirmed + 1
        while self._confirmed < tag:
            self._confirmed += 1
            self._tick()
        if self._confirmed < self._task.total:
            self.fill()
        else:
            self._channel.connection.close()


def main() -> None:
    task = Task.given()

    def ready(channel: Any) -> None:
        window = Window(task, channel)
        channel.confirm_delivery(window.confirmed, callback=lambda _: window.fill())

    run(task, ready)


if __name__ == "__main__":
    main()
