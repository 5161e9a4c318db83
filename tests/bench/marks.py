"""In the process that is measured: counts messages and tells the benchmark of the moments that matter."""

import itertools
import json
import os
import time

from tests.bench.task import Task


class Marks:
    """`tick` is called once per message handled or confirmed, from any thread; it costs a fraction of a microsecond."""

    def __init__(self, task: Task) -> None:
        self._fd = task.told
        self._next = itertools.count(1).__next__
        self._failed = itertools.count(1).__next__
        self._at = {task.total: "end", 1: "first"}
        if task.skip:
            self._at[task.skip] = "start"

    def tick(self) -> None:
        number = self._next()
        if number in self._at:
            self.say(self._at[number])

    def failed(self) -> None:
        """One message failed, as it was asked to; the time of a retry counts from the first of these."""
        if self._failed() == 1:
            self.say("start")

    def say(self, name: str) -> None:
        """Tell the moment, and the CPU time that all threads have used until then."""
        told = {"mark": name, "at": time.monotonic(), "cpu": time.process_time()}
        os.write(self._fd, json.dumps(told).encode() + b"\n")
