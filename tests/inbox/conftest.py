"""The till: a broker, a database, and processes that use both."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.shop.running import Shop
from tests.tooling.filled import Own
from tests.tooling.waiting import wait_until

BY_ID, BY_NUMBER = "till.by.id", "till.by.number"
Send = Callable[..., None]


class Till(Shop):
    """The commands of the shop, run in the till's project."""

    def environment(self, **changed: str) -> dict[str, str]:
        own = {"DJANGO_SETTINGS_MODULE": "tests.inbox.till.settings", "SHOP_APPS": "tests.inbox.till"}
        return super().environment(**{**own, **changed})


@pytest.fixture
def till(broker_url: str, tmp_path: Path, own_database: Own) -> Till:
    """Declare the queues and create the tables."""
    return Till(url=broker_url, notes=tmp_path / "notes", records=own_database.environment).declared()


@pytest.fixture
def send(amqp: BlockingChannel) -> Send:
    """Publish like any client, with or without an id."""
    amqp.confirm_delivery()

    def send(number: int, *, id: str | None = "m", queue: str = BY_ID, **data: Any) -> None:  # noqa: A002
        said = BasicProperties(message_id=id, delivery_mode=2)
        amqp.basic_publish("", queue, json.dumps({"n": number, **data}).encode(), said, mandatory=True)

    return send


def done() -> list[int]:
    """Return the numbers of the effects, one for each run."""
    return sorted(int(name.split()[0]) for name in Group.objects.using("own").values_list("name", flat=True))


def left(amqp: BlockingChannel, queue: str = BY_ID) -> int:
    return int(amqp.queue_declare(queue, passive=True).method.message_count)


def wait_for_done(*numbers: int) -> None:
    def missing() -> list[int]:
        return sorted(set(numbers) - set(done()))

    try:
        wait_until(lambda: not missing(), 60, step=0.1)
    except AssertionError as late:
        raise AssertionError(f"Not done: {missing()} of {len(numbers)}; done: {done()}") from late
    finally:
        connections["own"].close()
