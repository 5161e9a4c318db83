"""A process that until SIGTERM takes a dependency of handlers down and up, and pauses and resumes a queue."""

import io
import random
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event

from django.core.management import call_command

from tests.chaos.lanes import lanes
from tests.chaos.ledger import PAUSED, RESUMED, Ledger, now
from tests.chaos.underfire import Helper, tried

STEP = 0.1
AGAIN = 0.5
FIRST_PAUSE = 14.0
"""Seconds of the first pause, long enough to be judged before the first nemesis."""
PATIENCE = 60.0
NOTHING_TO_DO = 6
PAUSES, FLOWS = (5.0, 12.0), (6.0, 15.0)
OUTAGES, WELL = (2.0, 6.0), (4.0, 12.0)
LEAST = 0.3
BY_ITSELF = 0.3
"""The share of pauses with an end time."""


class Dependency:
    """A dependency of handlers: it is down while a file exists."""

    def __init__(self, folder: Path) -> None:
        self._down = folder / "down"

    @property
    def down(self) -> bool:
        return self._down.exists()

    def fail(self) -> None:
        self._down.touch()

    def mend(self) -> None:
        self._down.unlink(missing_ok=True)

    def turn(self, chance: random.Random) -> float:
        """Switch the state; return the seconds until the next switch."""
        if self.down:
            self.mend()
            return chance.uniform(*WELL)
        self.fail()
        return chance.uniform(*OUTAGES)


class Gate:
    """A queue paused and resumed by the command. The ledger has only the time in which the pause is certain."""

    def __init__(self, queue: str, ledger: Ledger, *, first: float | None = None) -> None:
        self._queue = queue
        self._ledger = ledger
        self._first = first
        self._paused = False

    def turn(self, chance: random.Random) -> float:
        """Switch the state; return the seconds until the next switch."""
        if self._paused:
            self.resume()
            return chance.uniform(*FLOWS)
        seconds = self._first or chance.uniform(*PAUSES)
        self._first = None
        asked = now()
        if chance.random() < BY_ITSELF:
            command("pause", self._queue, "--for", f"{round(seconds)}s", "--reason", "chaos")
            self._ledger.note(PAUSED, self._queue, now(), asked + round(seconds) * 1000)
            return seconds + LEAST + chance.uniform(*FLOWS)
        self._paused = True
        command("pause", self._queue, "--reason", "chaos")
        self._ledger.note(PAUSED, self._queue, now(), 0)
        return seconds

    def resume(self) -> None:
        self._ledger.note(RESUMED, self._queue, now())
        command("resume", self._queue)
        self._paused = False


def command(act: str, *words: str) -> None:
    """Run the command of an operator; resuming a queue that is not paused is no failure."""
    try:
        call_command("rmq_queue", act, *words, stdout=io.StringIO(), stderr=io.StringIO())
    except SystemExit as end:
        if end.code not in {0, NOTHING_TO_DO}:
            raise RuntimeError(f"rmq_queue {act} ended with {end.code}") from end


def release(folder: Path, ledger: Ledger) -> bool:
    """Bring the dependency up and resume all queues; return True if that succeeded in time."""
    Dependency(folder).mend()
    gates = [Gate(lane.queue, ledger) for lane in lanes().values() if lane.gated]
    deadline, pause = time.monotonic() + PATIENCE, Event()
    while time.monotonic() < deadline:
        if all(tried(gate.resume) for gate in gates):
            return True
        pause.wait(AGAIN)
    return False


def main() -> int:
    helper = Helper("steering")
    if helper.life != "1":
        release(helper.folder, helper.ledger)
    first = FIRST_PAUSE if helper.life == "1" else None
    gates = [Gate(lane.queue, helper.ledger, first=first) for lane in lanes().values() if lane.gated]
    due: dict[Dependency | Gate, float] = dict.fromkeys([Dependency(helper.folder), *gates], 0.0)

    def turn(one: Dependency | Gate) -> None:
        due[one] = time.monotonic() + AGAIN
        due[one] = time.monotonic() + one.turn(helper.chance)

    while not helper.stopping.wait(STEP):
        for one, at in due.items():
            if time.monotonic() >= at:
                tried(partial(turn, one))
    return 0


if __name__ == "__main__":
    sys.exit(main())
