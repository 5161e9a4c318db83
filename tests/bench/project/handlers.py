"""The handler under measurement."""

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.topology import Queue
from django_rmq_retry.handler import handler
from tests.bench.marks import Marks
from tests.bench.policy import POLICY
from tests.bench.task import Task

task = Task.given()
marks = Marks(task)


class GatewayDown(Exception):
    """What a flaky gateway raises."""


def flaky(message: Delivery) -> None:
    """Fail at the first attempt."""
    if message.attempt == 1:
        marks.failed()
        raise GatewayDown("no answer within 3 s")
    marks.tick()


def quick(_message: Delivery) -> None:
    """Count, and be done."""
    marks.tick()


charge = handler(Queue(task.queue, type=task.kind), policy=POLICY)(flaky if task.flaky else quick)
