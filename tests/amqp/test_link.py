import itertools
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from django_rmq_retry.amqp import Access
from django_rmq_retry.amqp import link as linking
from django_rmq_retry.amqp.link import FIRST_RECONNECT_SECONDS, LONGEST_RECONNECT_SECONDS, MOST_VHOST_REFUSALS, Link
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.errors import BrokerRefused, BrokerUnfit, BrokerUnreachable, ConfigurationError, MessageUnsent
from tests.amqp.line_between import between
from tests.amqp.linked import Reports, gone, linked
from tests.amqp.live import io_thread, publishing, to
from tests.tooling.node import Node
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "FIRST_RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(linking, "LONGEST_RECONNECT_SECONDS", 0.05)


def test_reconnect_waits_grow_with_jitter_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        chosen.append((low, high))
        return high

    monkeypatch.setattr("random.uniform", uniform)
    told = Reports()
    with io_thread() as io:
        link = Link(
            io,
            Access.parse("amqp://guest:guest@127.0.0.1"),
            purpose="test",
            opened=told.opened.append,
            lost=lambda reason, wait: told.lost.append((reason, wait)),
            refused=told.refused.append,
        )
        for _ in range(6):
            io.call(lambda: link._again("down"))
        wait_until(lambda: len(told.lost) == 6)

    assert [wait for _, wait in told.lost] == [0.25, 0.75, 2.25, 6.75, 15.0, 15.0]
    assert chosen[0] == (FIRST_RECONNECT_SECONDS, 0.75)
    assert LONGEST_RECONNECT_SECONDS == 15.0


