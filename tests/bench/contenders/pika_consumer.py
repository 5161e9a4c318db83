"""Bare pika: a callback that counts, and one ack per message. It decodes no body and handles no error."""

from typing import Any

from tests.bench.contenders.looping import consume
from tests.bench.marks import Marks
from tests.bench.task import Task


def main() -> None:
    task = Task.given()
    tick = Marks(task).tick

    def on_message(channel: Any, method: Any, _properties: object, _body: bytes) -> None:
        tick()
        channel.basic_ack(method.delivery_tag)

    consume(task, on_message)


if __name__ == "__main__":
    main()
