"""The tests' own tools: what they start they end, and what they cannot have they say."""

import errno
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import MakeNode
from tests.tooling import databases, lanes, machine, services
from tests.tooling.guard import alive
from tests.tooling.management import Management
from tests.tooling.node import Node
from tests.tooling.services import MARK, Broker
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[1]
ONE_TEST = "def test_it(amqp): amqp.queue_declare('q', durable=True)\n"
A_LEAK = "def test_it(broker, services): broker.management.create_vhost(services.unique())\n"
A_STUCK_TEST = """
import os, threading
def test_it(private_node):
    open({told!r}, "w").write(str(private_node.pid))
    threading.Event().wait(60)
"""


def run_pytest(folder: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_made_up.py").write_text(text)
    return subprocess.run(command(folder), env=os.environ | env, cwd=ROOT, capture_output=True, text=True, check=False)


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-c", "pyproject.toml", str(folder)]


def test_a_test_sees_only_the_queues_it_declared(vhost: Vhost, amqp: BlockingChannel) -> None:
    amqp.queue_declare("q", durable=True)

    assert set(vhost.queues()) == {"q"}


@pytest.mark.contract
def test_the_broker_has_the_requested_version(vhost: Vhost, broker_version: str | None) -> None:
    assert vhost.version.startswith(broker_version or "")


def test_a_wait_reports_its_last_answer_at_the_deadline() -> None:
    with pytest.raises(AssertionError, match=r"Not within 0\.05 s: rain; the last answer was 0"):
        wait_until(lambda: 0, 0.05, what="rain")


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.nightly
def test_a_killed_node_restarts_with_its_durable_queues(private_broker: Vhost, private_node: Node) -> None:
    with pika.BlockingConnection(pika.URLParameters(private_broker.url)) as connection:
        connection.channel().queue_declare("kept", durable=True)

    private_node.flush()
    private_node.kill()
    private_node.start()

    assert "kept" in private_broker.queues()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_memory_alarm_blocks_publishing_connections(private_broker: Vhost, private_node: Node) -> None:
    blocked: list[object] = []
    with pika.BlockingConnection(pika.URLParameters(private_broker.url)) as connection:
        connection.add_on_connection_blocked_callback(lambda *_: blocked.append(True))
        private_node.raise_alarm()
        connection.channel().basic_publish("", "nowhere", b"")

        def is_blocked() -> bool:
            connection.process_data_events(0)
            return bool(blocked)

        wait_until(is_blocked, what="connection.blocked")

        private_node.clear_alarm()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_paused_node_does_not_answer_until_it_is_resumed(private_node: Node) -> None:
    private_node.pause()
    silent = not private_node.answers()
    private_node.resume()

    assert silent
    assert private_node.answers()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_node_accepts_its_own_settings(make_node: MakeNode) -> None:
    node = make_node(conf=("max_message_size = 7",))

    with pika.BlockingConnection(pika.URLParameters(node.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="larger than configured max size 7"):
            channel.basic_publish("", "nowhere", b"eight   ")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("private_node")
def test_a_killed_test_run_leaves_no_node_behind(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_made_up.py").write_text(A_STUCK_TEST.format(told=str(told)))
    with subprocess.Popen(command(tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL) as run:
        wait_until(lambda: told.exists() and told.read_text(), 60, what="the node runs")
        pid = int(told.read_text())
        run.send_signal(signal.SIGKILL)

    wait_until(lambda: not alive(pid), 30, what="the node ends")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("broker")
def test_a_test_run_that_leaves_a_virtual_host_behind_fails(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, A_LEAK)

    assert run.returncode == 1, run.stdout + run.stderr
    assert "LEFT BEHIND: the virtual host test-rmq" in run.stdout


def test_a_missing_service_is_reported_in_the_summary(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, ONE_TEST, RMQ_TEST_URL="amqp://127.0.0.1:1/%2F", RMQ_TEST_REQUIRE="")

    assert run.returncode == 0, run.stdout + run.stderr
    assert "NOT TESTED (1)" in run.stdout
    assert "test_made_up.py::test_it" in run.stdout


def test_a_missing_service_fails_where_all_are_required(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, ONE_TEST, RMQ_TEST_URL="amqp://127.0.0.1:1/%2F", RMQ_TEST_REQUIRE="all")

    assert run.returncode == 1, run.stdout + run.stderr
    assert "RMQ_TEST_REQUIRE=all" in run.stdout


def test_a_terminal_test_is_skipped_without_a_pseudo_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(errno.ENOENT, "out of pty devices")

    monkeypatch.setattr(os, "openpty", refuse)
    monkeypatch.setenv("RMQ_TEST_REQUIRE", "")

    with pytest.raises(pytest.skip.Exception, match=r"gives no pseudo-terminal \(out of pty devices\)"):
        machine.open_terminal()


@pytest.mark.parametrize("filters", [True, False])
def test_an_archive_is_unpacked_with_and_without_extraction_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, filters: bool
) -> None:
    if not filters and hasattr(tarfile, "data_filter"):
        trusted = staticmethod(tarfile.fully_trusted_filter)  # an old Python's way, of which a new one warns
        monkeypatch.setattr(tarfile.TarFile, "extraction_filter", trusted)
        monkeypatch.delattr(tarfile, "data_filter")
    (tmp_path / "kept").write_text("text")
    with tarfile.open(tmp_path / "a.tar", "w") as files:
        files.add(tmp_path / "kept", "kept")
    machine.unpack(tmp_path / "a.tar", tmp_path / "out")

    assert (tmp_path / "out" / "kept").read_text() == "text"


@pytest.mark.parametrize(("required", "code"), [("", 0), ("all", 1)])
def test_a_missing_database_is_named_and_an_error_if_all_are_required(
    monkeypatch: pytest.MonkeyPatch, required: str, code: int
) -> None:
    monkeypatch.setattr(databases, "find_spec", lambda driver: driver)  # the other lanes have none
    monkeypatch.setenv("RMQ_TEST_POSTGRES", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("RMQ_TEST_REQUIRE", required)
    result = lanes.run_database(databases.POSTGRESQL, [])

    assert result.code == code
    assert result.summary == "NOT RUN: nothing answers at 127.0.0.1:1 (Connection refused). Set RMQ_TEST_POSTGRES."


def test_the_last_lines_name_what_was_missing_with_the_number_of_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "RabbitMQ is not on this machine."
    test = f"import pytest\n@pytest.mark.parametrize('n', range(7))\ndef test_it(n): pytest.skip({MARK + why!r})\n"
    (tmp_path / "test_skipped.py").write_text(test)
    monkeypatch.setattr(lanes, "ALL", ("-n", "0", "-p", "tests.tooling.plugin"))
    result = lanes.run_tests("main", sys.executable, [str(tmp_path / "test_skipped.py")])
    capsys.readouterr()

    assert (lanes.shown([result]), result.lacks) == (0, (f"not run (7): {why}",))
    assert capsys.readouterr().out.endswith(f"!!! not run (7): {why}\n")


def test_a_management_api_of_another_broker_is_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_TEST_MANAGEMENT", broker.management.url)
    services.of_another_broker.cache_clear()
    assert services.named_broker(f"{broker.base}/%2F").version == broker.version

    services.of_another_broker.cache_clear()
    monkeypatch.setattr(Management, "create_vhost", lambda *_: None)
    said = (
        r"^The management API at \S+ belongs to another broker than the one at \S+: .+ Set RMQ_TEST_URL and RMQ_TEST_"
    )
    with pytest.raises(services.Unavailable, match=said):
        services.named_broker(f"{broker.base}/%2F")
    services.of_another_broker.cache_clear()


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "find_spec", lambda _: None)

    assert databases.KINDS[databases.MARIADB].lack() == (
        "PyMySQL is not installed. Run `pip install --group databases`."
    )


def test_each_database_test_is_in_a_file_with_the_database_mark(request: pytest.FixtureRequest) -> None:
    """The lanes of databases read these files only."""
    found = {str(one.path.relative_to(ROOT)) for one in request.session.items if one.get_closest_marker("database")}

    assert found - set(lanes.marked("database")) == set()
