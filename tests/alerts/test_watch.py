"""One process sends, whichever holds the lease; what is away delays nothing and is logged once."""

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import OperationalError
from django.test import override_settings
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Ladder, RetryThenPark, conf, handler
from django_rmq_retry.alerts import ledger, watch
from django_rmq_retry.alerts.found import AlertFindings, Unseen, find
from django_rmq_retry.alerts.ledger import Alert
from django_rmq_retry.alerts.watch import AlertWatcher
from django_rmq_retry.alerts.ways import TimeLimitedWay
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import AlertWatch, QueueControl
from tests.admin import made
from tests.alerts.made import HALTED, IDLE
from tests.alerts.receiving import PATH, SECRET, Receiver
from tests.amqp.declared import declare
from tests.tooling import processes
from tests.tooling.brokers import using_broker
from tests.tooling.filled import ALIAS, Own
from tests.tooling.marks import nightly_on_sqlite
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.database]
AWAY = "amqp://guest:guest@127.0.0.1:1/%2F"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LASTS_SECONDS", 0.0)


class Kept:
    """A way that keeps what it was given, or fails."""

    name, to, remark = "mail", "1 address", ""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails
        self.got: list[str] = []

    def send(self, alert: Alert) -> None:
        if self.fails:
            raise self.fails
        self.got.append(f"{alert.event} {alert.finding.code}")


def watcher(way: Kept, *found: Any, name: str = "") -> AlertWatcher:
    one = AlertWatcher(look=lambda _wanted: AlertFindings(findings=found), out=[TimeLimitedWay(way)])
    one._name = name
    return one


def look(one: AlertWatcher, times: int = 3) -> None:
    for _ in range(times):
        one.look()


def test_a_finding_is_sent_once_and_not_again_after_a_restart() -> None:
    way = Kept()
    first = watcher(way, IDLE)
    look(first)
    first.at_end()
    look(watcher(way, IDLE, name="another"))

    assert way.got == ["begins IDLE"]


def test_an_end_is_sent_once_by_the_process_that_comes_after() -> None:
    way = Kept()
    first = watcher(way, IDLE)
    look(first)
    first.at_end()
    with override_settings(RMQ_RETRY={"ALERTS": {"MAIL": ["ops@bank.example"], "WINDOW": 0.001}}):
        look(watcher(way, name="another"))

    assert way.got == ["begins IDLE", "ends IDLE"]


def test_of_two_processes_one_sends() -> None:
    way = Kept()
    both = [watcher(way, IDLE, name=name) for name in ("one", "two")]
    for _ in range(3):
        for one in both:
            one.look()

    assert way.got == ["begins IDLE"]
    assert AlertWatch.objects.get().holder == "one"


def test_a_process_that_has_lost_its_lease_sends_nothing() -> None:
    way = Kept()
    slow = watcher(way, IDLE, name="slow")
    slow.look()

    def taken(_wanted: object) -> AlertFindings:
        AlertWatch.objects.update(holder="another")
        return AlertFindings(findings=(IDLE,))

    slow._look = taken
    with pytest.raises(watch.LeaseLost):
        slow.look()

    assert way.got == []


def test_a_lease_that_ran_out_is_taken_over() -> None:
    way = Kept()
    watcher(way, IDLE, name="killed").look()
    AlertWatch.objects.update(leased_until=timezone.now() - timedelta(seconds=1))
    look(watcher(way, IDLE, name="heir"))

    assert way.got == ["begins IDLE"]


def test_a_way_that_fails_is_logged_once_without_secrets_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, well = Kept(ValueError(f"https://bank:pa55word@hook{PATH}")), Kept()
    well.name = "webhook"
    one = AlertWatcher(
        look=lambda _wanted: AlertFindings(findings=(IDLE, HALTED)), out=[TimeLimitedWay(broken), TimeLimitedWay(well)]
    )
    look(one, 4)

    assert sorted(well.got) == ["begins HALTED", "begins IDLE"]
    assert [(record.getMessage(), record.__dict__["event"]) for record in caplog.records] == [
        ("Alerts by mail to 1 address cannot be sent; they are tried again: ValueError", "alerts"),
    ]


