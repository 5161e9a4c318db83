"""The runbook: each symptom is produced, and the page shows what the commands then print."""

import json
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest

from tests.runbook.night import PROMPT, Night, steady
from tests.tooling import databases
from tests.tooling.filled import VARIABLE, Own
from tests.tooling.node import free_ports
from tests.tooling.pages import FENCE, page
from tests.tooling.services import Unavailable, go_without

PAGE = page("runbook.md")
SECTION = re.compile(r"^## (?P<title>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SHOWN = ("console", "text")
GAP, OVER = "…", "over"
Steps = Generator[None, None, None]
SCENES: dict[str, Callable[[Night], Steps]] = {}


def scene(title: str) -> Callable[[Callable[[Night], Steps]], Callable[[Night], Steps]]:
    """Register the steps of a symptom. At each ``yield`` the next block of its section is tried."""

    def register(steps: Callable[[Night], Steps]) -> Callable[[Night], Steps]:
        SCENES[title] = steps
        return steps

    return register


@pytest.fixture
def night(tmp_path: Path, own_database: Own) -> Night:
    (port,) = free_ports(1)
    return Night(tmp_path, own_database.environment, port)


@scene("Payments are parked")
def parked(night: Night) -> Steps:
    night.deploy("charge")
    with night.broker():
        night.manage("rmq_declare")
        night.down()
        night.call("send('charge', 1, 2, 3)")
        with night.consumer():
            night.logs("event=park", times=3)
            night.shows("parked 3", "rmq_status")
            yield
            yield
            night.up()
            yield


@scene("A queue grows")
def grows(night: Night) -> Steps:
    night.deploy("charge")
    with night.broker():
        night.manage("rmq_declare")
        night.call("send('charge', 1, 2, 3)")
        yield


@scene("A consumer restarts again and again")
def restarts(night: Night) -> Steps:
    night.deploy("charge")
    with night.broker():
        with night.consumer():
            night.logs("event=failed")
        yield


@scene("The broker was down")
def without_broker(night: Night) -> Steps:
    night.deploy("charge")
    with ExitStack() as consumer:
        with night.broker():
            night.manage("rmq_declare")
            consumer.enter_context(night.consumer())
            night.logs("event=connected")
        night.logs("event=disconnected")
        night.call("send('charge', 1, 2)")
        yield
        with night.broker():
            night.logs("event=ack", times=2)
            # The worker's row says that it is connected with its next heartbeat.
            night.shows("OK", "rmq_status", "--check")
            yield


@scene("A queue was renamed")
def renamed(night: Night) -> Steps:
    night.deploy("charge")
    with night.broker():
        night.manage("rmq_declare")
        night.call("send('charge', 1, 2, 3)")
        night.deploy("collect")
        night.manage("rmq_declare")
        yield
        yield


@scene("A queue is paused, or its breaker is open")
def paused(night: Night) -> Steps:
    night.deploy("charge", "refund")
    with night.broker():
        night.manage("rmq_declare")
        night.manage("rmq_queue", "pause", "payments.charge", "--for", "2h", "--reason", "the bank is closed")
        night.down()
        with night.consumer():
            night.call("send('refund', 1)")
            night.shows("open", "rmq_queue", "list")
            yield
            yield


@scene("A key is blocked")
def blocked(night: Night) -> Steps:
    night.deploy("transfer")
    with night.broker():
        night.manage("rmq_declare")
        night.down()
        with night.consumer():
            night.call("send('transfer', 1, 2, 3, account='ACC-7')")
            night.shows("Blocked 1 key", "rmq_status")
            night.shows("PAY-1", "rmq_parked", "list")
            night.shows("\t2", "rmq_blocked", "list")
            yield
            yield
            night.up()
            yield


@scene("The outbox grows")
def outbox(night: Night) -> Steps:
    night.deploy("charge")
    with night.broker():
        night.manage("rmq_declare")
        night.call("send_to('audit', 'paid', 1)")
        night.call("refused_often()")
        with night.consumer():
            night.logs("event=outbox_failed")
            yield
            yield
            night.deploy("charge", "announce")
            night.manage("rmq_declare")
            yield


@scene("The database was down")
def without_database(night: Night) -> Steps:
    night.deploy("charge", **away())
    with night.broker():
        night.manage("rmq_declare")
        with night.consumer():
            night.logs("event=undrained")
            yield


@scene("A strict-order queue is stuck")
def halted(night: Night) -> Steps:
    night.deploy("post")
    with night.broker():
        night.manage("rmq_declare")
        night.down()
        with night.consumer():
            night.call("send('post', 1, 2)")
            night.shows("halted since", "rmq_status")
            yield
            night.up()
            night.logs("event=resumed")


@scene("Quarantine holds messages")
def quarantine(night: Night) -> Steps:
    night.deploy("charge")
    with night.broker():
        night.manage("rmq_declare")
        night.call("send('charge', 1, kills=True)")
        with night.consumer("--processes", "2"):
            night.logs("event=ended", times=4)
        yield
        with night.consumer("--processes", "2"):
            night.logs("event=park", times=1)
            night.shows("worker_stopped", "rmq_parked", "list", "--json")
            yield


def away() -> dict[str, str]:
    """Return the variable of a database that refuses connections."""
    kind = databases.KINDS[databases.POSTGRESQL]
    if why := kind.undriven():
        go_without(Unavailable(None, why))
    return {VARIABLE: json.dumps({**kind.settings(), "HOST": "127.0.0.1", "PORT": "1"})}


def sections() -> dict[str, str]:
    return {found["title"]: found["text"] for found in SECTION.finditer(PAGE.read_text())}


def shown(text: str) -> list[str]:
    """The blocks of a section that are compared."""
    return [dedent(found["text"]) for found in FENCE.finditer(text) if found["kind"] in SHOWN]


def printed(night: Night, block: str) -> list[str]:
    """Return the commands of a block with what they print now, or the consumer's log for a block without a command."""
    if not block.startswith(PROMPT):
        return night.log.read_text().splitlines()
    typed = (line for line in block.splitlines() if line.startswith(PROMPT))
    return [line for command in typed for line in (command, *night.types(command.removeprefix(PROMPT)))]


def missing(block: str, have: list[str]) -> list[str]:
    """Return the lines of a block that were not printed in this order. Between two of them others may be left out only
    where the block has a gap, or in a log.
    """
    lost: list[str] = []
    rest = [steady(line) for line in have]
    gap = not block.startswith(PROMPT)
    for line in map(steady, block.splitlines()):
        if line == GAP:
            gap = True
        elif line in (rest if gap else rest[:1]):
            rest = rest[rest.index(line) + 1 :]
            gap = not block.startswith(PROMPT)
        else:
            lost.append(line)
    return lost if lost or gap else rest


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.django_db
@pytest.mark.parametrize("title", SCENES)
def test_each_symptom_looks_as_the_runbook_shows(title: str, night: Night) -> None:
    steps = SCENES[title](night)
    with ExitStack() as ended:
        ended.callback(steps.close)
        for number, block in enumerate(shown(sections()[title]), 1):
            assert next(steps, OVER) != OVER, f"The scene has no step for block {number} of {title!r}."
            now = printed(night, block)
            assert missing(block, now) == [], "\n".join(["The page differs from:", *now])
        assert next(steps, OVER) == OVER, f"The page has no block for a step of {title!r}."


NOT_PRODUCED = {
    "Retries do not return after an update of RabbitMQ": "only a rolling update of a large cluster produces it",
    "A consumer is stuck": "it lasts too long: tests/health and test_heartbeat have its parts",
    "Retries are overdue": "it lasts too long: tests/health has its facts and its words",
    "Requeued messages have no outcome": "it lasts too long: tests/health has its facts and its words",
}
"""Symptoms whose section has no scene, each with its reason."""


def test_every_symptom_of_the_runbook_is_produced() -> None:
    assert set(sections()) - NOT_PRODUCED.keys() == set(SCENES)
