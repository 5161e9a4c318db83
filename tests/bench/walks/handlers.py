"""The handler of the walks."""

from threading import Semaphore

from django_rmq_retry import Delivery, Fixed, RetryThenPark, handler
from tests.bench.task import RETRY_DELAY, Task

task = Task.given()
handled = Semaphore(0)
"""Released once for each message that was handled without an error."""
FAILS = {"retry": 1, "parked": 1}


class GatewayDown(Exception):
    """A failure of the bank's gateway."""


@handler(
    task.queue,
    policy=RetryThenPark(attempts=1 if task.does == "parked" else 5, backoff=Fixed(RETRY_DELAY)),
)
def charge(message: Delivery) -> None:
    """Fail at the first attempt in the walks with failures."""
    if message.attempt <= FAILS.get(task.does, 0):
        raise GatewayDown("no answer within 3 s")
    handled.release()
