"""Create a PostgreSQL database, fill and measure it in a separate process, and drop it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.bench.million.shapes import Shape
from tests.bench.report import Finding
from tests.tooling import databases
from tests.tooling.filled import own_database

ROOT = Path(__file__).parents[3]
CHOICE = "RMQ_TEST_DATABASE"


def filled(shape: Shape) -> list[Finding]:
    """Measure and print; return the findings for the targets."""
    lack = databases.KINDS[databases.POSTGRESQL].lack()
    if lack:
        print(f"\nNo PostgreSQL: {lack}")
        return [Finding(what=f"{shape.messages:,} messages: {lack}", met=False)]
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as place, _on_postgresql():
        folder = Path(place)
        with own_database(folder) as own:
            return _measured(own.environment, shape, folder / "findings.json")


def _measured(environment: dict[str, str], shape: Shape, told: Path) -> list[Finding]:
    line = [sys.executable, "-m", "tests.bench.million", json.dumps(asdict(shape)), str(told)]
    named = {"DJANGO_SETTINGS_MODULE": "tests.bench.million.settings"}
    with subprocess.Popen(line, cwd=ROOT, env={**os.environ, **environment, **named}) as process:
        try:
            code = process.wait()
        finally:
            process.terminate()
    if code:
        return [Finding(what=f"{shape.messages:,} messages: exit code {code}", met=False)]
    return [Finding(**one) for one in json.loads(told.read_text())]


@contextmanager
def _on_postgresql() -> Iterator[None]:
    """Return the environment, whatever database the tests in this shell use."""
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = databases.POSTGRESQL
    try:
        yield
    finally:
        del os.environ[CHOICE]
        if before is not None:
            os.environ[CHOICE] = before
