"""The tests' own tools: what they start they end, and what they cannot have they say."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling import databases, lanes, services
from tests.tooling.guard import alive
from tests.tooling.management import Management
from tests.tooling.services import MARK, Broker
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


def test_a_wait_reports_its_last_answer_at_the_deadline() -> None:
    with pytest.raises(AssertionError, match=r"Not within 0\.05 s: rain; the last answer was 0"):
        wait_until(lambda: 0, 0.05, what="rain")


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


def test_a_missing_service_fails_where_all_are_required(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, ONE_TEST, RMQ_TEST_URL="amqp://127.0.0.1:1/%2F", RMQ_TEST_REQUIRE="all")

    assert run.returncode == 1, run.stdout + run.stderr
    assert "RMQ_TEST_REQUIRE=all" in run.stdout


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


def test_each_database_test_is_in_a_file_with_the_database_mark(request: pytest.FixtureRequest) -> None:
    """The lanes of databases read these files only."""
    found = {str(one.path.relative_to(ROOT)) for one in request.session.items if one.get_closest_marker("database")}

    assert found - set(lanes.marked("database")) == set()
