"""A consumer or a relay as a process: what is wrong leaves it as alerts, from the first message to the last one."""

import json
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.admin import made
from tests.alerts.receiving import Receiver
from tests.shop.running import Shop
from tests.tooling.filled import Own
from tests.tooling.marks import nightly_on_sqlite
from tests.tooling.owned import routed
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.database
PARKED = "shop.orders.parked"
SECRET = "DE89370400440532013000"
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.alerts.hurried.settings"}


@nightly_on_sqlite
def test_parked_messages_leave_a_consumer_as_alerts_when_they_begin_are_ten_times_as_many_and_end(
    broker_url: str, amqp: BlockingChannel, tmp_path: Path, own_database: Own, receiving: Receiver
) -> None:
    environment = {**own_database.environment, **SETTINGS, "HOOK": receiving.url}
    shop = Shop(url=broker_url, notes=tmp_path / "notes", records=environment).declared()

    def park(count: int) -> None:
        for number in range(count):
            amqp.basic_publish("", PARKED, b"{}", BasicProperties(message_id=f"{count}-{number}", delivery_mode=2))

    def told() -> list[tuple[str, int]]:
        found = [json.loads(body) for _headers, body in receiving.got]
        return [(one["event"], one["count"]) for one in found if one["code"] == "PARKED"]

    park(1)
    with shop.running("rmq_consume"):
        wait_until(lambda: told() == [("begins", 1)])
        park(9)
        wait_until(lambda: len(told()) == 2)
        discarded = shop.run("rmq_parked", "discard", "--all", "--category", "test", "--yes")
        wait_until(lambda: len(told()) == 3)

    assert discarded.returncode == 0, discarded.stderr
    assert told() == [("begins", 1), ("worsens", 10), ("ends", 10)]


@nightly_on_sqlite
def test_a_relay_sends_alerts_too_and_none_holds_a_body_or_a_text_of_an_error(
    broker_url: str, tmp_path: Path, own_database: Own, receiving: Receiver, settings: Any
) -> None:
    routed(settings)
    body = f'{{"iban": "{SECRET}"}}'.encode()
    made.message(queue="shop.orders", body=body, error_text=f"no account {SECRET}")
    made.outgoing(body=body, size=len(body))
    environment = {**own_database.environment, **SETTINGS, "HOOK": receiving.url}
    shop = Shop(url=broker_url, notes=tmp_path / "notes", records=environment).declared()
    with shop.running("rmq_relay"):
        wait_until(
            lambda: {"PARKED", "OUTBOX_FAILED"} <= {json.loads(sent)["code"] for _headers, sent in receiving.got}
        )

    assert [sent for _headers, sent in receiving.got if SECRET.encode() in sent] == []
