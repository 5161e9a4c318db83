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

CHECK = ("--check", "--within", str(PATIENCE))
NOBODY = "http://127.0.0.1:1"


def test_without_an_url_it_is_the_embedded_broker_whatever_runs_here(tmp_path: Path) -> None:
    with place("", tmp_path) as found:
        assert (found.url, found.embedded) == (f"embedded://{tmp_path}/broker", True)


def test_a_virtual_host_that_is_named_is_taken(tmp_path: Path) -> None:
    with place("amqp://guest:guest@127.0.0.1:5672/mine", tmp_path) as found:
        assert (found.url, found.embedded) == ("amqp://guest:guest@127.0.0.1:5672/mine", False)


def test_where_nobody_makes_a_virtual_host_it_is_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_OPERATORS_MANAGEMENT_URL", NOBODY)
    with place("amqp://127.0.0.1:5672", tmp_path) as found:
        assert found.url == "amqp://127.0.0.1:5672"
        assert "where no management API makes one" in found.description


def test_where_somebody_makes_one_the_demo_has_it_alone_and_then_nobody(
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


def test_an_url_that_is_invalid_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match="RMQ_URL: The broker's URL must begin with"), place("rabbit:5672", tmp_path):
        pass


@pytest.mark.slow
def test_on_a_rabbitmq_the_check_holds_and_all_it_made_is_gone(tmp_path: Path, vhost: Vhost) -> None:
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
def test_queues_that_others_have_made_are_not_touched(tmp_path: Path, vhost: Vhost, amqp: BlockingChannel) -> None:
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
def test_a_rabbitmq_that_is_not_there_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with showing(tmp_path / "demo", "--check", RMQ_URL="amqp://127.0.0.1:1/mine") as demo:
        code = demo.await_code()

    assert code == 1
    assert "amqp://guest@127.0.0.1:1/mine" in demo.said
    assert "Traceback" not in demo.said
