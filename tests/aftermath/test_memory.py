"""The memory that one message may take."""

from pathlib import Path

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.aftermath.conftest import Project

pytestmark = pytest.mark.slow
MANY = {"objects": b"[" + b"{}," * 5_000_000 + b"{}]", "strings": b"[" + b'"",' * 5_000_000 + b'""]'}
"""Bodies of 15 MB. The data of the first would take more than a gigabyte; a copy without its strings, the second."""
MOST_MB = 700


@pytest.mark.parametrize("kind", MANY)
def test_bodies_of_many_small_values_take_little_memory(project: Project, amqp: BlockingChannel, kind: str) -> None:
    amqp.confirm_delivery()
    with project.running("rmq_consume", "--threads", "4") as consumer:
        consumer.says("Connected")
        for number in range(4):
            amqp.basic_publish(
                "", "aftermath.plain", MANY[kind], BasicProperties(message_id=f"m{number}"), mandatory=True
            )
        consumer.says("undecodable_body", times=4)
        status = Path(f"/proc/{consumer.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        consumer.signal()
        assert consumer.code() == 0

    assert peak // 1024 < MOST_MB
