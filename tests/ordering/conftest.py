"""A bank whose postings keep their order within each account."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.testing import isolated_handlers
from tests.ordering.bank import Bank
from tests.ordering.ledger import Ledger
from tests.shop.running import Shop
from tests.tooling.filled import Own
from tests.tooling.vhosts import Vhost


@pytest.fixture(autouse=True)
def no_handlers() -> Iterator[None]:
    with isolated_handlers():
        yield


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def ledger(vhost: Vhost, tmp_path: Path, own_database: Own, amqp: BlockingChannel) -> Ledger:
    """Declare the queues of the ledger and create its tables."""
    told = {**own_database.environment, "SHOP_APPS": "tests.ordering.project"}
    shop = Shop(url=vhost.url, notes=tmp_path / "notes", records=told).declared()
    amqp.confirm_delivery()
    return Ledger(shop=shop, amqp=amqp, vhost=vhost)
