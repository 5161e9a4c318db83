"""Behaviour that only a process shows: a reader that closes the pipe, and Ctrl-C."""

import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, handler
from django_rmq_retry.models import (
    AuditHead,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
)
from tests.operators.made import record, requeue_run
from tests.shop.running import ROOT, Shop
from tests.tooling.filled import Own
from tests.tooling.owned import routed
from tests.tooling.waiting import wait_until

QUEUE = "shop.orders"
MANY = 3000
"""Of rows: more than any pipe holds."""


@pytest.fixture
def shop(own_database: Own, settings: Any, tmp_path: Path) -> Shop:
    """The shop with the test's database, and no broker."""
    routed(settings)
    return Shop(url="amqp://guest:guest@127.0.0.1:1/", notes=tmp_path / "notes", records=own_database.environment)


@pytest.fixture
def many(shop: Shop) -> None:  # noqa: ARG001 - its database
    """Of messages and of acts."""
    one = record(queue=QUEUE)
    copied = {name: value for name, value in vars(one).items() if not name.startswith("_") and name != "id"}
    ParkedMessage.objects.bulk_create(
        ParkedMessage(**{**copied, "identity": f"many:{number}", "copy": f"{number:064x}"}) for number in range(MANY)
    )
    acts = {"at": timezone.now(), "actor_name": "ann", "action": "discard", "previous": "", "seal": ""}
    OperatorAction.objects.bulk_create(OperatorAction(number=number + 1, **acts) for number in range(MANY))
    AuditHead.objects.create(pk=1, number=MANY)


def first_line(shop: Shop, *words: str) -> tuple[int, int, str]:
    """``… | head -1``: how the command ended, how many lines head has printed, and what the command said."""
    command = subprocess.Popen(
        shop.command(words), env=shop.environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    head = subprocess.run(["head", "-1"], stdin=command.stdout, capture_output=True, timeout=60, check=True)
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    said = command.stderr.read().decode()
    command.stderr.close()
    return command.wait(timeout=60), head.stdout.count(b"\n"), said


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "commands",
    [
        ("rmq_parked list", "rmq_parked export --all --csv", "rmq_audit export"),
        pytest.param(
            (
                *("rmq_parked list --json", "rmq_parked list --jsonl", "rmq_parked export --all"),
                *("rmq_audit list", "rmq_audit export --csv"),
            ),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_pipe_closed_by_head_ends_the_command_silently(shop: Shop, commands: tuple[str, ...]) -> None:
    for words in commands:
        limit = ("--limit", str(MANY)) if " list" in words and "jsonl" not in words else ()

        assert first_line(shop, *words.split(), *limit) == (0, 1, ""), words


def test_a_closed_reader_changes_no_exit_code(shop: Shop) -> None:
    run = RequeueRun.objects.create(created_at=timezone.now(), by="ann", total=2, state=RunState.STOPPED)
    command = subprocess.Popen(
        shop.command(("rmq_parked", "requeue-run", str(run.pk))),
        # What it says is written as it ends, when its code is known.
        env=shop.environment(PYTHONUNBUFFERED=""),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    said = command.stderr.read()
    command.stderr.close()

    assert (command.wait(timeout=60), said) == (5, b"")


def test_a_requeue_interrupted_by_ctrl_c_can_be_resumed(
    shop: Shop, broker_url: str, settings: Any, amqp: BlockingChannel
) -> None:
    @handler(QUEUE)
    def order(message: Delivery) -> None:
        """Nothing."""

    settings.RMQ_RETRY = {"URL": broker_url}
    shop.url = broker_url
    amqp.queue_declare(QUEUE, durable=True)
    now = timezone.now()
    ids = [record(queue=QUEUE, parked_at=now - timedelta(minutes=5)).pk for _ in range(20)]
    run = requeue_run(ids, rate=8)
    with shop.running("rmq_parked", "requeue-run", str(run.pk)) as running:
        wait_until(lambda: _depth(amqp) >= 2, what="the first copies")
        running.signal(signal.SIGINT)
        code = running.code()
    left = RequeueItem.objects.filter(run=run, state=ItemState.PENDING).count()

    assert (code, running.text) == (130, "")
    assert running.errors.endswith(
        f"Requeue run {run.pk} resumes with the next consumer, or with rmq_parked requeue-run {run.pk}. "
        f"To stop it: rmq_parked requeue-run {run.pk} --stop\n"
    )
    assert (RequeueRun.objects.get().state, left > 0) == (RunState.RUNNING, True)
    assert RequeueItem.objects.filter(run=run).exclude(state__in=(ItemState.PENDING, ItemState.SENT)).count() == 0
    assert _depth(amqp) == 20 - left

    resumed = shop.run("rmq_parked", "requeue-run", str(run.pk), "--wait", "0")

    assert (resumed.returncode, resumed.stdout) == (
        0,
        f"Requeue run {run.pk} (waiting for outcomes): 20 waiting for outcome.\n",
    )
    assert len({amqp.basic_get(QUEUE, auto_ack=True)[1].message_id for _ in range(20)}) == 20  # type: ignore[union-attr]
    assert _depth(amqp) == 0


def _depth(amqp: BlockingChannel) -> int:
    return int(amqp.queue_declare(QUEUE, passive=True).method.message_count)
