"""``make demo`` on the embedded broker: it shows what it promises, and none of its processes outlives it."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bank.bank import ROOT
from tests.bank.showing import OPENED, PATIENCE, Demo, page, showing
from tests.tooling.machine import open_terminal
from tests.tooling.node import free_ports
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def address(demo: Demo) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/admin/", demo.said)
    assert found, demo.said
    return found[0]


def test_two_demos_at_once_pass_their_checks_and_leave_nothing(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    check = ("--check", "--port", port, "--within", str(PATIENCE))
    with showing(tmp_path / "one", *check) as one, showing(tmp_path / "two", *check) as two:
        codes = [one.await_code(), two.await_code()]

    assert codes == [0, 0], one.said + two.said
    assert address(one) != address(two)
    for demo in (one, two):
        assert "4 payments were handled: card, transfer and cash." in demo.said
        assert "10 messages were parked, each with its reason" in demo.said
        assert "3 payments failed while the other bank was down, were retried, and paid as it was back." in demo.said
        requeued = "4 parked messages of one cause were requeued by requeue run 1 and paid; their records are closed."
        assert requeued in demo.said
        assert "Each of the 11 payments is in the ledger once" in demo.said
        assert demo.children() == {}
        assert list(demo.folder.iterdir()) == []


def test_a_failed_check_of_the_demo_states_what_is_missing(tmp_path: Path) -> None:
    with showing(tmp_path / "demo", "--check", "--within", "10", BANK_CHARGE_WAIT="60") as demo:
        code = demo.await_code()

    assert code == 1
    assert re.search(r"not ok +In time there was not: ", demo.said), demo.said
    assert "The check failed after" in demo.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    with showing(tmp_path / "demo", "--port", str(free_ports(1)[0])) as demo:
        demo.await_said(OPENED)
        login = page(f"{address(demo)}login/")
        words = sorted(line.split()[3] for line in demo.children().values())
        demo.await_said("paid")
        demo.process.send_signal(number)
        code = demo.await_code()

    assert "Log in" in login
    assert words == ["rmq_broker", "rmq_consume", "runserver"]
    assert code == 0, demo.said
    assert "The bank has closed: " in demo.said
    assert "Traceback" not in demo.said
    assert demo.children() == {}
    assert list(demo.folder.iterdir()) == []
    assert page(f"{address(demo)}login/") == ""


def test_a_closed_terminal_ends_the_demo(tmp_path: Path) -> None:
    ours, its = open_terminal()
    # The first process of a session with this controlling terminal, like a login shell.
    begin = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    )
    words = [sys.executable, "-m", "testproject.demo", "--port", str(free_ports(1)[0])]
    folder = tmp_path / "demo"
    folder.mkdir()
    environment = os.environ | {"TMPDIR": str(folder), "RMQ_URL": ""}
    child = subprocess.Popen(
        [sys.executable, "-c", begin, *words], stdin=its, stdout=its, stderr=its, env=environment, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    os.close(its)
    said = b""
    while b" paid " not in said:
        assert select.select([ours], [], [], PATIENCE)[0], said
        said += os.read(ours, 4096)
    os.close(ours)
    code = child.wait(PATIENCE)

    assert code == 0
    assert list(folder.iterdir()) == []


def test_a_demo_states_why_it_uses_another_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with showing(tmp_path / "demo", "--port", str(port)) as demo:
            demo.await_said(OPENED)

            assert f"Port {port} is in use by another program, so the admin is on port " in demo.said
            assert f":{port}/" not in demo.said


def test_a_killed_demo_leaves_a_folder_and_no_process(tmp_path: Path) -> None:
    with showing(tmp_path / "demo", "--port", str(free_ports(1)[0])) as demo:
        demo.await_said("paid")
        running = demo.children()
        demo.process.kill()
        demo.await_code()
        wait_until(lambda: demo.children() == {}, PATIENCE, what="all its processes have ended")

    assert len(running) == 3
    (left,) = demo.folder.iterdir()
    assert left.name.startswith("bank-demo-")
    assert not re.search(r"Traceback|Error", (left / "rmq_consume.log").read_text())


def test_a_demo_that_loses_its_consumer_reports_it_and_ends(tmp_path: Path) -> None:
    with showing(tmp_path / "demo", "--port", str(free_ports(1)[0])) as demo:
        demo.await_said("paid")
        os.kill(demo.pid_of("rmq_consume"), signal.SIGKILL)
        code = demo.await_code()

    assert code == 1
    assert "rmq_consume has ended by itself, with -9. It said last:" in demo.said
    assert demo.children() == {}
    assert list(demo.folder.iterdir()) == []