@pytest.mark.usefixtures("quick")
def test_a_connection_opens_though_no_thread_can_look_its_host_up(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12.0 and 3.12.1 start no thread once the process has begun to exit."""

    def start(_timer: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("threading.Timer.start", start)
    # No name server is asked for a name that cannot be one.
    nowhere = broker_url.replace(f"@{urlsplit(broker_url).hostname}", f"@{'a' * 64}")
    with linked([nowhere, broker_url]) as told:
        wait_until(lambda: told.opened)

    assert len(told.lost) == 1


@pytest.mark.usefixtures("quick")
def test_only_a_healthy_session_resets_the_reconnect_wait(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    with between(broker_url) as line, linked(line.url) as told:
        for session in range(1, 4):
            wait_until(lambda count=session: len(told.opened) == count)  # type: ignore[misc]  # bound early
            line.cut()
        wait_until(lambda: len(told.opened) == 4)
        told.link._healthy = 0.0
        line.cut()
        wait_until(lambda: len(told.opened) == 5)

    # The link was made before the waits were shortened for it.
    assert [round(wait, 2) for _, wait in told.lost] == [0.01, 0.03, 0.05, 0.01]


@pytest.mark.usefixtures("quick")
def test_several_hosts_are_tried_in_turn(broker_url: str) -> None:
    with linked([gone().replace("%2F", broker_url.rpartition("/")[2]), broker_url]) as told:
        wait_until(lambda: told.opened)

    assert len(told.lost) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [(("guest:guest", "guest:wrong-pass"), "user name or password"), (("/rmq", "/no-rmq"), "virtual host")],
)
def test_a_permanent_refusal_is_reported_at_once(broker_url: str, change: tuple[str, str], words: str) -> None:
    wrong = broker_url.replace(*change) if change[0] in broker_url else broker_url + "-no"
    with linked(wrong) as told:
        wait_until(lambda: told.refused)

    (error,) = told.refused
    assert isinstance(error, BrokerRefused)
    assert words in str(error)
    assert "wrong-pass" not in f"{error!r} {error}"
    assert told.lost == []


@pytest.mark.usefixtures("quick")
def test_a_user_who_has_no_rights_for_some_seconds_is_tried_again(vhost: Vhost) -> None:
    management, name = vhost.management, vhost.name
    with linked(vhost.url) as told:
        wait_until(lambda: told.opened)
        management.delete_vhost(name)
        wait_until(
            lambda: len(told.lost) > MOST_VHOST_REFUSALS + 2 or told.refused, what="it is refused again and again"
        )
        management.create_vhost(name)
        wait_until(lambda: len(told.opened) == 2 or told.refused, what="it is connected")

    assert told.refused == []


@pytest.mark.usefixtures("quick")
def test_a_virtual_host_that_is_refused_for_long_is_reported(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "VHOST_DELETED_SECONDS", 0.5)
    with linked(vhost.url) as told:
        wait_until(lambda: told.opened)
        vhost.management.delete_vhost(vhost.name)
        wait_until(lambda: told.refused, what="it is reported")

    assert "the virtual host does not exist" in str(told.refused[0])


@contextmanager
def ending(*, reset: bool) -> Iterator[str]:
    """A server that ends each connection after the client's first bytes, by a reset or by a close."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            while True:
                with server.accept()[0] as client:
                    if not client.recv(8):
                        return
                    if reset:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        pool.submit(serve)
        port = server.getsockname()[1]
        try:
            yield f"amqp://guest:guest@127.0.0.1:{port}/%2F"
        finally:
            socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.usefixtures("quick")
def test_a_broker_that_resets_connections_is_retried() -> None:
    with ending(reset=True) as url, linked(url) as told:
        wait_until(lambda: told.refused or len(told.lost) >= 3)

    assert told.refused == []


@contextmanager
def dying(url: str, step: int) -> Iterator[str]:
    """A server that answers as the broker does, and is killed at this step of each handshake."""
    broker = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def serve() -> None:
            while True:
                with server.accept()[0] as client, socket.create_connection((broker.hostname, broker.port)) as real:
                    for _ in range(step):
                        said = client.recv(4096)
                        if not said:
                            return
                        real.sendall(said)
                        client.sendall(real.recv(4096))
                    client.recv(4096)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        pool.submit(serve)
        port = server.getsockname()[1]
        yield broker._replace(netloc=f"guest:guest@127.0.0.1:{port}").geturl()

        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize("step", [1, 2], ids=["after the password", "after the virtual host"])
@pytest.mark.usefixtures("quick")
def test_a_broker_that_dies_while_a_first_connection_is_opened_is_retried(broker_url: str, step: int) -> None:
    with dying(broker_url, step) as url, linked(url) as told:
        wait_until(lambda: told.refused or len(told.lost) >= 3)

    assert told.refused == []
    assert {reason for reason, _ in told.lost} == {"it closed the connection"}


def test_a_server_without_amqp_is_refused() -> None:
    with ending(reset=False) as url, linked(url) as told:
        wait_until(lambda: told.refused)

    assert "without an answer in AMQP 0-9-1" in str(told.refused[0])


def test_a_proxy_without_a_broker_behind_it_is_an_outage_to_who_looks() -> None:
    """The operator was sent into the settings: "The broker refuses this project: correct RMQ_RETRY['URL']"."""
    refused = pytest.raises(BrokerUnreachable)
    with ending(reset=False) as url, refused as raised, Session(Access.parse(url)) as session:
        session.channel()

    assert "without an answer in AMQP 0-9-1" in str(raised.value)


@pytest.mark.usefixtures("quick")
def test_a_refusal_after_a_good_session_is_retried(broker_url: str) -> None:
    password = ["guest"]
    url = broker_url.replace("guest:guest", "guest")
    with between(url) as line, linked(line.url, password=lambda: password[0]) as told:
        wait_until(lambda: told.opened)
        password[0] = "rotated-too-early"
        line.cut()
        wait_until(lambda: len(told.lost) >= 2)
        password[0] = "guest"
        wait_until(lambda: len(told.opened) == 2)

    assert told.refused == []
    assert told.lost[1][0] == "it refused the user name or password"


@pytest.mark.usefixtures("quick")
def test_a_failing_credentials_provider_is_called_again(broker_url: str) -> None:
    asked = itertools.count(1)

    def ask() -> str:
        # The first question comes when the settings are read, the second before the first connection.
        if next(asked) == 2:
            raise OSError("vault is sealed")
        return "guest"

    with linked(broker_url.replace("guest:guest", "guest"), password=ask) as told:
        wait_until(lambda: told.opened)

    assert [reason for reason, _ in told.lost] == ["OSError: vault is sealed"]


def test_the_embedded_broker_is_refused_without_reconnecting() -> None:
    with linked("embedded://") as told:
        wait_until(lambda: told.refused)

    assert isinstance(told.refused[0], ConfigurationError)
    assert told.lost == []


def test_closing_while_dialling_leaves_nothing_open(broker_url: str) -> None:
    with between(broker_url) as line:
        line.silence()
        with linked(line.url) as told:
            wait_until(lambda: line.accepted)

        assert (told.opened, told.lost) == ([], [])


def test_closing_and_opening_again_while_dialling_makes_one_connection(broker_url: str, vhost: Vhost) -> None:
    with linked(broker_url, opening=False) as told:
        io = told.link._io

        def hesitate() -> None:
            told.link.open()
            told.link.close(lambda: None)
            told.link.open()

        io.call(hesitate)
        wait_until(lambda: told.opened)
        wait_until(lambda: len(vhost.connections()) == 1)

    assert told.lost == []


@pytest.mark.slow
@pytest.mark.nightly
def test_a_broker_with_small_frames_is_refused_with_the_setting_to_change(make_node: Callable[..., Node]) -> None:
    node = make_node(conf=("frame_max = 65536",))
    with linked(node.url()) as told:
        wait_until(lambda: told.refused)
        assert told.opened == []
    with publishing(node.url()) as publisher, pytest.raises(MessageUnsent, match="Set frame_max = 131072"):
        publisher.publish(to("q"))

    (error,) = told.refused
    assert isinstance(error, BrokerUnfit)
    assert "takes frames of 65536 bytes" in str(error)


def test_a_link_that_a_mute_broker_has_not_answered_yet_closes_quietly(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with linked(f"amqp://guest:guest@127.0.0.1:{server.getsockname()[1]}/%2F") as told:
            asked = server.accept()[0]
            assert asked.recv(8) == b"AMQP\x00\x00\x09\x01"
        asked.close()

    assert (told.opened, told.refused) == ([], [])
    assert [one.getMessage() for one in caplog.records if one.levelname == "CRITICAL"] == []
