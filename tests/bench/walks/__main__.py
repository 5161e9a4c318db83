"""The process of one walk: it makes the walk with few messages and with many, and writes what was called to a file."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any

import django
import pika
from django.apps import apps
from django.core.management import call_command
from django.db import connection, transaction

import django_rmq_retry
from tests.bench.task import Task, payload
from tests.bench.walks.counting import walk
from tests.bench.walks.profiler import Profiler
from tests.tooling.waiting import wait_until

WARM, FEW, MANY = 4, 4, 24
SLOT = 0.5
"""Seconds between two messages: longer than a message needs with the timers and rows that follow it."""
SETTLING = 2
"""Slots without a message at the end of each phase."""
PATIENCE = 30.0
Walk = Callable[[], None]


def main(told: Path) -> None:
    django.setup()
    call_command("rmq_declare", verbosity=0)
    profiler = Profiler(Path(django_rmq_retry.__file__).parent)
    task = Task.given()
    with profiler.recording():
        if task.does == "publish":
            _measure(profiler, _publish, told)
        else:
            Thread(target=_drive, args=(profiler, task, told), daemon=True).start()
            call_command("rmq_consume", task.queue, threads=1, prefetch=1, verbosity=0)


def _drive(profiler: Profiler, task: Task, told: Path) -> None:
    """Send messages to the consumer in the main thread; stop it after the last, or after a lost one."""
    try:
        with pika.BlockingConnection(pika.URLParameters(task.url)) as broker:
            channel = broker.channel()
            channel.confirm_delivery()
            _measure(profiler, lambda: _arrive(channel, task), told)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _measure(profiler: Profiler, one: Walk, told: Path) -> None:
    """Warm up, then make the walk with few messages and with many, for the same time, so timers call equally often."""
    _phase(one, messages=WARM, slots=WARM)
    profiler.taken()
    _phase(one, messages=FEW, slots=MANY)
    few = profiler.taken()
    _phase(one, messages=MANY, slots=MANY)
    parts = walk(few, profiler.taken(), more=MANY - FEW)
    told.write_text(json.dumps([asdict(part) for part in parts]))


def _phase(one: Walk, *, messages: int, slots: int) -> None:
    """Send one message in each of the first slots, and none in the others."""
    pause = Event()
    for number in range(slots + SETTLING):
        ends = time.monotonic() + SLOT
        if number < messages:
            one()
        pause.wait(max(0.0, ends - time.monotonic()))


def _publish() -> None:
    with transaction.atomic():
        _handlers().charge.publish(payload(1))


def _arrive(channel: Any, task: Task) -> None:
    """Send one message, and wait until it was handled, or recorded as parked."""
    properties = pika.BasicProperties(content_type="application/json", delivery_mode=2, message_id=os.urandom(16).hex())
    recorded = _recorded() if task.does == "parked" else 0
    channel.basic_publish("", task.queue, json.dumps(payload(1)).encode(), properties, mandatory=True)
    if task.does == "parked":
        wait_until(lambda: _recorded() > recorded, PATIENCE, what="a parked message is recorded")
    elif not _handlers().handled.acquire(timeout=PATIENCE):
        raise TimeoutError(f"no message was handled within {PATIENCE:g} s")


def _recorded() -> int:
    """Count the records by SQL, because a manager of the package would be counted as a call."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {apps.get_model('rmq_retry', 'ParkedMessage')._meta.db_table}")  # noqa: S608 - a table of ours
        return int(cursor.fetchone()[0])


def _handlers() -> Any:
    """Import the handlers, which is possible only after `django.setup()`."""
    return import_module("tests.bench.walks.handlers")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
