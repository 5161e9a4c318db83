"""The test kit inside Django: transactions, test cases, the plugin, and the topology's snapshot."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from django_rmq_retry import Delivery, Fixed, Handler, RetryThenPark, handler, signals
from django_rmq_retry.errors import MessageUnsent
from django_rmq_retry.testing import RmqTest, RmqTestMixin, assert_topology
from tests.tooling.brokers import is_replaced

ROOT = Path(__file__).parents[1]
Capture = Callable[..., AbstractContextManager[list[Any]]]


class Regret(Exception): ...


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def charge() -> Handler[None]:
    return charging()


def charging() -> Handler[None]:
    @handler("payments.charge", policy=RetryThenPark(attempts=3, backoff=Fixed(10)), name="charge")
    def charge(message: Delivery) -> None:
        Group.objects.get_or_create(name=str(message.data))

    return charge


@pytest.mark.django_db
def test_a_message_published_inside_a_transaction_is_recorded_on_commit(
    rmq: RmqTest, charge: Handler[None], django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        charge.publish("a")
        within = rmq.published(charge)

    assert within == []
    assert [one.data for one in rmq.published(charge)] == ["a"]


@pytest.mark.django_db
def test_a_test_that_forgets_to_capture_commits_gets_a_hint(rmq: RmqTest, charge: Handler[None]) -> None:
    with transaction.atomic():
        charge.publish("a")
    rmq.drain()

    with pytest.raises(AssertionError, match=r"Nothing was published to it.*captureOnCommitCallbacks\(execute=True\)"):
        rmq.parked(charge)


@pytest.mark.django_db
def test_a_rolled_back_message_is_never_published(
    rmq: RmqTest, charge: Handler[None], django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True), suppress(Regret), transaction.atomic():
        charge.publish("a")
        raise Regret

    assert rmq.published(charge) == []


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["kept", "regretted"])
def test_messages_of_a_handlers_own_transaction_are_sent_on_its_commit(rmq: RmqTest, name: str) -> None:
    charge = charging()
    order: list[str] = []

    @handler("shop.order", name="order")
    def order_(message: Delivery) -> None:
        with suppress(Regret), transaction.atomic():
            charge.publish(message.data)
            transaction.on_commit(lambda: order.append("committed"))
            if message.data == "regretted":
                raise Regret
        charge.publish("outside")
        order.append("done")

    order_.publish(name)
    rmq.drain()

    assert order == (["done", "committed"] if name == "kept" else ["done"])
    assert {group.name for group in Group.objects.all()} == ({"kept", "outside"} if name == "kept" else {"outside"})


@pytest.mark.django_db
def test_a_handler_whose_publish_fails_is_a_failed_attempt(rmq: RmqTest, charge: Handler[None]) -> None:
    @handler("shop.order", policy=RetryThenPark(backoff=Fixed(10)), name="order")
    def order(message: Delivery) -> None:
        charge.publish(message.data)

    order.publish("a")
    rmq.fail_next("publish", "broker loss")
    rmq.drain()

    assert [type(one.error) for one in rmq.attempts(order)] == [MessageUnsent, type(None)]
    assert [one.data for one in rmq.published(charge)] == ["a"]


@pytest.mark.django_db
def test_queries_of_handlers_can_be_counted(
    rmq: RmqTest, charge: Handler[None], django_assert_num_queries: Callable[[int], AbstractContextManager[object]]
) -> None:
    Group.objects.create(name="a")
    charge.publish("a")
    charge.publish("a")

    with django_assert_num_queries(2):
        rmq.drain()


def test_the_kit_sends_the_signals_of_a_consumer(rmq: RmqTest) -> None:
    nothing = handler("nothing", name="nothing")(lambda _message: None)
    heard: list[str] = []

    def hear(handler: str, **_facts: Any) -> None:
        heard.append(handler)

    signals.attempted.connect(hear)
    nothing.publish(1)
    rmq.drain()
    signals.attempted.disconnect(hear)

    assert heard == ["nothing"]


def test_nested_kits_restore_the_outer_kit_and_then_the_broker(charge: Handler[None]) -> None:
    with RmqTest() as outer:
        with RmqTest() as inner:
            charge.publish(1)
        charge.publish(2)

    assert [one.data for one in inner.published()] == [1]
    assert [one.data for one in outer.published()] == [2]
    assert not is_replaced()


class TestOfDjango(RmqTestMixin, TestCase):
    """A test case as users write it."""

    rmq_options = {"seed": 7}  # noqa: RUF012 - as a user would write it

    def test_the_mixin_provides_the_kit_and_captures_commits(self) -> None:
        charge = charging()
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            charge.publish("a")
        self.rmq.fail_next(charge, ValueError)

        assert self.rmq.drain() == 2
        assert Group.objects.get().name == "a"


class TestWithTransactions(RmqTestMixin, TransactionTestCase):
    def test_the_mixin_provides_the_kit(self) -> None:
        charge = charging()
        with transaction.atomic():
            charge.publish("a")

        assert self.rmq.drain() == 1


def test_a_topology_is_compared_with_its_snapshot(
    charge: Handler[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "snapshots" / "topology.json"
    with pytest.raises(AssertionError, match=r"no snapshot .* once with RMQ_UPDATE_SNAPSHOTS=1"):
        assert_topology(snapshot)
    monkeypatch.setenv("RMQ_UPDATE_SNAPSHOTS", "1")
    assert_topology(snapshot)
    monkeypatch.delenv("RMQ_UPDATE_SNAPSHOTS")
    assert_topology(str(snapshot))
    handler(charge.queue.varied(name="another"))(print)

    with pytest.raises(AssertionError, match=r'(?s)RMQ_UPDATE_SNAPSHOTS=1 .*\+ +"name": "another"'):
        assert_topology(snapshot)
    assert {queue["name"] for queue in json.loads(snapshot.read_text())["queues"]} >= {
        "payments.charge",
        "payments.charge.parked",
        "payments.charge.retry.10s",
    }


def test_the_pytest_plugin_loads_before_settings_exist(tmp_path: Path) -> None:
    """As installed: a distribution whose entry points are those of pyproject.toml."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = tmp_path / "as_installed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: as-installed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "\n".join(["[pytest11]", *(f"{name} = {value}" for name, value in points.items())])
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    (tmp_path / "test_plain.py").write_text(
        "import pytest\nfrom django.conf import settings\n\n\n@pytest.mark.rmq(seed=1)\n"
        "def test_nothing_is_configured(): assert not settings.configured\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTEST_"))}
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:xdist", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env=env | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "1 passed" in told.stdout, told.stdout + told.stderr


def test_the_kit_helpers_need_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import django_rmq_retry.testing as kit; print(*kit.__all__)"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert "RmqTest RmqTestMixin" in told.stdout, told.stderr
