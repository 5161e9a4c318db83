"""Database servers of the tests' own: what they start is gone afterwards, however it ends."""

import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.tooling import databases, lanes, servers
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[1]
WAITS = """
import signal, sys
from tests.tooling import lanes, servers
signal.signal(signal.SIGTERM, lanes.interrupted)
with servers.private(sys.argv[1]) as url:
    print(url, flush=True)
    signal.pause()
"""


@pytest.fixture(params=list(servers.SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if not servers.SERVERS[found].programs:
        pytest.skip(f"{servers.SERVERS[found].package} is not installed")
    return found


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing is said of databases, and all drivers are there."""
    for name in ("RMQ_TEST_DATABASES", *(known.variable for known in databases.KINDS.values())):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(databases, "find_spec", lambda driver: driver)


def answers(url: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), 2):
        return True
    return False


def left_by(kind: str, pid: int) -> list[Path]:
    """Its folders, once another one has been made."""
    servers.folder_for(servers.SERVERS[kind]).cleanup()
    return list(Path(tempfile.gettempdir()).glob(f"rmqdb-{pid}-*"))


@pytest.mark.nightly
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_test_server_ends_with_its_parent_process(kind: str, sign: signal.Signals) -> None:
    command = [sys.executable, "-c", WAITS, kind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert answers(url)
        process.send_signal(sign)
        code = process.wait(30)

    assert code == (128 + signal.SIGTERM if sign == signal.SIGTERM else -signal.SIGKILL)
    wait_until(lambda: not answers(url), what="the server ends")
    wait_until(lambda: not left_by(kind, process.pid), what="the next one has cleared up")


def test_a_running_server_is_used_and_no_other_is_started(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases.Kind, "_silence", lambda _: "")
    monkeypatch.setattr(databases, "refusal", lambda _url, _driver: "")
    assert not servers.wanted(kind)
    monkeypatch.setattr(databases, "refusal", lambda _url, _driver: "no such role")
    assert servers.wanted(kind)
    monkeypatch.setattr(databases.Kind, "_silence", lambda _: "nothing answers")
    assert servers.wanted(kind)
    monkeypatch.setattr(databases, "find_spec", lambda _: None)

    assert not servers.wanted(kind)


@pytest.mark.nightly
def test_a_server_that_refuses_the_login_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = databases.KINDS[kind]
    with servers.private(kind) as url:
        refused = url.replace("//rmq_retry@", "//visitor@").replace("//root@", "//visitor@")
        monkeypatch.setenv(known.variable, refused)
        monkeypatch.setenv("RMQ_TEST_REQUIRE", "")
        result = lanes.run_database(kind, ["--collect-only"])
        monkeypatch.setenv(known.variable, url)
        welcome = known.lack()

    told = "NOT RUN: the server on 127.0.0.1 answers, but the tests cannot make databases there as 'visitor' ("
    assert result.summary.startswith(told)
    assert result.summary.endswith(f"). Set {known.variable}.")
    assert result.code == 0
    assert welcome == ""
