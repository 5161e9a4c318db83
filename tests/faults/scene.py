"""The scene of a fault test: a virtual host, a folder, consumer processes, and the count of every id."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByBroker

from django_rmq_retry.topology import Topology
from tests.amqp.declared import declare, ready
from tests.faults.handlers import PARKED, QUEUE, Diary, work_queue
from tests.handlers.factories import topology_of
from tests.tooling import processes
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]
REASON = "rmq-retry-reason"
QUIET = 4
"""Consecutive checks that must find every queue empty."""
INTERNAL_ERROR = 541
"""The reply code of a quorum queue without a leader, for some seconds after its node was killed."""


class Worker:
    """One consumer process."""

    def __init__(self, process: "processes.Started", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """Return the log so far."""
        return self._log.read_text() if self._log.is_file() else ""

    @property
    def ending(self) -> str:
        """Return the last lines of the log that are not about one message."""
        lines = [line for line in self.said.splitlines() if not line.startswith("rmq-worker")]
        return "\n".join(lines[-8:])

    def signal(self, sign: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(sign)

    def ended(self, timeout: float = 60) -> int:
        """Return the exit code; negative for a signal."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"Still running after {timeout:g} s. It said:\n{self.said[-3000:]}") from None

    def stopped(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def remove(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


@dataclass(slots=True, kw_only=True)
class Scene:
    """The environment of one test; its processes are ended with the test."""

    vhost: Vhost
    folder: Path
    policy: str = "ladder"
    queue: dict[str, Any] = field(default_factory=dict)
    before: str = ""
    """A second queue with the same handler and parked queue, consumed before the first."""
    workers: list[Worker] = field(default_factory=list)
    seen: list[tuple[int, str]] = field(default_factory=list)
    """Messages taken from the parked queue: id and reason."""

    def declare(self, policy: str = "ladder", **queue: Any) -> None:
        self.policy, self.queue = policy, queue
        declare(self.vhost, self._layout())

    def _layout(self) -> Topology:
        names = [self.before, QUEUE] if self.before else [QUEUE]
        queues = [work_queue(self.policy, self.folder, name=name, **self.queue) for name in names]
        return topology_of(*(handler for queue in queues for handler in queue.subscriptions))

    def worker(
        self,
        *,
        prefetch: int = 10,
        threads: int = 1,
        breaks: tuple[str, int] | None = None,
        url: str = "",
        shutdown: float = 30,
        longest_hold: float = 600,
        parks: bool = True,
        root: Path = ROOT,
        **settings: Any,
    ) -> Worker:
        """Start a consumer of the version in ``root``; it subscribes a moment later."""
        number = len(self.workers)
        said = {
            "policy": self.policy,
            "queue": self.queue,
            "before": self.before,
            "prefetch": prefetch,
            "threads": threads,
            "breaks": breaks,
            "shutdown": shutdown,
            "longest_hold": longest_hold,
            "parks": parks,
            "settings": {"URL": url or self.vhost.url, **settings},
        }
        (self.folder / f"worker-{number}.json").write_text(json.dumps(said))
        words = ("tests.faults.worker", str(self.folder), str(number))
        return self._started(*words, project="tests.settings", root=root)

    def command(self, *options: str, url: str = "", log: Path | None = None) -> Worker:
        """Start ``manage.py rmq_consume``, for a scene with the policy "ladder"."""
        words = ("django", "rmq_consume", "--max-runtime", "120", *options)
        return self._started(*words, project="tests.faults.project.settings", url=url, log=log)

    def _started(self, *words: str, project: str, url: str = "", log: Path | None = None, root: Path = ROOT) -> Worker:
        log = log or self.folder / f"worker-{len(self.workers)}.log"
        own = {"FAULTS_FOLDER": str(self.folder), "FAULTS_URL": url or self.vhost.url}
        env = {**os.environ, **own, "PYTHONPATH": str(root), "DJANGO_SETTINGS_MODULE": project}
        command = [sys.executable, "-m", *words]
        with log.open("wb") as out:
            process = processes.start(command, env=env, cwd=root, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        worker = Worker(process, log)
        self.workers.append(worker)
        return worker

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """Open a plain channel with confirms."""
        connection = pika.BlockingConnection(pika.URLParameters(self.vhost.url))
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            yield channel
        finally:
            if connection.is_open:
                connection.close()

    def publish(self, ids: Iterable[int], queue: str = QUEUE, /, **what: Any) -> None:
        """Publish messages, confirmed and mandatory, each with an id and the action of its handler."""
        with self.channel() as channel:
            for one in ids:
                plain = pika.BasicProperties(delivery_mode=2, content_type="application/json", message_id=str(one))
                channel.basic_publish("", queue, json.dumps({"id": one, **what}).encode(), plain, mandatory=True)

    @property
    def diary(self) -> Diary:
        return Diary(self.folder / "diary")

    def did(self) -> Counter[int]:
        """Return how often each message was handled to the end."""
        return Counter(self.diary.ids("did"))

    def began(self) -> Counter[int]:
        """Return how often the handler was called for each message."""
        return Counter(self.diary.ids("began"))

    def open(self, gate: str) -> None:
        """Let waiting handlers continue."""
        (self.folder / gate).touch()

    def parked(self) -> list[tuple[int, str]]:
        """Take all messages from the parked queue; return the ids parked so far, with their reasons."""
        try:
            with self.channel() as channel:
                self._take_parked(channel)
        except ConnectionClosedByBroker as error:
            if error.reply_code != INTERNAL_ERROR:
                raise
        return self.seen

    def _take_parked(self, channel: BlockingChannel) -> None:
        while True:
            method, properties, body = channel.basic_get(PARKED)
            if method is None or properties is None or body is None:
                return
            reason = (properties.headers or {}).get(REASON, "")
            self.seen.append((json.loads(body)["id"], str(reason)))
            channel.basic_ack(method.delivery_tag or 0)

    def parked_ids(self) -> list[int]:
        return sorted(one for one, _ in self.parked())

    def left(self) -> dict[str, int]:
        """Return the queues, except the parked one, with ready messages."""
        with self.channel() as channel:
            depths = {name: ready(channel, name) for name in self.names() if name != PARKED}
        return {name: depth for name, depth in depths.items() if depth}

    def names(self) -> list[str]:
        """Return the declared queues."""
        return list(self._layout().queues)

    def finish(self, ids: Iterable[int], *workers: Worker, timeout: float = 60) -> None:
        """Wait until each id is handled or parked and all queues are empty; then stop the workers."""
        wanted = set(ids)
        try:
            wait_until(lambda: not self.lost(wanted), timeout, what="every message is handled or parked", step=0.1)
        except AssertionError as late:
            lost = sorted(self.lost(wanted))
            said = [worker.said[-2000:] for worker in workers]
            raise AssertionError(
                f"{late}; {len(lost)} are not, such as {lost[:5]}; left in {self.left()}; the workers said: {said}"
            ) from None
        looks: list[dict[str, int]] = []

        def quiet() -> bool:
            looks.append(self.left())
            # A message between two queues, or being requeued, is in no queue for a moment.
            return len(looks) > QUIET and not any(looks[-QUIET:])

        wait_until(quiet, timeout, what="every queue is empty", step=0.1)
        codes = [worker.stopped() for worker in workers]
        assert not any(codes), f"Exit codes {codes}; {[worker.ending for worker in workers]}"
        assert self.left() == {}

    def lost(self, confirmed: Iterable[int]) -> set[int]:
        """Return confirmed ids that are neither handled nor parked."""
        return set(confirmed) - set(self.did()) - set(self.parked_ids())

    def close(self) -> None:
        for worker in self.workers:
            worker.remove()
