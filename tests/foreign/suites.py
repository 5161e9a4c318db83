"""The suites: the changes that set the broker's port in a copy, and the commands that run its tests."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.foreign.django_settings import QUEUES
from tests.foreign.sources import AMQPLIB, AMQPSTORM, DJANGO, PIKA, Missing, Source, python

ROOT = Path(__file__).parents[2]
_REPORTER = Path(__file__).with_name("reporter.mjs")
PYTEST = re.compile(r"^(?P<test>\S+::\S+) (?:(?P<end>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b)?")
DJANGO_TEST = re.compile(r"^\s*\w+ \((?P<test>[\w.]+)\)(?: .*)? \.\.\. (?P<end>ok|FAIL|ERROR|skipped)?")
NODE = re.compile(r"^(?P<end>start|pass|fail|skip) (?P<test>.+)$")
_STORM = ("basic", "exchange", "generic", "legacy", "queue", "reliability", "tx")
_CLEAN = '''

def clean(names, queue=False, exchange=False):
    """By AMQP, since not every broker has a management API."""
    with Connection(HOST, USERNAME, PASSWORD) as connection, connection.channel() as channel:
        for name in names:
            if queue:
                channel.queue.delete(name)
            if exchange:
                channel.exchange.delete(name)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of one project; `line` finds the start or end of a test in the output."""

    name: str
    source: Source
    prepare: Callable[[Path, int], None]
    commands: Callable[[], Sequence[Sequence[str]]]
    line: re.Pattern[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    of_backend: bool = False
    """True if it tests the backend of this package: then its differences are the same on each broker."""


def _changed(folder: Path, files: str, old: str, new: str) -> None:
    """Replace text in the copy; raise an error if the text is missing, because the source has changed."""
    found = [path for path in sorted(folder.glob(files)) if old in path.read_text()]
    if not found:
        raise Missing(f"No file {files} of {folder.name} has the words {old!r} any more: tests/foreign/suites.py.")
    for path in found:
        path.write_text(path.read_text().replace(old, new))


def _pika(folder: Path, port: int) -> None:
    _changed(folder, "tests/*/*.py", "5672", str(port))


def _amqpstorm(folder: Path, port: int) -> None:
    _changed(folder, "amqpstorm/connection.py", "5672", str(port))
    _changed(folder, "amqpstorm/tests/__init__.py", "rmq.eandersson.net:5672", f"127.0.0.1:{port}")
    utility = folder / "amqpstorm/tests/functional/utility.py"
    _changed(folder, "amqpstorm/tests/functional/utility.py", "'timeout', 1)", "'timeout', 10)")
    utility.write_text(utility.read_text() + _CLEAN)


def _amqplib(folder: Path, port: int) -> None:
    for end in ("'", "?"):
        _changed(folder, "test/*.test.js", f"amqp://localhost{end}", f"amqp://localhost:{port}{end}")
    _changed(folder, "test/connect.test.js", "amqp://[::1]", f"amqp://[::1]:{port}")
    _changed(folder, "test/connect.test.js", "hostname: 'localhost' }", f"hostname: 'localhost', port: {port} }}")


def _django(folder: Path, port: int) -> None:  # noqa: ARG001 - the settings have it from the environment
    for name, ours in (("dummy.Dummy", "Storing"), ("immediate.Immediate", "Running")):
        module, _, short = name.partition(".")
        backends = f"django.tasks.backends.{module}"
        _changed(
            folder, "tests/tasks/test_*.py", f'"{backends}.{short}Backend"', f'"tests.foreign.django_tasks.{ours}"'
        )
        _changed(
            folder,
            "tests/tasks/test_*.py",
            f"from {backends} import {short}Backend",
            f"from tests.foreign.django_tasks import {ours} as {short}Backend",
        )
    _changed(folder, "tests/tasks/test_*.py", '"QUEUES": []', f'"QUEUES": {QUEUES}')
    # Results are in the database, which SimpleTestCase forbids.
    _changed(folder, "tests/tasks/test_*.py", "SimpleTestCase", "TransactionTestCase")
    _changed(folder, "tests/tasks/test_*.py", "    available_apps = []\n", "")


def _pytest(*words: str) -> list[str]:
    return [str(python()), "-m", "pytest", "-v", "--tb=short", "-c", "/dev/null", "--rootdir", ".", *words]


SUITES = (
    Suite(
        name="pika",
        source=PIKA,
        prepare=_pika,
        commands=lambda: [
            # The tests for twisted need nose, which runs on no Python of today; those of the loops need no broker.
            _pytest("-o", "python_files=*_test.py *_tests.py", f"tests/acceptance/{name}.py")
            for name in ("async_adapter_tests", "blocking_adapter_test", "enforce_one_basicget_test")
        ],
        line=PYTEST,
    ),
    Suite(
        name="amqpstorm",
        source=AMQPSTORM,
        prepare=_amqpstorm,
        commands=lambda: [
            # Not the tests of the management API, of web consumers, which need it, and of TLS.
            _pytest(*(f"amqpstorm/tests/functional/test_{name}.py" for name in _STORM))
        ],
        line=PYTEST,
        environment={"AMQP_HOST": "127.0.0.1", "AMQP_USERNAME": "guest", "AMQP_PASSWORD": "guest"},
    ),
    Suite(
        name="amqplib",
        source=AMQPLIB,
        prepare=_amqplib,
        commands=lambda: [
            ["node", f"--test-reporter={_REPORTER}", "--test-reporter-destination=stdout", f"test/{name}.test.js"]
            for name in ("channel_api", "callback_api", "connect", "recovery")
        ],
        line=NODE,
    ),
    Suite(
        name="django",
        source=DJANGO,
        prepare=_django,
        commands=lambda: [
            # Their imports begin at the folder of Django's tests.
            ["sh", "-c", 'cd tests && exec "$0" -m django test tasks -v 2 --buffer --noinput', sys.executable]
        ],
        line=DJANGO_TEST,
        environment={
            "DJANGO_SETTINGS_MODULE": "tests.foreign.django_settings",
            "PYTHONPATH": str(ROOT),
            # Its async tests look at results in their event loop, as only a backend in memory allows.
            "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
        },
        of_backend=True,
    ),
)
