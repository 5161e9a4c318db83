"""FastStream: one subscriber, without its two log lines for each message. For RabbitMQ it has none for batches."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from faststream import FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from tests.bench.marks import Marks
from tests.bench.task import Task


def main() -> None:
    task = Task.given()
    tick = Marks(task).tick
    insert = None
    if task.does:
        from tests.bench.contenders.peers import inserting_in  # noqa: PLC0415 - Django is set up only if it is needed

        insert = sync_to_async(inserting_in(task), thread_sensitive=False, executor=ThreadPoolExecutor(task.threads))
    broker = RabbitBroker(task.url, logger=None, default_channel=Channel(prefetch_count=task.prefetch))

    @broker.subscriber(RabbitQueue(task.queue, declare=False))  # type: ignore[untyped-decorator, unused-ignore]
    async def handle(_body: dict[str, Any]) -> None:
        if task.waits:
            await asyncio.sleep(task.waits)
        if insert is None:
            tick()
        else:
            await insert()

    asyncio.run(FastStream(broker, logger=None).run())


if __name__ == "__main__":
    main()
