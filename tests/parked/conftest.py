"""The shop with records: a broker, a database, and processes that join them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.shop.running import Shop
from tests.tooling.filled import Own

Park = Callable[..., None]
PARKED = "shop.orders.parked"


@pytest.fixture
def shop(broker_url: str, tmp_path: Path, own_database: Own) -> Shop:
    """The shop with its queues declared and its tables made."""
    return Shop(url=broker_url, notes=tmp_path / "notes", records=own_database.environment).declared()


@pytest.fixture
def park(amqp: BlockingChannel) -> Park:
    """Put messages into a parked queue as a foreign service would."""
    amqp.confirm_delivery()

    def park(*bodies: bytes, queue: str = PARKED, id: str | None = None, **headers: Any) -> None:  # noqa: A002
        for body in bodies:
            said = BasicProperties(message_id=id, delivery_mode=2, headers=headers or None)
            amqp.basic_publish("", queue, body, said, mandatory=True)

    return park
