"""In the measured process: count messages and report times to the benchmark."""

import itertools
import json
import os
import signal
import time

from tests.bench.task import Task


class Marks:
    """Counts messages: any thread calls `tick` for each handled or confirmed one; a call takes less than 1 µs."""

    def __init__(self, task: Task) -> None:
        self._fd = task.told
        self._next = itertools.count(1).__next__
        self._failed = itertools.count(1).__next__
        self._at = {task.total: "end", 1: "first"}
        if task.skip:
            self._at[task.skip] = "start"
        self._takes_turns = task.turns > 0
        if self._takes_turns:
            self._at = {task.skip + turn * task.messages: task.mark_of(turn) for turn in range(task.turns + 1)}

    def tick(self) -> None:
        number = self._next()
        if number in self._at:
            self.say(self._at[number])
            if self._takes_turns:
                # All threads stop, until the benchmark sends SIGCONT.
                os.kill(os.getpid(), signal.SIGSTOP)

    def failed(self) -> None:
        """Note a planned failure; the time of the retries starts with the first of them."""
        if self._failed() == 1:
            self.say("start")

    def say(self, name: str) -> None:
        """Report the time, and the CPU time that all threads have used so far."""
        told = {"mark": name, "at": time.monotonic(), "cpu": time.process_time()}
        os.write(self._fd, json.dumps(told).encode() + b"\n")
