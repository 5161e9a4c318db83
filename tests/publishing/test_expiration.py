"""An expiration goes to handlers whose expired messages are parked, and to no other."""

import pytest

from django_rmq_retry import DeadLetter, Ladder, NackRequeue, Native, Republish, RetryThenPark, WaitQueue
from django_rmq_retry.errors import NotExpirable
from django_rmq_retry.handlers.handler import destination_of
from django_rmq_retry.policies import Carrier
from django_rmq_retry.publishing.options import PublishOptions
from django_rmq_retry.publishing.publish import message_of
from tests.handlers.factories import subscription, topology_of

LOOP = DeadLetter(exchange="retry", queue="payments.wait", after=30)


def test_a_handler_in_a_dead_letter_loop_refuses_an_expiration() -> None:
    with pytest.raises(NotExpirable) as caught:
        message_of(
            1, options=PublishOptions(expiration=5), destination=destination_of(subscription(RetryThenPark(via=LOOP)))
        )

    assert (caught.value.handler, caught.value.carrier) == ("payments.handlers.charge", "DeadLetter")
    assert str(caught.value) == (
        "Handler payments.handlers.charge cannot be published to with expiration=…: its carrier DeadLetter sends "
        "expired messages round its loop, where RabbitMQ drops them, instead of parking them. Omit expiration, "
        "or use via=Ladder()."
    )


def test_a_handler_in_a_dead_letter_loop_accepts_messages_without_expiration() -> None:
    message = message_of(1, destination=destination_of(subscription(RetryThenPark(via=LOOP))))

    assert message.properties.expiration is None


@pytest.mark.parametrize(
    "via",
    [Ladder(), WaitQueue("wait-exchange", "wait-queue"), NackRequeue(), Republish(), Native(5)],
    ids=lambda via: type(via).__name__,
)
def test_a_queue_that_parks_expired_messages_accepts_an_expiration(via: Carrier) -> None:
    charge = subscription(RetryThenPark(attempts=2, via=via))
    message = message_of(1, options=PublishOptions(expiration=5), destination=destination_of(charge))
    work = topology_of(charge).queues["payments"].arguments

    assert message.properties.expiration == "5000"
    assert (work["x-dead-letter-exchange"], work["x-dead-letter-routing-key"]) == ("", "payments.parked")
