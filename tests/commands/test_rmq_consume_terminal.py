"""The text that an operator sees on a terminal."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import __version__
from tests.commands.terminals import screen
from tests.shop.running import ROOT, Shop
from tests.tooling.machine import open_terminal

CLOCK = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)
TOOK = re.compile(r"\d+\.?\d* m?s\b")
PID = re.compile(r"pid \d+")
CODES = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def shop(broker_url: str, tmp_path: Path, amqp: BlockingChannel) -> Shop:
    """The shop with three orders to handle one after the other."""
    for queue in ("shop.orders", "shop.orders.parked", "shop.orders.retry.200ms", "shop.ledger"):
        amqp.queue_declare(queue, durable=True)
    for number, (word, why) in enumerate((("ok", ""), ("park", ""), ("discard", ""))):
        body = json.dumps({"do": word, "why": why}).encode()
        amqp.basic_publish("", "shop.orders", body, BasicProperties(message_id=f"order\x1b-{number}"))
    return Shop(url=broker_url, notes=tmp_path / "notes")


def seen(shop: Shop, *words: str, **changed: str) -> str:
    """The output of a command that ends by itself, as a terminal gets it."""
    master, slave = open_terminal()
    command = shop.command(("rmq_consume", "shop.orders", "--burst", "--threads", "1", *words))
    process = subprocess.Popen(command, env=shop.environment(**changed), cwd=ROOT, stdout=slave, stderr=slave)
    os.close(slave)
    read = b""
    try:
        while piece := os.read(master, 65536):
            read += piece
    except OSError:
        # Linux says EIO where others say the end.
        pass
    finally:
        os.close(master)
    assert process.wait(timeout=30) == 0
    return read.decode().replace("\r\n", "\n")


def told(text: str) -> list[str]:
    """The lines without what differs from run to run."""
    return PID.sub("pid 1", TOOK.sub("1 ms", CLOCK.sub("", text))).splitlines()


def test_a_terminal_shows_the_banner_and_a_line_for_each_verdict(shop: Shop) -> None:
    text = seen(shop, TERM="xterm", NO_COLOR="")
    place = shop.url.replace("guest:guest@", "guest@")

    assert told("\n".join(screen(text)[:-1])) == [
        f"django-rmq-retry {__version__} · pid 1 · 1 thread · prefetch 10",
        "  queue     shop.orders  tests.shop.handlers.order",
        f"  broker    {place}",
        f"  database  default sqlite {shop.notes}.sqlite3",
        "Ctrl-C: finish and stop",
        f"· Connected to {text.partition('Connected to ')[2].partition(chr(10))[0]}",
        "✓ tests.shop.handlers.order order\\x1b-0 attempt 1/2 1 ms",
        "✕ tests.shop.handlers.order order\\x1b-1 attempt 1/2 1 ms → parked: the customer is unknown",
        "○ tests.shop.handlers.order order\\x1b-2 attempt 1/2 1 ms → discarded: too old",
        "· Stopping (every queue is empty): no message is in flight.",
    ]
    assert CODES.search(text)


def test_a_terminal_without_unicode_gets_ascii(shop: Shop) -> None:
    text = seen(shop, "--no-color", PYTHONIOENCODING="ascii")

    assert text.isascii()
    assert "x tests.shop.handlers.order" in text
    assert "-> parked: the customer is unknown" in text
