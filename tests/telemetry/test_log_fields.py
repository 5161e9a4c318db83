"""Fields of the attempt in the project's own log lines: the hook and the filter of django_rmq_retry.telemetry."""

import asyncio
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import structlog
from structlog.testing import CapturingLogger

from django_rmq_retry import Delivery, Fixed, Handler, OneShot, RetryThenPark, handler
from django_rmq_retry.hooks import AroundAttempt, project_hooks
from django_rmq_retry.telemetry.log_fields import LogFields, bind
from django_rmq_retry.testing import RmqTest

BIND = "django_rmq_retry.telemetry.log_fields.bind"
FORMAT = "%(message)s|%(message_id)s|%(key)s|%(attempt)s|%(queue)s|%(handler)s"
ROOT = Path(__file__).parents[2]
log = logging.getLogger("payments")
Start = Callable[[], RmqTest]


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def lines() -> Iterator[Callable[[], list[str]]]:
    """The lines of the project's logger, in a format that has all fields."""
    stream = io.StringIO()
    writing = logging.StreamHandler(stream)
    writing.addFilter(LogFields())
    writing.setFormatter(logging.Formatter(FORMAT))
    log.addHandler(writing)
    before, log.level = log.level, logging.INFO
    yield lambda: stream.getvalue().splitlines()
    log.removeHandler(writing)
    log.level = before


@pytest.fixture
def entries() -> Iterator[list[Any]]:
    """The entries of structlog, with the fields that are bound."""
    capturing = CapturingLogger()
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, lambda _logger, _name, entry: ((entry,), {})],
        logger_factory=lambda *_args: capturing,
        cache_logger_on_first_use=False,
    )
    found: list[Any] = []
    capturing.calls = found
    yield found
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def start(settings: Any, request: Any) -> Start:
    def start() -> RmqTest:
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [BIND]}
        rmq: RmqTest = request.getfixturevalue("rmq")
        return rmq

    return start


def charging(does: Callable[[Any], object], **options: Any) -> Handler[object]:
    values = {"policy": RetryThenPark(attempts=2, backoff=Fixed(5)), "keys": lambda message: [message.data["order"]]}
    return handler("payments.charge", name="charge", **{**values, **options})(does)


def writes(_message: Any) -> None:
    log.info("charging")
    structlog.get_logger().info("charging", amount=7)


async def awaits(message: Any) -> None:
    await asyncio.sleep(0)
    writes(message)
    await asyncio.to_thread(log.info, "in a thread")


