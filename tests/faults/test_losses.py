"""Loss of queues, virtual hosts, connections, users and ack time under a consumer."""

from itertools import pairwise

import pytest

from tests.faults.scene import Scene
from tests.tooling.node import Node
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def working(scene: Scene) -> None:
    scene.publish([1000])
    wait_until(lambda: scene.did()[1000] == 1, 20, what="the consumer works")


def test_a_queue_deleted_and_made_again_is_consumed_within_seconds(scene: Scene) -> None:
    scene.declare()
    worker = scene.worker()
    working(scene)

    with scene.channel() as channel:
        channel.queue_delete("work")
    # If a quorum queue is declared again at once, RabbitMQ 3.10 sends no cancel, so no client can detect it.
    wait_until(lambda: "subscribing again" in worker.said, 5, what="the cancel was received")
    scene.declare()
    scene.publish(range(5), fails=1)

    wait_until(lambda: set(scene.did()) >= set(range(5)), 5, what="it is subscribed again")
    scene.finish(range(5), worker)


def test_a_queue_deleted_for_good_ends_the_worker_with_a_sentence(scene: Scene) -> None:
    scene.declare()
    worker = scene.worker()
    working(scene)

    with scene.channel() as channel:
        channel.queue_delete("work")

    assert worker.ended(timeout=40) == 4
    assert "rmq_declare" in worker.said


def test_a_virtual_host_deleted_ends_the_worker(private_scene: Scene) -> None:
    private_scene.declare()
    worker = private_scene.worker()
    working(private_scene)

    private_scene.vhost.management.delete_vhost(private_scene.vhost.name)

    assert worker.ended(timeout=90) == 3
    assert "the virtual host does not exist" in worker.said


def test_an_operator_who_cuts_connections_costs_no_message(scene: Scene) -> None:
    scene.declare()
    worker = scene.worker(threads=2)
    working(scene)
    for cut in range(3):
        scene.publish(range(cut * 10, cut * 10 + 10), fails=1)
        wait_until(scene.vhost.close_connections, what="connections are known and cut", step=0.1)

    scene.finish([*range(30), 1000], worker)
    assert worker.said.count("Connected to") >= 2


def grant(node: Node, vhost: str, user: str) -> None:
    node.ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")


@pytest.mark.parametrize("loss", ["deleted", "changed"])
def test_a_worker_waits_for_a_deleted_broker_user_and_then_continues(
    private_scene: Scene, private_node: Node, loss: str
) -> None:
    private_scene.declare()
    name, user = private_scene.vhost.name, f"app-{loss}"
    private_node.ctl("add_user", user, "one")
    grant(private_node, name, user)
    worker = private_scene.worker(url=private_scene.vhost.url.replace("guest:guest@", f"{user}:one@"))
    working(private_scene)
    if loss == "deleted":
        private_node.ctl("delete_user", user)
    else:
        private_node.ctl("change_password", user, "two")
        wait_until(private_scene.vhost.close_connections, what="connections are cut", step=0.1)

    wait_until(lambda: worker.said.count("refused the user") >= 3, 20, what="it tries and says why")
    assert worker.running
    assert worker.said.count("refused the user") < 12
    if loss == "deleted":
        private_node.ctl("add_user", user, "one")
        grant(private_node, name, user)
    else:
        private_node.ctl("change_password", user, "one")
    private_scene.publish(range(5), fails=1)

    private_scene.finish([*range(5), 1000], worker, timeout=60)
    private_node.ctl("delete_user", user)


@pytest.mark.contract
@pytest.mark.usefixtures("impatient")
def test_a_consumer_returns_after_the_brokers_consumer_timeout(private_scene: Scene) -> None:
    scene = private_scene
    scene.declare()
    scene.publish([0], holds="gate")
    worker = scene.worker(threads=2, prefetch=2)

    wait_until(lambda: scene.began()[0] == 2, 30, what="the message came a second time")
    scene.open("gate")
    wait_until(lambda: scene.did()[0] == 2, what="both end")
    scene.publish(range(1, 5))

    scene.finish(range(5), worker)
    assert worker.said.count("Connected to") == 1
    assert scene.parked() == []


@pytest.mark.contract
@pytest.mark.usefixtures("impatient")
def test_a_strict_order_handler_that_outlives_the_consumer_timeout_runs_alone(private_scene: Scene) -> None:
    scene = private_scene
    scene.declare("line")
    scene.publish([0], holds="gate")
    scene.publish(range(1, 5))
    worker = scene.worker(threads=2)

    wait_until(lambda: worker.said.count("subscribing again") > 1 or "4.3" in worker.said, 30, what="it was taken back")
    wait_until(lambda: scene.began()[0] == 1)
    alone = (dict(scene.began()), dict(scene.did()))
    scene.open("gate")

    scene.finish(range(5), worker)
    assert alone == ({0: 1}, {})
    assert list(dict.fromkeys(scene.diary.ids("did"))) == [0, 1, 2, 3, 4]


@pytest.mark.contract
@pytest.mark.usefixtures("impatient")
def test_a_line_halted_for_long_keeps_its_order_and_attempt_count(
    private_scene: Scene,
) -> None:
    scene = private_scene
    scene.declare("patient_line")
    scene.publish([0], fails=4)
    scene.publish(range(1, 5))
    worker = scene.worker(longest_hold=2)

    scene.finish(range(5), worker, timeout=60)

    began = [entry for entry in scene.diary.entries("began") if entry["id"] == 0]
    waits = [later["at"] - earlier["at"] for earlier, later in pairwise(began)]
    assert scene.diary.ids("did") == [0, 1, 2, 3, 4]
    assert [entry["attempt"] for entry in began] == [1, 2, 3, 4, 5]
    assert min(waits) > 1400, "it waits on where its line was renewed"
    assert "timed out" not in worker.said


@pytest.mark.contract
@pytest.mark.usefixtures("impatient")
def test_a_line_halted_for_long_goes_on_in_another_process_in_order(private_scene: Scene) -> None:
    scene = private_scene
    scene.declare("patient_line")
    workers = [scene.worker(longest_hold=2) for _ in range(2)]
    wait_until(lambda: all("Connected" in worker.said for worker in workers), 60, what="both are connected")
    scene.publish([0], fails=6)
    scene.publish(range(1, 5))

    scene.finish(range(5), *workers, timeout=90)

    began = [entry["pid"] for entry in scene.diary.entries("began") if entry["id"] == 0]
    assert scene.diary.ids("did") == [0, 1, 2, 3, 4]
    assert len(set(began)) == 2
