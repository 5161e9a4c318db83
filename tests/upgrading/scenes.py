"""Messages in flight as consumers write them: one for each kind of header of ours.

``python -m tests.upgrading.scenes`` prints them as they are stored in golden/, in the version that runs it.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from django_rmq_retry import Delivery, Fixed, Ladder, Message, Republish, RetryThenPark, Steps, WaitQueue
from django_rmq_retry.handlers import work_queues_of
from django_rmq_retry.handlers.settlement import copied_to
from django_rmq_retry.messages import ErrorNote, Headers, Properties, Reason, encode_properties
from django_rmq_retry.policies import Policy, Verdict, park, retry
from tests.handlers.factories import NOW, arrived, delivery, settled, subscription
from tests.messages.parked_copies import copy_of, requeued_copy, unhandled_copy

BODY = b'{"id": 1}'
DOWN = ErrorNote(kind="BankDown", text="timeout")
GAVE_UP = park(Reason.EXHAUSTED, "after 3 attempts", DOWN)
LADDER = RetryThenPark(attempts=3, backoff=Steps([10, 90]), via=Ladder())
REPUBLISH = RetryThenPark(attempts=3, backoff=Fixed(5), via=Republish())
WAIT_QUEUE = RetryThenPark(attempts=3, backoff=Fixed(10), via=WaitQueue("waiting", "payments.waiting"))
UNREADABLE = b"\x20\x00\x00\x00\x00\x05\x04when\xff"
"""Properties whose header has a type that there is not."""
TICKET = "7.2:dFf7l-YHp1dXbjI-V07mCFWbrUUF2E7K_yuSXaH9524"
"""Of record 7 in its second cycle, signed for this message with the key of the tests' settings."""


def fresh() -> Delivery:
    """As its sender published it."""
    return delivery(exchange="main", routing_key="pay.cash", body=BODY, message_id="m-1", headers={"tenant": "acme"})


def nameless() -> Delivery:
    return delivery(exchange="main", routing_key="pay.cash", body=BODY)


def failed(arrival: Delivery, verdict: Verdict, attempt: int, policy: Policy = LADDER) -> Message:
    arrival = replace(arrival, attempt=attempt)
    return copy_of(settled(verdict, arrival, subscription(policy), now=NOW + attempt, nonce=99))


def first_retry() -> Message:
    return failed(fresh(), retry(10, DOWN), 1)


def second_retry() -> Message:
    return failed(arrived(first_retry(), queue="payments"), retry(90, DOWN), 2)


def long_wait() -> Message:
    """Of its 200 seconds it waits 90 first."""
    return failed(fresh(), retry(200, DOWN), 1)


def republished() -> Message:
    return failed(fresh(), retry(5, DOWN), 1, REPUBLISH)


def in_a_wait_queue() -> Message:
    return failed(fresh(), retry(10, DOWN), 1, WAIT_QUEUE)


def suspect() -> Message:
    return copy_of(copied_to(arrived(first_retry(), queue="payments"), "payments.quarantine", subscription(LADDER)))


def parked() -> Message:
    return failed(arrived(second_retry(), queue="payments"), GAVE_UP, 3)


def parked_without_an_id() -> Message:
    return failed(nameless(), GAVE_UP, 3)


def parked_unreadable() -> Message:
    broken = park(Reason.UNDECODABLE_HEADERS, "unknown type", DOWN)
    return failed(delivery(raw=UNREADABLE, body=BODY), broken, 1)


def parked_unhandled() -> Message:
    (work_queue,) = work_queues_of([subscription(LADDER)])
    return unhandled_copy(park(Reason.UNHANDLED, "none takes it"), fresh(), work_queue, nonce=99)


def requeue() -> Message:
    properties = Properties(message_id="m-1", headers=Headers.of({"tenant": "acme", "rmq-retry-attempts": 3}))
    raw = encode_properties(properties)
    return requeued_copy(body=BODY, raw=raw, exchange="main", routing_key="pay.cash", ticket=TICKET)


def requeue_that_failed() -> Message:
    return failed(arrived(requeue(), queue="payments"), retry(10, DOWN), 1)


def requeue_parked_again() -> Message:
    return failed(arrived(requeue(), queue="payments"), GAVE_UP, 3)


SCENES: Mapping[str, Callable[[], Message]] = {
    scene.__name__: scene
    for scene in (
        first_retry,
        second_retry,
        long_wait,
        republished,
        in_a_wait_queue,
        suspect,
        parked,
        parked_without_an_id,
        parked_unreadable,
        parked_unhandled,
        requeue,
        requeue_that_failed,
        requeue_parked_again,
    )
}


def stored(message: Message) -> dict[str, str]:
    """All that the broker receives for it."""
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": base64.b64encode(encode_properties(message.properties)).decode(),
        "body": base64.b64encode(message.body).decode(),
    }


if __name__ == "__main__":
    print(json.dumps({name: stored(scene()) for name, scene in SCENES.items()}, indent=2))  # noqa: T201
