"""The key of a message as a text, and who can keep an order of keys."""

from datetime import date
from uuid import UUID

import pytest

from django_rmq_retry import (
    AckFirst,
    DeadLetter,
    Ladder,
    NackRequeue,
    Native,
    OneShot,
    Queue,
    Republish,
    RetryThenPark,
    StopTheLine,
    WaitQueue,
)
from django_rmq_retry.errors import ConfigurationError, NoKey
from django_rmq_retry.handlers import Subscription, WorkQueue
from django_rmq_retry.handlers.subscription import ordering_key_of
from django_rmq_retry.policies import Policy
from tests.handlers.factories import delivery

ODD = UUID("12345678123456781234567812345678")


def handler(policy: Policy, queue: Queue | None = None) -> Subscription:
    return Subscription(
        name="bank.post",
        run=print,
        queue=queue or Queue("payments"),
        policy=policy,
        park="payments.parked",
        order_by=lambda message: message.data["account"],
    )


@pytest.mark.parametrize(
    ("found", "key"),
    [
        ("no 7", "no 7"),
        (7, "7"),
        (ODD, "12345678-1234-5678-1234-567812345678"),
        (date(2026, 1, 2), "2026-01-02"),
        (("no", 7), "no:7"),
        ([1, 2], "1:2"),
    ],
)
def test_an_ordering_key_is_a_string(found: object, key: str) -> None:
    assert ordering_key_of(lambda _: found, delivery()) == key


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "returned nothing"),
        ("", "returned an empty text"),
        (True, "returned a bool"),
        (1.5, "returned a float"),
        ({"a": 1}, "returned a dict"),
        (("a", None), "returned nothing"),
        ((), "returned a tuple"),
    ],
)
def test_an_invalid_ordering_key_is_named_in_the_error(found: object, said: str) -> None:
    with pytest.raises(NoKey) as caught:
        ordering_key_of(lambda _: found, delivery())

    assert said in str(caught.value)


def nested(depth: int) -> list[object]:
    """As deep as a sender may write it."""
    found: list[object] = ["A"]
    for _ in range(depth):
        found = [found]
    return found


class Mute(UUID):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Matrix:
    """As tables of numbers do: compared with anything it is many answers."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "found", [nested(5000), 10**5000, Mute(int=7), Matrix()], ids=["deep", "long", "mute", "matrix"]
)
def test_an_unprintable_ordering_key_raises_only_no_key(found: object) -> None:
    with pytest.raises(NoKey, match="order_by returned a "):
        ordering_key_of(lambda _: found, delivery())


def test_a_failing_order_by_with_an_unprintable_error_is_named() -> None:
    def broken(_: object) -> object:
        raise MuteError

    with pytest.raises(NoKey, match="order_by raised MuteError: "):
        ordering_key_of(broken, delivery())


def test_a_failing_order_by_is_reported_with_its_error() -> None:
    with pytest.raises(NoKey) as caught:
        ordering_key_of(lambda message: message.data["account"], delivery())

    assert str(caught.value) == (
        "Its ordering key cannot be computed: order_by raised TypeError: 'NoneType' object is not subscriptable. "
        "Fix the message or order_by, and requeue it."
    )


@pytest.mark.parametrize("via", [Ladder(), Republish(), WaitQueue("wait", "wait")])
def test_carriers_that_copy_accept_order_by(via: Ladder | Republish | WaitQueue) -> None:
    made = handler(RetryThenPark(via=via))

    assert (made.queue.single_active_consumer, made.gated) == (True, True)


@pytest.mark.parametrize(
    "policy",
    [
        StopTheLine(),
        OneShot(),
        RetryThenPark(via=NackRequeue(), attempts=2),
        RetryThenPark(via=Native(5)),
        RetryThenPark(via=DeadLetter(exchange="retry", queue="retry", after=5)),
    ],
)
def test_order_by_refuses_carriers_without_copies(policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match="order_by needs retries that are copies"):
        handler(policy)


def test_order_by_refuses_a_carrier_that_may_lose_messages() -> None:
    with pytest.raises(
        ConfigurationError,
        match="order_by needs a carrier that loses no message, and AckFirst can: later ones would wait",
    ):
        handler(RetryThenPark(via=AckFirst()))


def test_order_by_refuses_a_queue_that_loses_places() -> None:
    with pytest.raises(ConfigurationError, match="has delivery_limit=None"):
        handler(RetryThenPark(), Queue("payments", type="quorum", delivery_limit=None))


def test_a_queue_with_order_by_has_no_quarantine() -> None:
    made = handler(RetryThenPark())

    assert WorkQueue(queue=made.queue, park=made.park, subscriptions=(made,)).quarantine is None