def test_lines_of_a_handler_carry_its_message_at_each_attempt(start: Start, lines: Any) -> None:
    rmq = start()

    def fail(message: Any) -> None:
        writes(message)
        raise TimeoutError

    charging(fail).publish({"order": "PAY-1"}, message_id="m1")
    rmq.drain()
    log.info("outside")

    assert lines() == [
        "charging|m1|PAY-1|1|payments.charge|charge",
        "charging|m1|PAY-1|2|payments.charge|charge",
        "outside|||||",
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_structlog_carries_the_fields_in_sync_and_async_handlers(
    start: Start, lines: Any, entries: list[Any], asynchronous: bool
) -> None:
    rmq = start()
    structlog.contextvars.bind_contextvars(queue="of the project", host="a")
    charging(awaits if asynchronous else writes).publish({"order": "PAY-1"}, message_id="m1")
    rmq.drain()

    fields = {"message_id": "m1", "key": "PAY-1", "attempt": 1, "queue": "payments.charge", "handler": "charge"}
    [entry] = [call.args[0] for call in entries]
    assert entry == {"event": "charging", "amount": 7, "host": "a", **fields}
    assert structlog.contextvars.get_contextvars() == {"queue": "of the project", "host": "a"}
    assert len(lines()) == 1 + asynchronous
    assert {line.partition("|")[2] for line in lines()} == {"m1|PAY-1|1|payments.charge|charge"}


def test_fields_that_the_handler_binds_in_structlog_stay_its_own(start: Start, entries: list[Any]) -> None:
    rmq = start()

    def binds(_message: Any) -> None:
        structlog.contextvars.bind_contextvars(tenant="north", attempt="changed")

    charging(binds).publish({"order": "PAY-1"})
    rmq.drain()

    assert (structlog.contextvars.get_contextvars(), entries) == ({"tenant": "north"}, [])


def test_a_nested_attempt_has_its_own_fields_and_restores_those_outside(
    start: Start, lines: Any, entries: list[Any]
) -> None:
    start()
    quote = handler("rates.quote", policy=OneShot(), name="quote")(writes)

    def asks(message: Any) -> None:
        quote.call({"pair": "EURUSD"}, message_id="inner")
        writes(message)

    charge = handler("payments.ask", policy=OneShot(), name="ask", keys=lambda message: message.data)(asks)
    charge.call("PAY-1", message_id="outer")

    inner, outer = "charging|inner||1|rates.quote|quote", "charging|outer|PAY-1|1|payments.ask|ask"
    assert lines() == [inner, outer]
    assert [call.args[0]["message_id"] for call in entries] == ["inner", "outer"]


@pytest.mark.parametrize("keys", [lambda message: message.data["missing"], lambda _message: None, None])
def test_a_handler_whose_keys_fail_has_an_empty_key(start: Start, lines: Any, keys: Any) -> None:
    rmq = start()
    charging(writes, keys=keys).publish({}, message_id="m1")
    rmq.drain()

    assert lines() == ["charging|m1||1|payments.charge|charge"]


def test_keys_are_computed_once_before_the_handler(start: Start, lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    rmq = start()
    computed: list[str] = []

    def keys(_message: Any) -> str:
        computed.append("key")
        return "PAY-1"

    def many(message: Any) -> None:
        for _ in range(3):
            writes(message)
        computed.append("handler")

    with caplog.at_level(logging.CRITICAL, "django_rmq_retry"):
        charging(many, keys=keys).publish({})
        rmq.drain()

    assert computed[:2] == ["key", "handler"]
    assert len(lines()) == 3


def test_an_attribute_of_the_record_is_not_overwritten(start: Start, lines: Any) -> None:
    rmq = start()
    charging(lambda _message: log.info("own", extra={"key": "mine", "queue": None})).publish({"order": "PAY-1"})
    rmq.drain()

    [line] = lines()
    assert line.split("|")[2:] == ["mine", "1", "None", "charge"]


def test_two_worker_threads_do_not_mix_their_fields(settings: Any, lines: Any, entries: list[Any]) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [bind]}
    together = Barrier(2, timeout=20)

    def attempts(number: int) -> None:
        for attempt in range(1, 20):
            one = AroundAttempt(delivery=Delivery(queue=f"q{number}", body=b"", attempt=attempt), handler=f"h{number}")
            together.wait()
            entered = project_hooks().enter(one, project_hooks().wanting(one.delivery))
            together.wait()
            log.info("%d", number)
            structlog.get_logger().info(str(number))
            project_hooks().leave(entered)
        log.info("outside")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(attempts, [1, 2]))

    found = [line.split("|") for line in lines()]
    assert len(found) == 40
    assert {
        line[0] if line[4] == f"q{line[0]}" and line[5] == f"h{line[0]}" else tuple(line[1:]) for line in found
    } == {
        "1",
        "2",
        ("", "", "", "", ""),
    }
    assert all(call.args[0]["queue"] == f"q{call.args[0]['event']}" for call in entries)


def test_a_deadline_that_interrupts_a_handler_leaves_nothing_bound(start: Start, lines: Any) -> None:
    rmq = start()

    def wait(_message: Any) -> None:
        while True:
            pass

    charging(wait, timeout=0.05, policy=RetryThenPark(attempts=1)).publish({"order": "PAY-1"})
    rmq.drain()
    log.info("outside")

    assert lines() == ["outside|||||"]
    assert structlog.contextvars.get_contextvars() == {}


def test_publishes_bind_nothing(start: Start, lines: Any) -> None:
    start()
    charge = charging(writes)
    charge.publish({"order": "PAY-1"})
    log.info("published")

    assert lines() == ["published|||||"]


def test_the_filter_can_be_named_in_logging_before_the_apps_are_loaded() -> None:
    code = (
        "import django, logging\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'django_rmq_retry'], LOGGING={\n"
        " 'version': 1,\n"
        " 'filters': {'fields': {'()': 'django_rmq_retry.telemetry.log_fields.LogFields'}},\n"
        " 'formatters': {'line': {'format': '[%(message_id)s%(attempt)s] %(message)s'}},\n"
        " 'handlers': {'one': {'class': 'logging.StreamHandler', 'filters': ['fields'], 'formatter': 'line'}},\n"
        " 'root': {'handlers': ['one'], 'level': 'INFO'}})\n"
        "django.setup()\n"
        "logging.getLogger('payments').info('ready')\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert (ended.stderr, ended.returncode) == ("[] ready\n", 0)


def test_without_structlog_the_filter_has_the_fields() -> None:
    code = (
        "import sys\n"
        "sys.modules['structlog'] = None\n"
        "import logging\n"
        "from django_rmq_retry import Delivery\n"
        "from django_rmq_retry.hooks import AroundAttempt\n"
        "from django_rmq_retry.telemetry.log_fields import LogFields, bind\n"
        "record = logging.makeLogRecord({})\n"
        "with bind(AroundAttempt(delivery=Delivery(queue='q', body=b''), handler='h')):\n"
        "    LogFields().filter(record)\n"
        "print(record.queue, record.attempt)\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert (ended.stdout, ended.stderr) == ("q 1\n", "")
