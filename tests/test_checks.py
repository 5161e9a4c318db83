"""The system checks: each id is reached, has a hint and an entry in the docs, and a sound project hears nothing."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connections, transaction
from django.test import override_settings
from django.views.debug import SafeExceptionReporterFilter

from django_rmq_retry import (
    AckFirst,
    Broadcast,
    DeadLetter,
    Delivery,
    Exchange,
    Exponential,
    Fixed,
    InPlace,
    NackRequeue,
    OneShot,
    Queue,
    Republish,
    RetryThenPark,
    Schedule,
    Steps,
    StopTheLine,
    WaitQueue,
    handler,
)
from django_rmq_retry.env import Secret
from tests.tooling.pages import page

ROOT = Path(__file__).parents[1]
SAFE_URL = "amqps://bank@rabbit.bank/pay"
MAIN = Exchange("main", "direct")
QUORUM_TARGET = Queue("target")
numbers = itertools.count()


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture(autouse=True)
def kept_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they should be, whichever database the tests run on."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 60)
    monkeypatch.setitem(connections.settings["default"], "CONN_HEALTH_CHECKS", True)


def found(*, deploy: bool = False, **keys: Any) -> list[CheckMessage]:
    with override_settings(RMQ_RETRY=keys):
        return run_checks(tags=["rmq_retry"], include_deployment_checks=deploy)


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("rmq_retry.") for message in messages]


def handle(queue: Queue | str, **options: Any) -> None:
    def charge(message: Delivery) -> None: ...

    handler(queue, **{"name": f"handler {next(numbers)}", **options})(charge)


def test_a_sound_project_gets_no_warning() -> None:
    handle("payments.charge")
    handle(Queue("payments.transfer", bindings=[MAIN.bind("transfer")], max_length=1000, message_ttl=60))
    handle("ledger.post", policy=StopTheLine())
    handle("rates.quote", policy=OneShot(park=True))
    handle(
        Queue("cash", bindings=[MAIN.bind("cash")]),
        policy=RetryThenPark(via=DeadLetter(exchange="retry", queue="retry", after=30)),
    )

    assert found(URL="amqp://app:pw@h", TOPOLOGY=[Queue("archive")]) == []


def test_invalid_settings_are_one_error_and_suppress_other_checks() -> None:
    handle("payments", policy=RetryThenPark(via=AckFirst()))

    (message,) = found(PREFECH=1, deploy=True)

    assert message.id == "rmq_retry.E001"
    assert message.msg == "RMQ_RETRY has no key 'PREFECH'. Did you mean 'PREFETCH'?"


def test_a_handler_incompatible_with_the_default_policy_is_named() -> None:
    handle("payments", name="payments.handlers.charge")

    fitting = found(POLICY=RetryThenPark(via=NackRequeue(), attempts=2))
    (wrong,) = found(POLICY=RetryThenPark(via=NackRequeue(), attempts=5))

    assert fitting == []
    assert (wrong.id, wrong.obj) == ("rmq_retry.E002", "payments.handlers.charge")


def test_handlers_that_disagree_about_their_queue_are_an_error() -> None:
    handle("payments", type="cash", policy=StopTheLine())
    handle("payments", type="card")

    assert ids(found()) == ["E003"]


def test_two_declarations_of_one_name_are_an_error() -> None:
    handle(Queue("payments", bindings=[Exchange("main", "direct").bind("a")]))
    handle(Queue("ledger", bindings=[Exchange("main", "topic").bind("b")]))

    (message,) = found()

    assert message.id == "rmq_retry.E004"
    assert "'direct' in one place, 'topic' in another" in message.msg


MIXED = RetryThenPark(via=WaitQueue("wait-exchange", "wait-queue"), backoff=Exponential(10, factor=3))
MIXED_LATER = RetryThenPark(
    via=WaitQueue("wait-exchange", "wait-queue"),
    attempts=2,
    backoff=Fixed(10),
    schedules={OSError: Schedule(3, Steps([10, 20]))},
)
EVEN = RetryThenPark(via=WaitQueue("wait-exchange", "wait-queue"), backoff=Fixed(10))
LOOP = RetryThenPark(via=DeadLetter(exchange="retry", queue="retry", after=30))
SLOW = RetryThenPark(via=Republish(), backoff=Fixed(60), schedules={OSError: Schedule(3, Fixed(700, jitter=0.2))})


SLOW_LATER = RetryThenPark(
    via=Republish(), attempts=2, backoff=Fixed(1), schedules={OSError: Schedule(9, Exponential(1))}
)
SOON_OVER = RetryThenPark(
    via=Republish(), attempts=9, backoff=Fixed(1), schedules={OSError: Schedule(3, Exponential(1))}
)


@pytest.mark.parametrize(
    ("queue", "options", "expected"),
    [
        (Queue("q", arguments={"x-message-ttl": 5}), {"policy": LOOP}, ["E005"]),
        (Queue("q", arguments={"x-delivery-limit": None}), {"policy": LOOP}, ["E005"]),
        (Queue("q", arguments={"x-delivery-limit": 2}), {"policy": LOOP}, ["E005"]),
        (Queue("q", arguments={"x-delivery-limit": -1}), {"policy": LOOP}, []),
        (Queue("q", type=None, arguments={"x-delivery-limit": 2}), {"policy": LOOP}, ["E005"]),
        (Queue("q", type=None, arguments={"x-queue-type": "quorum"}), {"policy": LOOP}, ["W006", "E005"]),
        (Queue("q", type=None), {"policy": LOOP}, []),
        (Queue("q", max_length=2, arguments={"x-overflow": "drop-head"}), {"policy": LOOP}, ["W002", "E005"]),
        (Queue("q", max_bytes=2, arguments={"x-overflow": None}), {"policy": LOOP}, ["W002", "E005"]),
        (Queue("q", type=None, arguments={"x-max-length": 2}), {"policy": LOOP}, ["E005"]),
        (
            Queue("q", type=None, max_length=2, arguments={"x-overflow": "reject-publish-dlx"}),
            {"policy": LOOP},
            ["E005"],
        ),
        (Queue("q", max_length=2), {"policy": LOOP}, []),
        (Queue("q", arguments={"x-message-ttl": 5, "x-delivery-limit": 2}), {}, []),
        (Queue("q", arguments={"x-single-active-consumer": None}), {"policy": StopTheLine()}, ["E007"]),
        (Queue("q", arguments={"x-single-active-consumer": False}), {"policy": StopTheLine()}, ["E007"]),
        (Queue("q", arguments={"x-single-active-consumer": None}), {}, []),
        (Queue("q", arguments={"x-delivery-limit": 2}), {"policy": StopTheLine()}, ["E008"]),
        (Queue("q", arguments={"x-delivery-limit": None}), {"policy": StopTheLine()}, ["E008"]),
        (Queue("q", delivery_limit=20), {"policy": StopTheLine()}, ["E008"]),
        (Queue("q", type=None, arguments={"x-delivery-limit": 2}), {"policy": StopTheLine()}, ["E008"]),
        (Queue("q", type="classic"), {"policy": StopTheLine()}, []),
        (Queue("q", type=None), {"policy": StopTheLine()}, ["W015"]),
        (Queue("q", type=None, existing=True), {"policy": StopTheLine()}, ["W014"]),
        (Queue("q", type=None), {}, []),
        (Queue("q", bindings=[Exchange("amq.mine").bind("k")]), {}, ["E006"]),
        (Queue("q", bindings=[Exchange("amq.topic", "direct").bind("k")]), {}, ["E006"]),
        (Queue("q", bindings=[Exchange("amq.topic", "topic").bind("k")]), {}, []),
        ("q", {"policy": RetryThenPark(via=AckFirst(), backoff=Fixed(1))}, ["W001"]),
        (Queue("q", max_length=5, overflow="drop-head"), {}, ["W002"]),
        (Queue("q", max_length=5, overflow="drop-head", type="classic"), {}, []),
        (Queue("q", arguments={"x-dead-letter-exchange": None}), {}, ["W003"]),
        (Queue("q", max_length=5, overflow="drop-head", expired="drop"), {}, ["W016"]),
        (Queue("q", expired="drop", existing=True), {}, []),
        (Queue("q", type="classic", durable=False), {}, ["W018"]),
        (Queue("q", type="classic", auto_delete=True), {}, ["W018"]),
        (Broadcast("q", bindings=[MAIN.bind("q")]), {}, ["W018"]),
        ("q", {"ack": "auto"}, ["W019"]),
        ("q", {"timeout": 1799}, []),
        ("q", {"timeout": 1800}, ["W017"]),
        ("q", {"policy": MIXED}, ["W004"]),
        ("q", {"policy": EVEN}, []),
        ("q", {"policy": MIXED_LATER}, ["W004"]),
        ("q", {"policy": RetryThenPark(via=NackRequeue(), attempts=None, backoff=Fixed(1))}, ["W005"]),
        (Queue("q", type="classic", arguments={"x-dead-letter-routing-key": "target"}), {}, ["W006"]),
        (Queue("q", arguments={"x-expires": 1000}), {}, ["W007"]),
        ("q", {"policy": SLOW}, ["W008"]),
        ("q", {"policy": SLOW_LATER}, ["W008"]),
        ("q", {"policy": SOON_OVER}, []),
        ("q", {"policy": RetryThenPark(via=NackRequeue(), attempts=None)}, ["W005"]),
        ("q", {"policy": RetryThenPark(via=InPlace(), backoff=Fixed(60))}, ["W008"]),
        ("q", {"policy": RetryThenPark(via=InPlace(), backoff=Fixed(59))}, []),
        (Queue("q", arguments={"x-dead-letter-exchange": "nowhere"}), {}, ["W009"]),
        (Queue("q", arguments={"x-dead-letter-routing-key": "nowhere"}), {}, ["W009"]),
        (Queue("q", bindings=[Exchange("e", durable=False).bind("k")]), {}, ["W010"]),
        (Queue("q", bindings=[Exchange("e", auto_delete=True).bind("k")]), {}, ["W010"]),
        (Queue("q", type="classic", max_priority=3), {"policy": StopTheLine()}, ["W013"]),
        (Queue("q", existing=True), {"policy": StopTheLine()}, ["W014"]),
    ],
)
def test_each_hazard_of_a_handler_or_its_queue_is_reported(
    queue: Queue | str, options: dict[str, Any], expected: list[str]
) -> None:
    handle(queue, **options)

    assert ids(found(TOPOLOGY=[QUORUM_TARGET])) == expected


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({"message_ttl": 1.5}, "messages that no handler takes within 1.5 s"),
        ({}, "messages that no handler takes before its own expiration"),
        ({"message_ttl": 60, "max_length": 5}, "messages that no handler takes within 60 s"),
        (
            {"message_ttl": 60, "max_length": 5, "max_bytes": 100, "overflow": "drop-head"},
            "messages that no handler takes within 60 s and the oldest messages beyond 5 messages or 100 bytes",
        ),
    ],
)
def test_messages_that_a_queue_drops_by_its_arguments_are_reported(options: dict[str, Any], lost: str) -> None:
    handle(Queue("prices", expired="drop", **options))

    (message,) = found()

    assert message.msg == f"Queue 'prices' drops {lost}: no handler gets them, and no record or log line names them."


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        (
            Broadcast("q", bindings=[MAIN.bind("q")]),
            (
                "Queue 'q' is deleted with its consumer: messages in it, and messages published while no consumer "
                "runs, "
                "are lost."
            ),
        ),
        (
            Queue("q", type="classic", durable=False),
            (
                "Queue 'q' is deleted with its messages when the broker restarts. RabbitMQ 4 deprecates transient "
                "queues "
                "that are not exclusive, and from 4.3 on may refuse them."
            ),
        ),
    ],
)
def test_messages_that_a_transient_queue_loses_are_reported(queue: Queue, said: str) -> None:
    handle(queue)

    assert [message.msg for message in found()] == [said]


def test_a_decorator_above_the_handler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def charge(message: Delivery) -> None: ...

    def refund(message: Delivery) -> None: ...

    charge.__qualname__, refund.__qualname__ = "charge", "refund"
    above = transaction.atomic(handler("payments.charge", name="above")(charge))
    below = handler("payments.refund", name="below")(transaction.atomic(refund))
    monkeypatch.setattr(sys.modules[__name__], "charge", above, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "refund", below, raising=False)

    (message,) = found()

    assert ids([message]) == ["W029"]
    assert message.msg == "A decorator stands above @handler of above: consumers call the function without it."


@pytest.mark.parametrize(("second", "expected"), [(10, []), (60, ["W004"])])
def test_two_delays_in_one_waiting_queue_are_reported(second: float, expected: list[str]) -> None:
    bank = Exchange("bank", "direct")
    for queue, wait in (("card", 10), ("cash", second)):
        policy = RetryThenPark(via=WaitQueue("wait-exchange", "wait-queue"), backoff=Fixed(wait))
        handle(Queue(queue, bindings=[bank.bind(queue)]), policy=policy, name=queue)
    messages = found()

    assert ids(messages) == expected
    assert all("'wait-queue' (card 10 s, cash 60 s)" in message.msg for message in messages)


def test_a_dead_letter_exchange_without_a_binding_is_reported() -> None:
    handle(Queue("q", arguments={"x-dead-letter-exchange": "letters"}))

    (message,) = found(TOPOLOGY=[Exchange("letters", "fanout")])

    assert (message.id, "which has no binding" in message.msg) == ("rmq_retry.W009", True)


def test_a_dead_letter_exchange_of_another_project_is_trusted() -> None:
    handle(Queue("q", arguments={"x-dead-letter-exchange": "letters"}))

    assert found(TOPOLOGY=[Exchange("letters", "fanout", existing=True)]) == []


def test_a_reply_to_setting_that_allows_any_queue_is_reported() -> None:
    assert ids(found(REPLY_TO=["*"])) == ["W011"]
    assert ids(found(REPLY_TO=["bank.*"])) == []


def test_threads_that_can_never_be_busy_are_reported() -> None:
    handle("ledger.post", policy=StopTheLine())

    assert ids(found(THREADS=2)) == ["W012"]
    assert ids(found(THREADS=1)) == []
    assert ids(found()) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"URL": SAFE_URL, "PASSWORD": "pw"}, []),
        ({"URL": Secret("amqps://bank:pw@rabbit.bank/pay")}, []),
        ({"URL": Secret("amqp://bank:pw@127.0.0.1")}, []),
        ({"URL": Secret("amqp://bank:pw@[::1],localhost")}, []),
        ({"URL": Secret("amqp://guest:guest@127.0.0.1")}, ["W020"]),
        ({"URL": "amqps://rabbit.bank"}, ["W020"]),
        ({"URL": Secret("amqp://bank:pw@10.0.0.1,127.0.0.1")}, ["W021"]),
        ({"URL": SAFE_URL, "PASSWORD": "pw", "HEARTBEAT": 61}, ["W022"]),
        ({"URL": "amqps://bank:pw@rabbit.bank/pay"}, ["W023"]),
        ({"URL": ["amqps://bank:pw@rabbit.bank/pay"]}, ["W023"]),
        (
            {"URL": SAFE_URL, "PASSWORD": "pw", "OPERATORS": {"MANAGEMENT_URL": "https://bank:pw@rabbit.bank:15671"}},
            ["W023"],
        ),
        ({}, ["E024"]),
        ({"URL": SAFE_URL, "PASSWORD": "pw", "TLS": {"VERIFY": False}}, ["W025"]),
        ({"URL": lambda: pytest.fail("a check asked for the URL")}, []),
    ],
)
def test_production_problems_are_reported_by_the_deploy_check(keys: dict[str, Any], expected: list[str]) -> None:
    assert ids(found(deploy=True, **keys)) == expected
    assert ids(found(deploy=False, **keys)) == []


def test_the_embedded_broker_is_an_error_without_debug_and_a_warning_with_it() -> None:
    (refused,) = found(deploy=True)
    with override_settings(DEBUG=True):
        warned = found(deploy=True)

    assert refused.is_serious()
    assert sorted(ids(warned)) == ["W024", "W026"]
    assert not any(message.is_serious() for message in warned)


def test_a_worker_with_debug_on_is_reported() -> None:
    with override_settings(DEBUG=True):
        assert ids(found(deploy=True, URL=SAFE_URL, PASSWORD="pw")) == ["W026"]


@pytest.mark.parametrize(
    ("engine", "keys", "expected"),
    [
        ("postgresql", {"CONN_MAX_AGE": 0}, ["W027"]),
        ("mysql", {"CONN_MAX_AGE": 0}, ["W027"]),
        ("postgresql", {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}}, []),
        ("sqlite3", {"CONN_MAX_AGE": 0}, []),
        ("postgresql", {"CONN_MAX_AGE": 60}, ["W028"]),
        ("mysql", {"CONN_MAX_AGE": None}, ["W028"]),
        ("postgresql", {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}, []),
    ],
)
def test_the_deploy_check_examines_database_connections(
    engine: str, keys: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"ENGINE": f"django.db.backends.{engine}", "CONN_HEALTH_CHECKS": False, **keys}.items():
        monkeypatch.setitem(connections.settings["default"], key, value)

    assert ids(found(deploy=True, URL=SAFE_URL, PASSWORD="pw")) == expected
    assert ids(found(deploy=False, URL=SAFE_URL, PASSWORD="pw")) == []


def test_a_url_in_another_setting_is_found_and_not_printed() -> None:
    with override_settings(BANK={"brokers": [{"url": "amqp://bank:s3cret@h"}]}):
        (message,) = found(deploy=True, URL=SAFE_URL, PASSWORD="pw")

    assert message.msg.startswith("The setting BANK['brokers'][0]['url'] holds a URL with a password")
    assert "s3cret" not in str(message)


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({"URL": "amqp://bank:s3cret@h"}, True),
        ({"URL": Secret("amqp://bank:s3cret@h")}, False),
        ({"URL": [Secret("amqp://bank:s3cret@h")]}, False),
        ({"URL": "amqp://bank@h", "PASSWORD": "s3cret"}, False),
        ({"URL": lambda: "amqp://bank:s3cret@h"}, False),
    ],
)
def test_the_debug_page_shows_a_secret_exactly_if_the_check_warns(keys: dict[str, Any], shown: bool) -> None:
    with override_settings(RMQ_RETRY=keys):
        page = repr(SafeExceptionReporterFilter().get_safe_settings()["RMQ_RETRY"])

    assert ("s3cret" in page) is shown
    assert ("W023" in ids(found(deploy=True, **keys))) is shown


def test_check_ids_in_the_code_and_in_the_docs_are_equal() -> None:
    package = ROOT / "django_rmq_retry"
    code = "".join(path.read_text() for path in [*package.glob("checks/*.py"), package / "tasks" / "checks.py"])
    docs = page("checks.md").read_text()

    assert sorted(set(re.findall(r'"(?:rmq_retry\.)?([EW]\d{3})"', code))) == re.findall(
        r"^### rmq_retry\.([EW]\d{3})$", docs, re.MULTILINE
    )


def test_alerts_that_reach_nobody_or_name_an_unknown_code_are_reported() -> None:
    with override_settings(ADMINS=[]):
        wrong = found(RECORDS=False, ALERTS={"MAIL": "admins", "WITHOUT": ["GROW"]})
    right = {"MAIL": ["ops@bank.example"], "WITHOUT": ["GROWS"], "ADMIN_URL": "https://bank.example/admin/"}

    assert ids(wrong) == ["E060", "E061", "E062", "W060"]
    assert wrong[0].hint == "Did you mean 'GROWS'?"
    assert ids(found(ALERTS=right)) == []


def test_every_message_has_a_hint() -> None:
    handle("q", policy=MIXED)
    handle(Queue("r", arguments={"x-expires": 1000, "x-dead-letter-exchange": None}))

    assert [
        message for message in found(deploy=True, URL="amqp://h", REPLY_TO=["*"], THREADS=100) if not message.hint
    ] == []
