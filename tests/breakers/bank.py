"""Runs the bank's commands as processes of their own, and reads what their handlers did."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.tooling import processes
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(slots=True, kw_only=True)
class Bank:
    """One bank on a broker and a database."""

    url: str
    folder: Path
    records: dict[str, str]
    more: dict[str, str] = field(default_factory=dict)
    amqp: BlockingChannel

    def environment(self) -> dict[str, str]:
        own = {
            "DJANGO_SETTINGS_MODULE": "tests.breakers.project.settings",
            "PYTHONPATH": str(ROOT),
            "BANK_URL": self.url,
            "BANK_FOLDER": str(self.folder),
        }
        return {**os.environ, **own, **self.records, **self.more}

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "django", *words]
        return processes.run(command, env=self.environment())

    @contextmanager
    def consuming(self, *words: str) -> Iterator["Consumer"]:
        """``rmq_consume``; what is left of it in the end is killed."""
        number = len(list(self.folder.glob("consumer-*")))
        log = self.folder / f"consumer-{number}.log"
        with log.open("wb") as out:
            command = [sys.executable, "-W", "error", "-m", "django", "rmq_consume", *words]
            process = processes.start(command, env=self.environment(), stdout=out, stderr=out)
        try:
            yield Consumer(process, log)
        finally:
            process.kill()
            process.wait()

    def publish(self, queue: str, *data: Any) -> None:
        self.amqp.confirm_delivery()
        for one in data:
            named: dict[str, Any] = {"message_id": f"{queue}-{one}", "timestamp": int(time.time())}
            said = pika.BasicProperties(delivery_mode=2, content_type="application/json", **named)
            self.amqp.basic_publish("", queue, json.dumps(one).encode(), said, mandatory=True)

    def ready(self, queue: str) -> int:
        return int(self.amqp.queue_declare(queue, passive=True).method.message_count)

    def consumers(self, queue: str) -> int:
        return int(self.amqp.queue_declare(queue, passive=True).method.consumer_count)

    def diary(self, word: str = "did") -> list[dict[str, Any]]:
        path = self.folder / "diary"
        if not path.exists():
            return []
        whole, _, _being_written = path.read_text().rpartition("\n")
        return [entry for line in whole.splitlines() if (entry := json.loads(line))["word"] == word]

    def did(self) -> list[Any]:
        return [entry["of"] for entry in self.diary()]

    def goes_down(self) -> None:
        (self.folder / "down").touch()

    def comes_back(self) -> None:
        (self.folder / "down").unlink()


@dataclass(slots=True)
class Consumer:
    """One consuming process."""

    process: "processes.Started"
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def says(self, text: str, *, times: int = 1) -> None:
        wait_until(lambda: self.said.count(text) >= times, what=f"{text!r} in {self.said}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stopped(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)
