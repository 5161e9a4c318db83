"""The broker of the demo: embedded unless RMQ_URL is set; on RabbitMQ it uses only its own queues."""

from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testproject.playing.ending import Trouble
from testproject.playing.place import place
from tests.bank.showing import PATIENCE, showing
from tests.tooling.node import free_ports
from tests.tooling.services import Broker
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.nightly
CHECK = ("--check", "--within", str(PATIENCE))
NOBODY = "http://127.0.0.1:1"


def test_without_a_url_the_demo_uses_the_embedded_broker(tmp_path: Path) -> None:
    with place("", tmp_path) as found:
        assert (found.url, found.embedded) == (f"embedded://{tmp_path}/broker", True)


def test_a_virtual_host_in_the_url_is_used(tmp_path: Path) -> None:
    with place("amqp://guest:guest@127.0.0.1:5672/mine", tmp_path) as found:
        assert (found.url, found.embedded) == ("amqp://guest:guest@127.0.0.1:5672/mine", False)


def test_without_a_management_api_the_default_virtual_host_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_OPERATORS_MANAGEMENT_URL", NOBODY)
    with place("amqp://127.0.0.1:5672", tmp_path) as found:
        assert found.url == "amqp://127.0.0.1:5672"
        assert "where no management API makes one" in found.description


def test_with_a_management_api_the_demo_creates_and_deletes_a_virtual_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    monkeypatch.setenv("RMQ_OPERATORS_MANAGEMENT_URL", broker.management.url)
    with place(broker.base, tmp_path) as found:
        name = found.url.rpartition("/")[2]
        during = broker.management.vhosts()
    after = broker.management.vhosts()

    assert name.startswith("bank-demo-")
    assert name in during
    assert name not in after


def test_an_invalid_url_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match="RMQ_URL: The broker's URL must begin with"), place("rabbit:5672", tmp_path):
        pass


@pytest.mark.slow
def test_the_demo_passes_on_rabbitmq_and_deletes_its_objects(tmp_path: Path, vhost: Vhost) -> None:
    port = str(free_ports(1)[0])
    with showing(tmp_path / "demo", *CHECK, "--port", port, RMQ_URL=vhost.url) as demo:
        code = demo.await_code()

    assert code == 0, demo.said
    assert f"the virtual host {vhost.name}" in demo.said
    assert "The check ended well" in demo.said
    assert vhost.queues() == {}
    assert vhost.exchanges() == {}
    assert demo.children() == {}
    assert list(demo.folder.iterdir()) == []


@pytest.mark.slow
def test_existing_queues_of_others_are_not_touched(tmp_path: Path, vhost: Vhost, amqp: BlockingChannel) -> None:
    amqp.queue_declare("main-queue", durable=True)
    amqp.confirm_delivery()
    amqp.basic_publish("", "main-queue", b"theirs")
    with showing(tmp_path / "demo", "--check", RMQ_URL=vhost.url) as demo:
        code = demo.await_code()

    assert code == 1
    assert "has main-queue already, and the demo changes no existing queue" in demo.said
    assert amqp.basic_get("main-queue", auto_ack=True)[2] == b"theirs"
    assert list(vhost.queues()) == ["main-queue"]
    assert list(demo.folder.iterdir()) == []


@pytest.mark.slow
def test_an_unavailable_rabbitmq_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with showing(tmp_path / "demo", "--check", RMQ_URL="amqp://127.0.0.1:1/mine") as demo:
        code = demo.await_code()

    assert code == 1
    assert "amqp://guest@127.0.0.1:1/mine" in demo.said
    assert "Traceback" not in demo.said
