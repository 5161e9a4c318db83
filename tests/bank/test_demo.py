"""``make demo`` itself, to the end of its summary; and that nothing of it stays."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.bank.bank import MANAGE, ROOT
from tests.tooling.management import Management
from tests.tooling.node import free_ports
from tests.tooling.services import Broker
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow


def demo(broker: Broker, folder: Path, *words: str) -> "subprocess.Popen[str]":
    """The demo in a virtual host beside those of the tests, with its files in a folder of ours."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RMQ_", "BANK_", "DJANGO_"))}
    told = {
        "RMQ_URL": broker.base,
        "BANK_MANAGEMENT_URL": broker.management.url,
        "TMPDIR": str(folder),
        "BANK_CASH_WAIT": "1",
        "BANK_CHARGE_WAIT": "1",
    }
    command = [sys.executable, str(MANAGE), "demo", *words]
    return subprocess.Popen(
        command, env=clean | told, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def is_left(management: Management, said: str) -> bool:
    """Whether the virtual host that the demo told of is still there."""
    found = re.search(r"bank-demo-\w+", said)
    assert found, said
    return found[0] in management.vhosts()


def test_the_demo_tells_its_story_and_leaves_nothing(broker: Broker, tmp_path: Path) -> None:
    with demo(broker, tmp_path, "--once") as run:
        said, _ = run.communicate(timeout=120)

    assert run.returncode == 0, said
    assert "handled    6 " in said
    assert "waiting    1 " in said
    assert "parked     3 " in said
    assert "parking-queue: retries exhausted: Gave up after 4 attempts: AboveLimit" in said
    assert not is_left(broker.management, said)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_serves_the_admin_until_ctrl_c(broker: Broker, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with demo(broker, tmp_path, "--port", str(port)) as run:
        assert run.stdout is not None
        said = "".join(iter(run.stdout.readline, "Ctrl-C ends everything.\n"))
        page = wait_until(lambda: _page(f"http://127.0.0.1:{port}/admin/login/"), 30, what="the admin answers")
        run.send_signal(signal.SIGINT)
        said += run.communicate(timeout=60)[0]

    assert "Log in" in page
    assert run.returncode == 0, said
    assert "The bank closes." in said
    assert not is_left(broker.management, said)
    assert _page(f"http://127.0.0.1:{port}/admin/login/") == ""


def _page(url: str) -> str:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - the demo's own admin
            return str(answer.read().decode())
    except OSError:
        return ""
