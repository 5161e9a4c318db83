"""An outage comes while a message is parked: the broker delivers it again, and the history says what is true."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue, RetryThenPark
from django_rmq_retry.amqp import PublishEnd
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.models import Attempt
from tests.amqp.line_between import between
from tests.amqp.live import Held, consuming
from tests.amqp.one_queue import LINE, fill, queue
from tests.consumer.attempts import Bench
from tests.messages.exceptions import post
from tests.tooling.results import OF_KIND

pytestmark = [pytest.mark.on_both, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(
    ("ends", "interrupted"),
    [
        pytest.param(PublishEnd.UNKNOWN, [True, False], id="between the copy and its confirm"),
        pytest.param(PublishEnd.CONFIRMED, [False, False], id="between the confirm and the ack"),
    ],
)
def test_only_a_message_whose_copy_is_stored_is_said_to_be_parked(
    broker_url: str, amqp: BlockingChannel, ends: PublishEnd, interrupted: list[bool]
) -> None:
    queue(amqp)
    fill(amqp, b"{}")
    recorder, held = Recorder(), Held()
    recorder.buffer._begin = lambda: None  # type: ignore[method-assign]
    options = {"journals": (recorder,), "unparked": recorder.unparked}
    pipeline = Bench(
        policy=RetryThenPark(attempts=1), queue=Queue("q"), act=lambda _: post(), options=options
    ).pipeline()
    with between(broker_url) as line, consuming(line.url, LINE, publisher=held) as (source, seen):
        first = seen.next()
        source.settle(first, pipeline.attempt(first))
        _, ended = held.sent.get(timeout=5)
        line.cut()
        again = seen.next()
        seen.io.call(lambda: ended(OF_KIND[ends]))
        source.settle(again, pipeline.attempt(again))
        _, stored = held.sent.get(timeout=5)
        seen.io.call(lambda: stored(OF_KIND[PublishEnd.CONFIRMED]))
        source.stop()
        assert seen.has_closed.wait(15)
    recorder.buffer.flush()

    assert again.redelivered
    assert list(Attempt.objects.order_by("pk").values_list("verdict", "interrupted")) == [
        ("park", one) for one in interrupted
    ]
