"""Clients that nobody here wrote, as processes of their own, on the embedded broker."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from django_rmq_retry.embedded.wire.serving import Server
from tests.tooling.services import Unavailable, go_without

pytestmark = pytest.mark.slow
CLIENTS = Path(__file__).parent / "clients"
PATIENCE = 60


def run(*words: str, given: str = "") -> str:
    ran = subprocess.run(
        words, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE
    )

    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.mark.parametrize("library", ["aio_pika", "amqpstorm", "celery", "dramatiq", "kombu"])
def test_a_client_in_python_works_unchanged(server: Server, library: str) -> None:
    if find_spec(library) is None:
        go_without(Unavailable(None, f"{library} is not installed: pip install --group clients"))

    run(sys.executable, str(CLIENTS / f"{library}_client.py"), server.url)


def test_the_command_line_tools_in_c_work_unchanged(server: Server) -> None:
    if shutil.which("amqp-publish") is None:
        go_without(Unavailable(None, "amqp-publish is not installed: apt-get install amqp-tools"))
    url = f"--url=amqp://guest:guest@127.0.0.1:{server.port}"
    run("amqp-declare-queue", url, "-q", "tools")
    for body in ("one", "two", "three"):
        run("amqp-publish", url, "-r", "tools", "-p", "-b", body)
    got = run("amqp-get", url, "-q", "tools")
    consumed = run("amqp-consume", url, "-q", "tools", "-c", "2", "cat")
    run("amqp-delete-queue", url, "-q", "tools")

    assert (got, consumed) == ("one", "twothree")
