"""A process that stops consuming exits, and no thread waits for an I/O thread that does not answer."""

import asyncio
import threading
import time
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message, apublish, publish
from django_rmq_retry.errors import PublishUnknown
from tests.amqp.declared import has
from tests.amqp.live import io_thread, publisher_on
from tests.faults.scene import Scene
from tests.tooling.brokers import using_broker
from tests.tooling.marks import nightly_but

pytestmark = pytest.mark.slow


def stand_still(gate: threading.Event) -> None:
    gate.wait(20)


def io_threads() -> list[int | None]:
    """The I/O threads of this process's own connections."""
    return [one.ident for one in threading.enumerate() if one.name == "rmq-publish"]


@pytest.mark.parametrize("way", nightly_but(["the_loop_stands_still"], ["the_loop_raises", "the_loop_stands_still"]))
def test_a_worker_whose_io_thread_ended_exits_and_logs_it(scene: Scene, way: str) -> None:
    scene.declare()
    worker = scene.worker(prefetch=1, breaks=(way, 0), PUBLISH_TIMEOUT=1)
    scene.publish(range(5))

    assert worker.ended(timeout=25) == 1
    assert "The I/O thread has ended, or does not respond." in worker.said
    scene.finish(range(5), scene.worker())


def test_a_publish_ends_in_time_while_the_io_thread_stalls(broker_url: str) -> None:
    gate = threading.Event()
    with io_thread() as io:
        publisher = publisher_on(io, broker_url)
        io.call(lambda: stand_still(gate))
        began = time.monotonic()

        with pytest.raises(PublishUnknown, match="does not answer"):
            publisher.publish(Message(body=b"1", routing_key="nowhere"), timeout=0.3)
        with pytest.raises(PublishUnknown, match="does not answer"):
            publisher.publish_many([Message(body=b"1", routing_key="nowhere")] * 3, window=2, timeout=0.3)

        # Three waits of 0.3 s, each with a second of grace, then it ends.
        assert time.monotonic() - began < 20
        gate.set()
        publisher.close()


def test_an_event_loop_closed_before_its_confirm_harms_no_later_publish(
    amqp: BlockingChannel, broker_url: str, settings: Any
) -> None:
    amqp.queue_declare("here", durable=True)

    async def impatient() -> None:
        await asyncio.wait_for(apublish({"n": 1}, routing_key="here"), 0.001)

    with using_broker(settings, broker_url):
        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
        began = io_threads()

        assert publish({"n": 2}, routing_key="here", immediate=True)
        assert io_threads() == began
        has(amqp, "here", 2)
