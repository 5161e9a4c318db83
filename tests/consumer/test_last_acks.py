"""A consumer lives on as its connection is lost, and the acks of what it has handled with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import Attempt
from tests.breakers.bank import Bank, Consumer
from tests.tooling.filled import ALIAS, Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE
from tests.tooling.proxy import Mode, Proxy, proxy_to
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]
PAYMENTS = [{"payment": f"PAY-{number}"} for number in range(3)]


@pytest.fixture
def bank(broker_url: str, tmp_path: Path, own_database: Own, amqp: BlockingChannel) -> Iterator[Bank]:
    more = {"DJANGO_SETTINGS_MODULE": "tests.consumer.project.settings"}
    bank = Bank(url=broker_url, folder=tmp_path, records=own_database.environment, amqp=amqp, more=more)
    declared = bank.run("rmq_declare")
    assert declared.returncode == 0, declared.stderr
    yield bank
    (tmp_path / "go").touch()


@contextmanager
def behind_a_line(bank: Bank) -> Iterator[tuple[Consumer, Proxy]]:
    """A consumer that has three payments in its handlers, behind a line that can be cut."""
    port = urlsplit(bank.url).port or 5672
    with proxy_to(port) as line:
        far = replace(bank, url=bank.url.replace(f":{port}/", f":{line.port}/"))
        with far.consuming("--threads", "3", "payments") as consumer:
            bank.publish("payments", *PAYMENTS)
            wait_until(lambda: len(bank.diary("began")) == 3, 60, what=consumer.said)
            yield consumer, line


def attempts() -> list[tuple[str, bool]]:
    found = Attempt.objects.using(ALIAS).filter(verdict="ack", cycle=1)
    return sorted(found.values_list("message_id", "redelivered"))


def noted(*, again: bool) -> list[tuple[str, bool]]:
    return [(f"payments-{one}", again) for one in PAYMENTS]


def test_what_is_handled_again_after_its_ack_was_lost_is_known_to_be_handled_twice(bank: Bank) -> None:
    """It was paid twice, and no page told it: the first payment had left no trace."""
    with behind_a_line(bank) as (consumer, line):
        line.set(Mode.BLACKHOLE)
        (bank.folder / "go").touch()
        wait_until(lambda: len(bank.did()) == 3, 60, what=consumer.said)
        line.set(Mode.RST)
        line.set(Mode.PASS)
        wait_until(lambda: len(bank.did()) == 6, 60, what=consumer.said)
        wait_until(lambda: len(attempts()) == 6, 60, what=consumer.said)
        consumer.says("Queue 'payments': its connection was lost, and with it perhaps the acks")
        assert consumer.stopped() == 0

    assert attempts() == sorted(noted(again=False) + noted(again=True))


def test_a_consumer_that_is_stopped_while_its_line_hangs_notes_what_it_has_handled(bank: Bank) -> None:
    """Operators restart consumers while the network fails, and the next one pays again."""
    with behind_a_line(bank) as (consumer, line):
        line.set(Mode.BLACKHOLE)
        (bank.folder / "go").touch()
        wait_until(lambda: len(bank.did()) == 3, 60, what=consumer.said)
        assert consumer.stopped() == 1, consumer.said
        line.set(Mode.RST)
    with bank.consuming("payments") as other:
        wait_until(lambda: len(bank.did()) == 6, 60, what=other.said)
        assert other.stopped() == 0

    assert attempts() == sorted(noted(again=False) + noted(again=True))


def test_a_consumer_that_stops_in_good_order_notes_nothing(bank: Bank) -> None:
    with behind_a_line(bank) as (consumer, _line):
        (bank.folder / "go").touch()
        wait_until(lambda: len(bank.did()) == 3, 60, what=consumer.said)
        assert consumer.stopped() == 0

    assert attempts() == []
