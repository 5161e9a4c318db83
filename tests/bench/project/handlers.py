"""The measured handler."""

import asyncio
from typing import Any

from django_rmq_retry import Batch, Delivery, Queue, handler
from tests.bench.batches import SIZE
from tests.bench.marks import Marks
from tests.bench.policy import POLICY
from tests.bench.project.doing import worked, worked_together
from tests.bench.task import Task

task = Task.given()
marks = Marks(task)


class GatewayDown(Exception):
    """Raised for the planned failure of a message."""


def flaky(message: Delivery) -> None:
    """Fail at the first attempt."""
    if message.attempt == 1:
        marks.failed()
        raise GatewayDown("no answer within 3 s")
    marks.tick()


def quick(_message: Delivery) -> None:
    """Count the message."""
    marks.tick()


async def waiting(_message: Delivery) -> None:
    """Wait side by side with the others."""
    if task.begins:
        marks.tick()
    if task.waits:
        await asyncio.sleep(task.waits)
    if not task.begins:
        marks.tick()


def key(message: Delivery) -> str:
    """Return the ordering key: one of a thousand accounts."""
    return f"account {message.data['number'] % 1000}"


batch = Batch(SIZE) if task.does.endswith(" batch") else None
work: Any
if batch:
    work, once = worked_together(task.does, marks.tick)
elif task.does:
    work, once = worked(task.does, marks.tick)
else:
    work, once = waiting if task.side_by_side else flaky if task.flaky else quick, False
order_by = key if task.does.endswith(" keyed") else None
charge = handler(Queue(task.queue, type=task.kind), policy=POLICY, once=once, order_by=order_by, batch=batch)(work)

for number in range(task.idle_handlers):
    # Each has metrics of its own.
    handler(Queue(task.queue, type=task.kind), policy=POLICY, type=f"bench.idle.{number}", name=f"idle.{number}")(quick)