def test_the_last_try_is_logged_as_lost(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FIRST_WAIT_SECONDS", 0.0)
    look(watcher(Kept(ValueError()), IDLE), 8)

    lost = [record.getMessage() for record in caplog.records if record.__dict__["event"] == "alert_lost"]
    assert lost == ["The alert by mail was given up: IDLE begins"]


@pytest.mark.parametrize("error", [OperationalError("gone"), Unseen("'default' did not answer within 5 s")])
def test_a_database_that_is_away_ends_no_thread(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    def away(_wanted: object) -> AlertFindings:
        raise error

    one = AlertWatcher(look=away, out=[TimeLimitedWay(Kept())])
    waits = [one.turn() for _ in range(3)]

    assert [wait > 0 for wait in waits] == [True] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"No alert can be sent, because what is wrong cannot be found out; it is tried again: {error}"
    ]


def test_what_live_status_finds_leaves_as_mail_when_the_broker_is_away_and_a_queue_is_halted() -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    QueueControl.objects.create(
        queue="pay", halted_at=long_ago, halted_seen_at=timezone.now(), halted_attempt=3, halted_error="BankDown: 503"
    )
    with override_settings(RMQ_RETRY={"URL": AWAY, "ALERTS": {"MAIL": ["ops@bank.example"], "LEVEL": "error"}}):
        found = find(conf.settings().alerts)
        look(AlertWatcher())

    assert found.blind
    assert [one.code for one in found.findings] == ["BROKER_AWAY", "HALTED_LONG"]
    assert [one.subject.partition(":")[0] for one in mail.outbox] == ["Error begins"] * 2
    assert "guest:guest" not in "".join(str(one.body) for one in mail.outbox)


def test_codes_and_levels_that_are_not_wanted_are_left_out() -> None:
    QueueControl.objects.create(
        queue="pay", halted_at=timezone.now(), halted_seen_at=timezone.now(), halted_error="BankDown"
    )
    mails = {"MAIL": ["ops@bank.example"]}
    found: Callable[..., list[str]] = lambda **more: [one.code for one in find_with({**mails, **more})]  # noqa: E731

    assert found() == ["BROKER_AWAY", "HALTED"]
    assert found(LEVEL="error") == ["BROKER_AWAY"]
    assert found(WITHOUT=["BROKER_AWAY"]) == ["HALTED"]


def test_another_error_is_found_by_its_name_and_queue_unless_its_group_is_muted() -> None:
    group = made.group(title="BankDown")
    made.message(group, queue="pay")
    made.message(group, queue="refund")
    made.message(made.group(title="KeyError", muted=True), queue="pay")

    [parked] = [one for one in find_with({"MAIL": ["ops@bank.example"]}) if one.code == "PARKED"]
    assert parked.causes == ("BankDown in pay", "BankDown in refund")


@pytest.mark.usefixtures("no_handlers")
def test_a_repair_names_the_virtual_host_of_the_queues(vhost: Vhost, amqp: BlockingChannel, settings: Any) -> None:
    @handler("payments.main", policy=RetryThenPark(attempts=2, via=Ladder([60])))
    def transfer(message: Delivery) -> None:
        """Nothing."""

    declare(vhost, registry.topology())
    amqp.basic_consume("payments.main.retry.1m", lambda *_delivery: None)
    with using_broker(settings, vhost.url, ALERTS={"MAIL": ["ops@bank.example"]}):
        [early] = [one for one in find(conf.settings().alerts).findings if one.code == "TOO_EARLY"]

    assert early.fix == f"Stop the program that consumes it: rabbitmqctl list_consumers -p {vhost.name}"


def find_with(alerts: dict[str, Any]) -> Any:
    with override_settings(RMQ_RETRY={"URL": AWAY, "ALERTS": alerts}):
        return find(conf.settings().alerts).findings


def test_a_process_that_ends_leaves_its_lease_to_the_next_one() -> None:
    one = watcher(Kept(), IDLE)
    one.look()
    held = AlertWatch.objects.get().leased_until
    one.at_end()

    assert (held is None, AlertWatch.objects.get().leased_until) == (False, None)


@nightly_on_sqlite
def test_a_kill_between_sending_and_recording_repeats_the_alert_once_with_the_same_id(
    own_database: Own, receiving: Receiver
) -> None:
    environment = {**os.environ, **own_database.environment, "HOOK": receiving.url}
    ended = processes.run([sys.executable, "-m", "tests.alerts.dying"], env=environment)
    assert ended.returncode == -signal.SIGKILL
    AlertWatch.objects.using(ALIAS).update(leased_until=None)
    ended = processes.run([sys.executable, "-m", "tests.alerts.dying"], env=environment)
    assert ended.returncode == -signal.SIGKILL
    wait_until(lambda: len(receiving.got) == 2)

    assert len({headers["Rmq-Retry-Alert"] for headers, _ in receiving.got}) == 1
    assert {json.loads(body)["event"] for _, body in receiving.got} == {"begins"}
    assert all(SECRET not in body.decode() for _, body in receiving.got)
