"""SQLite as `startproject` sets it up: a command waits for its turn while another process writes."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel
from pytest_django import DjangoDbBlocker

from django_rmq_retry.models import ItemState, ParkedMessage, RequeueItem, State
from tests.operators.made import record
from tests.shop.running import Shop
from tests.tooling.databases import SQLITE
from tests.tooling.filled import VARIABLE, own_database
from tests.tooling.owned import routed

QUEUE = "shop.orders"
MANY = 60
WRITER = """
import sqlite3, sys, time
own = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
print("writes", flush=True)
while True:
    own.execute("BEGIN IMMEDIATE")
    time.sleep(0.1)
    own.execute("COMMIT")
    time.sleep(0.05)
"""
"""Holds the write lock most of the time, as a consumer with a few threads does."""


@pytest.fixture
def file(tmp_path: Path, settings: Any, django_db_blocker: DjangoDbBlocker) -> Iterator[Path]:
    """The records' database, with the test's own alias on it."""
    with django_db_blocker.unblock(), own_database(tmp_path, kind=SQLITE) as own:
        routed(settings)
        yield Path(own.settings["NAME"])


@pytest.fixture
def shop(file: Path, broker_url: str, tmp_path: Path) -> Shop:
    """The shop on this file, without OPTIONS."""
    plain = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    return Shop(url=broker_url, notes=tmp_path / "notes", records={VARIABLE: json.dumps(plain)})


@pytest.fixture
def _others_write(file: Path) -> Iterator[None]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "writes\n"
        yield
    finally:
        writer.kill()
        writer.wait(timeout=10)
        writer.stdout.close()


@pytest.mark.usefixtures("_others_write")
def test_commands_wait_for_their_turn_while_another_process_writes(shop: Shop, amqp: BlockingChannel) -> None:
    amqp.queue_declare(QUEUE, durable=True)
    hour = timezone.now() - timedelta(hours=1)
    ids = [record(queue=QUEUE, parked_at=hour + timedelta(seconds=number)).pk for number in range(MANY)]
    some, others = [str(one) for one in ids[:3]], [str(one) for one in ids[3:6]]

    ends = {
        words: shop.run(*words.split())
        for words in (
            f"rmq_parked hold --for 1d --reason x --yes {' '.join(some)}",
            f"rmq_parked unhold --yes {' '.join(some)}",
            f"rmq_parked discard --category test --reason x --yes {' '.join(others)}",
            f"rmq_parked restore --reason x --yes {' '.join(others)}",
            "rmq_parked requeue --all --reason x --yes --rate 200 --stop-at 100 --wait 0",
            "rmq_roles",
        )
    }

    assert not {words: told.stderr for words, told in ends.items() if "locked" in told.stderr}
    assert not {words: told.stderr for words, told in ends.items() if told.returncode not in (0, 5)}
    assert RequeueItem.objects.filter(state=ItemState.SENT).count() == MANY
    assert ParkedMessage.objects.filter(state=State.REQUEUED).count() == MANY
    assert amqp.queue_declare(QUEUE, passive=True).method.message_count == MANY


def test_a_file_that_stays_locked_is_told_in_a_sentence(shop: Shop, file: Path) -> None:
    one = record(queue=QUEUE)
    plain = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": {"timeout": 0.1}}
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        told = shop.run(
            "rmq_parked", "hold", str(one.pk), "--for", "1d", "--reason", "x", "--yes", **{VARIABLE: json.dumps(plain)}
        )

    sentence = (
        "Other processes have kept the SQLite database locked for too long. Run the command again, or use PostgreSQL "
        "or MariaDB."
    )
    assert (told.returncode, told.stderr) == (1, f"CommandError: {sentence}\n")
