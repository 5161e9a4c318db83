"""Brokers as processes of their own, distinguished by their folders."""

import json
import os
import signal
from pathlib import Path

import pika
from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.embedded.place import NotRunning, port_of
from tests.tooling.waiting import wait_until


def pid_in(folder: Path) -> int:
    return int(json.loads((folder / "broker.json").read_text())["pid"])


def running(folder: Path) -> bool:
    try:
        port_of(folder)
    except NotRunning:
        return False
    return True


def end(folder: Path, how: signal.Signals = signal.SIGTERM) -> None:
    """Have the folder's broker end, and wait until it has."""
    os.kill(pid_in(folder), how)
    wait_until(lambda: not running(folder), what="the broker's end")


def connected(folder: Path) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port_of(folder)))


def depth(folder: Path, queue: str) -> int:
    with connected(folder) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def consumers(folder: Path, queue: str) -> int:
    with connected(folder) as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.consumer_count)
        except ChannelClosedByBroker:
            return 0
