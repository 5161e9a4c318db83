"""Third-party clients, as processes of their own: each does the same on the embedded broker and RabbitMQ."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tooling.clients import amqplib, no_amqplib, no_tools
from tests.tooling.machine import no_semaphore
from tests.tooling.services import Unavailable, go_without

pytestmark = [pytest.mark.slow, pytest.mark.on_both(rabbitmq=pytest.mark.nightly), pytest.mark.contract]
CLIENTS = Path(__file__).parent / "clients"
PATIENCE = 90
HOW = "`make test` installs it; by hand: .venv/bin/pip install --group clients"


def run(*words: str, given: str = "") -> str:
    ran = subprocess.run(
        words, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE
    )

    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def need(lack: str | None) -> None:
    if lack:
        go_without(Unavailable(None, lack))


@pytest.mark.parametrize(
    "command",
    [
        *("pika_blocking", "aio_pika", "celery quorum", "dramatiq"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("pika_select", "amqpstorm", "kombu", "celery")),
    ],
)
def test_a_client_in_python_works_unchanged(broker_url: str, command: str) -> None:
    script, *more = command.split()
    library = script.removesuffix("_blocking").removesuffix("_select")
    need(None if find_spec(library) else f"the Python package {library} is not in {sys.prefix}. {HOW}.")
    need(no_semaphore() if library == "dramatiq" else None)

    run(sys.executable, str(CLIENTS / f"{script}_client.py"), broker_url, *more)


def test_the_command_line_tools_in_c_work_unchanged(broker_url: str) -> None:
    need(no_tools())
    url = f"--url={broker_url}"
    run("amqp-declare-queue", url, "-q", "tools")
    for body in ("one", "two", "three"):
        run("amqp-publish", url, "-r", "tools", "-p", "-b", body)
    got = run("amqp-get", url, "-q", "tools")
    consumed = run("amqp-consume", url, "-q", "tools", "-c", "2", "cat")
    run("amqp-publish", url, "-r", "tools", given="x" * 300_000)
    large = run("amqp-get", url, "-q", "tools")
    run("amqp-delete-queue", url, "-q", "tools")

    assert (got, consumed, large) == ("one", "twothree", "x" * 300_000)


@pytest.mark.parametrize("script", ["amqplib_promises.mjs", "amqplib_callbacks.cjs"])
def test_a_client_of_node_works_unchanged(broker_url: str, script: str) -> None:
    need(no_amqplib())

    run("node", str(CLIENTS / script), broker_url, str(amqplib()))
