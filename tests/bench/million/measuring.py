"""Fill the tables, and measure the pages and then the actions, which change the rows."""

import json
import time
from dataclasses import asdict
from pathlib import Path

from django.db import connection

from django_rmq_retry import handler
from django_rmq_retry.testing import isolated_handlers
from tests.bench.million import acts, filling, pages, tables
from tests.bench.million.shapes import Shape
from tests.bench.million.silence import Silence
from tests.tooling.brokers import replaced_by


def measure(shape: Shape, told: Path) -> None:
    """Fill and measure; the findings are written to a file."""
    began = time.perf_counter()
    filling.fill(shape)
    with connection.cursor() as cursor:
        cursor.execute("SELECT version(), pg_size_pretty(pg_database_size(current_database()))")
        version, size = cursor.fetchone()
    took = time.perf_counter() - began
    print(f"\n{version.split(' (')[0]}: {shape.messages:,} messages, {size}, filled in {took:.0f} s\n", flush=True)
    silence = Silence()
    with isolated_handlers(), replaced_by(silence):
        for queue in tables.QUEUE_NAMES:
            handler(queue, name=queue)(_nothing)
        findings = pages.measure(shape)
        if shape.parked < 1:
            findings += acts.measure(shape.messages / 1_000_000)
    told.write_text(json.dumps([asdict(one) for one in findings]))


def _nothing(message: object) -> None:
    """A handler that is never called."""
