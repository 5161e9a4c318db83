"""The bank with its queues declared and its tables made."""

from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.breakers.bank import Bank
from tests.tooling.filled import Own


@pytest.fixture
def bank(broker_url: str, tmp_path: Path, own_database: Own, amqp: BlockingChannel) -> Bank:
    bank = Bank(url=broker_url, folder=tmp_path, records=own_database.environment, amqp=amqp)
    declared = bank.run("rmq_declare")
    assert declared.returncode == 0, declared.stderr
    return bank
