"""The handler of the fault tests and its policies; each message holds the action of its handler."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django_rmq_retry import (
    AckFirst,
    Batch,
    DeadLetter,
    Delivery,
    Fixed,
    Ladder,
    NackRequeue,
    Native,
    Queue,
    Republish,
    RetryThenPark,
    Steps,
    StopTheLine,
    WaitQueue,
)
from django_rmq_retry.handlers import Subscription, WorkQueue, work_queues_of
from django_rmq_retry.policies import Policy
from tests.faults import forks
from tests.tooling.waiting import wait_until

QUEUE, PARKED = "work", "work.parked"


class Broken(Exception):
    """Raised for a failure that may succeed at another attempt."""


class Hopeless(Exception):
    """Raised for a failure that no attempt resolves."""


POLICIES: Mapping[str, Policy] = {
    "ladder": RetryThenPark(attempts=3, backoff=Steps([0.2, 1]), via=Ladder(), park_on=Hopeless),
    "line": StopTheLine(backoff=Fixed(0.2), attempts=None),
    "patient_line": StopTheLine(backoff=Fixed(1.5)),
    "ack_first": RetryThenPark(attempts=3, backoff=Fixed(0.05), via=AckFirst()),
    "loop": RetryThenPark(attempts=3, via=DeadLetter(exchange="again", queue="work.again", after=0.2, back="")),
    "requeue": RetryThenPark(attempts=2, backoff=Fixed(0.05), via=NackRequeue()),
    "wait_queue": RetryThenPark(attempts=3, backoff=Fixed(0.2), via=WaitQueue("waiting", "work.waiting")),
    "republish": RetryThenPark(attempts=3, backoff=Fixed(0.05), via=Republish()),
    "native": RetryThenPark(attempts=3, via=Native(0.3, 1)),
    "batch": RetryThenPark(attempts=3, backoff=Steps([0.2, 1]), park_on=Hopeless),
}
BATCH = "batch"
"""The policy of a handler that takes batches."""


def _interrupt() -> None:
    raise KeyboardInterrupt


def _recurse() -> None:
    _recurse()


RAISED: Mapping[str, Callable[[], object]] = {
    "interrupt": _interrupt,
    "recursion": _recurse,
    "memory": lambda: bytearray(sys.maxsize),
}
"""Failures of a handler that are no ordinary exceptions."""


class Diary:
    """The actions of handlers, one line each, in a file that outlives their process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, word: str, message: int, attempt: int) -> None:
        now = time.monotonic_ns() // 1_000_000
        entry = json.dumps({"word": word, "id": message, "attempt": attempt, "pid": os.getpid(), "at": now}) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, entry.encode())
        finally:
            os.close(file)

    def entries(self, word: str) -> list[dict[str, int]]:
        if not self._path.exists():
            return []
        whole, _, _being_written = self._path.read_text().rpartition("\n")
        found = [json.loads(line) for line in whole.splitlines()]
        return [entry for entry in found if entry["word"] == word]

    def ids(self, word: str) -> list[int]:
        return [entry["id"] for entry in self.entries(word)]


class Act:
    """Perform the action of the message, and note its start and end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._diary = Diary(folder / "diary")

    def __call__(self, message: Delivery) -> None:
        said: Any = message.data
        self._diary.note("began", said["id"], message.attempt)
        if said.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if "exits" in said:
            os._exit(said["exits"])
        if "lasts" in said:
            threading.Event().wait(said["lasts"])
        if "holds" in said:
            wait_until((self._folder / said["holds"]).exists, 60, what=f"the gate {said['holds']}")
        if "forks" in said:
            forks.WAYS[said["forks"]]()
        if "raises" in said and message.attempt == 1:
            RAISED[said["raises"]]()
        if said.get("hopeless"):
            raise Hopeless("forever")
        if said.get("dies_done") and said["id"] not in self._diary.ids("did"):
            self._diary.note("did", said["id"], message.attempt)
            os.kill(os.getpid(), signal.SIGKILL)
        if message.attempt <= said.get("fails", 0):
            raise Broken("not yet")
        self._diary.note("did", said["id"], message.attempt)

    def together(self, messages: Sequence[Delivery]) -> None:
        for message in messages:
            self(message)


def work_queue(policy: str, folder: Path, *, park: str = PARKED, name: str = QUEUE, **queue: Any) -> WorkQueue:
    """Return the queue of a fault test, or a second one, with its handler."""
    act = Act(folder)
    subscription = Subscription(name="act", run=act, queue=Queue(name, **queue), policy=POLICIES[policy], park=park)
    if policy == BATCH:
        subscription = replace(subscription, batch=Batch(5, wait=0.2), run_batch=act.together)
    return work_queues_of([subscription])[0]
