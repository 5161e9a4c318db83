"""FastStream: one subscriber, without its two log lines for each message."""

import asyncio
from typing import Any

from faststream import FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from tests.bench.marks import Marks
from tests.bench.task import Task


def main() -> None:
    task = Task.given()
    tick = Marks(task).tick
    broker = RabbitBroker(task.url, logger=None, default_channel=Channel(prefetch_count=task.prefetch))

    @broker.subscriber(RabbitQueue(task.queue, declare=False))  # type: ignore[untyped-decorator, unused-ignore]
    async def handle(_body: dict[str, Any]) -> None:
        if task.waits:
            await asyncio.sleep(task.waits)
        tick()

    asyncio.run(FastStream(broker, logger=None).run())


if __name__ == "__main__":
    main()
