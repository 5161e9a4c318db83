"""Permissions that are missing or revoked: the consumer names them, and no message is lost."""

from collections.abc import Callable, Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message
from django_rmq_retry.errors import MessageUnsent
from tests.amqp.line_between import Between, between
from tests.amqp.live import publishing
from tests.faults.scene import Scene, Worker
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

NONE, ALL = "^$", ".*"
Grant = Callable[..., str]


@pytest.fixture
def grant(scene: Scene) -> Iterator[Grant]:
    """Give a user of this test exactly these permissions; return its URL."""
    name, management = scene.vhost.name, scene.vhost.management
    management.call("PUT", f"users/{name}", {"password": "p", "tags": ""})

    def grant(*, configure: str = NONE, write: str = NONE, read: str = NONE) -> str:
        rights = {"configure": configure, "write": write, "read": read}
        management.call("PUT", f"permissions/{name}/{name}", rights)
        return scene.vhost.url.replace("guest:guest@", f"{name}:p@")

    yield grant
    management.call("DELETE", f"users/{name}")


def working(scene: Scene, worker: Worker) -> None:
    scene.publish([100], fails=1)
    wait_until(lambda: scene.did()[100] == 1, 60, what=f"it works; {worker.said}")


@pytest.mark.nightly
def test_a_consumer_needs_no_right_to_declare(scene: Scene, grant: Grant) -> None:
    scene.declare()
    scene.publish(range(5), fails=1)
    scene.publish([5], hopeless=True)

    scene.finish(range(6), scene.worker(url=grant(write=r"^amq\.default$", read=r"^work(\.quarantine)?$")))

    assert scene.did() == dict.fromkeys(range(5), 1)
    assert scene.parked() == [(5, "permanent")]


@pytest.fixture
def way(grant: Grant) -> Iterator[Between]:
    """The broker through a proxy, for a user who has all rights but to declare. A connection caches its permissions."""
    with between(grant(write=ALL, read=ALL)) as way:
        yield way


@pytest.mark.nightly
def test_failed_messages_stay_in_their_queue_without_the_write_right(scene: Scene, grant: Grant, way: Between) -> None:
    scene.declare()
    worker = scene.worker(url=way.url)
    working(scene, worker)
    grant(read=ALL)
    way.cut()
    scene.publish(range(3), fails=1)
    scene.publish(range(3, 6))

    wait_until(lambda: {3, 4, 5} <= set(scene.did()), 60, what="what succeeds is handled")
    wait_until(lambda: worker.said.count("is not stored") >= 3, 60, what=f"it says so; {worker.said}")
    grant(write=ALL, read=ALL)

    scene.finish([*range(6), 100], worker, timeout=60)
    assert set(scene.did()) == {*range(6), 100}
    assert scene.parked() == []


@pytest.mark.nightly
def test_a_publish_raises_without_the_write_right_and_arrives_with_it(scene: Scene, grant: Grant) -> None:
    scene.declare()
    message = Message(body=b'{"id": 0}', routing_key="work")
    with publishing(grant(read=ALL), publish_timeout=2) as publisher:
        with pytest.raises(MessageUnsent) as told:
            publisher.publish(message)
        grant(write=ALL)
        publisher.close()
        publisher.publish(message)

    assert "ACCESS_REFUSED" in str(told.value)
    assert str(told.value).endswith(
        "Give the user the write right on the exchange with `rabbitmqctl set_permissions`, then publish it again."
    )
    scene.finish([0], scene.worker())
    assert scene.did() == {0: 1}


def test_a_consumer_without_read_right_ends_only_after_a_reconnect(scene: Scene, grant: Grant, way: Between) -> None:
    scene.declare()
    worker = scene.worker(url=way.url)
    working(scene, worker)
    grant(write=ALL)
    scene.publish([0])
    wait_until(lambda: scene.did()[0] == 1, 60, what="what was granted lasts as long as its channel")
    way.cut()

    assert worker.ended(timeout=40) == 4
    assert "Give the user the right to read it." in worker.said


@pytest.mark.nightly
def test_a_consumer_waits_while_a_queue_has_an_exclusive_consumer(scene: Scene, amqp: BlockingChannel) -> None:
    scene.declare(type="classic")
    amqp.basic_consume("work", print, exclusive=True, consumer_tag="alone")
    worker = scene.worker()
    wait_until(lambda: "exclusive" in worker.said, 60, what="it says why it waits")
    amqp.basic_cancel("alone")
    scene.publish(range(3))

    scene.finish(range(3), worker)

    assert scene.did() == dict.fromkeys(range(3), 1)


def test_a_message_that_can_never_be_written_is_not_to_be_published_again(scene: Scene) -> None:
    with publishing(scene.vhost.url) as publisher, pytest.raises(MessageUnsent) as told:
        publisher.publish(Message(body=b"{}", routing_key="k" * 256))

    assert "takes 256 bytes; AMQP takes 255" in str(told.value)
    assert str(told.value).endswith("Nothing was stored, and the same message never can be: correct it.")
