"""Bare pika and a retry loop on the broker: reject, dead-letter exchange, waiting queue with a TTL, and back."""

from typing import Any

from tests.bench.contenders.looping import consume
from tests.bench.marks import Marks
from tests.bench.task import Task


def main() -> None:
    task = Task.given()
    marks = Marks(task)

    def on_message(channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        # A message that was rejected before has the header x-death.
        if properties.headers:
            marks.tick()
            channel.basic_ack(method.delivery_tag)
        else:
            marks.failed()
            channel.basic_reject(method.delivery_tag, requeue=False)

    consume(task, on_message)


if __name__ == "__main__":
    main()
