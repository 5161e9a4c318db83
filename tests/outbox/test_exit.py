"""A publish result that arrives while the interpreter shuts down is written all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outbox.made import kept
from tests.tooling.filled import Own
from tests.tooling.marks import nightly_on_sqlite

ROOT = Path(__file__).parents[2]
SCRIPT = """
import atexit
import logging
import os
import threading
import time
import django
from django.conf import settings
from tests.tooling.filled import VARIABLE, given

logging.basicConfig(level=logging.INFO)
apps = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry"]
settings.configure(INSTALLED_APPS=apps, DATABASES={"default": given(os.environ[VARIABLE])}, USE_TZ=True)
django.setup()

from django.db import transaction
from django_rmq_retry import publish
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing import broker_connections, faults, outgoing
from tests.outbox.made import Post
from tests.tooling.connections import Given

post = Post()
post.silent = True
broker_connections.connections = Given(post)
outgoing.SILENT_SECONDS = 0.0
with transaction.atomic():
    publish({"n": 1}, routing_key="late")
assert OutboxMessage.objects.count() == 1
%s
atexit.register(post.answer)
"""
NO_THREAD = """
def start(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
threading.Thread.start = start
"""
SLOW = """
quick = faults.record
def slow(*answers, **using):
    time.sleep(2)
    return quick(*answers, **using)
faults.record = slow
"""


def run(own_database: Own, trouble: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", SCRIPT % trouble],
        cwd=ROOT,
        env={**os.environ, **own_database.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@nightly_on_sqlite
@pytest.mark.django_db
@pytest.mark.database
@pytest.mark.parametrize("trouble", [NO_THREAD, SLOW], ids=["no thread", "a slow database"])
def test_a_result_at_the_exit_is_written(own_database: Own, trouble: str) -> None:
    ended = run(own_database, trouble)

    assert (ended.returncode, kept("own")) == (0, [])
    assert "could not" not in ended.stderr
    assert "until a relay sends" not in ended.stderr


@nightly_on_sqlite
@pytest.mark.django_db
@pytest.mark.database
def test_a_process_that_ends_says_what_it_leaves_to_a_relay(own_database: Own) -> None:
    ended = run(own_database, "post.answer = print")

    assert (ended.returncode, len(kept("own"))) == (0, 1)
    assert "This process ends, and 1 message stays in the outbox until a relay sends it" in ended.stderr
