"""A consumer with the threads beside it: pauses and breakers, the heartbeat, and the record of its attempts."""

import time
from contextlib import nullcontext
from dataclasses import dataclass

from django_rmq_retry.breakers.watch import Watch
from django_rmq_retry.consumer.consumer import Consumer
from django_rmq_retry.consumer.heartbeat import Heartbeat
from django_rmq_retry.consumer.recorder import Recorder

FLUSH_SECONDS = 5.0
"""Seconds at the end of a run for the last write of pauses, breakers and the heartbeat to the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerWithThreads:
    """Runs its consumer while these threads run; without records there is neither a recorder nor a heartbeat."""

    consumer: Consumer
    watch: Watch
    heartbeat: Heartbeat | None
    recorder: Recorder | None

    def run(self) -> int:
        """Start the threads, consume, stop the threads and return the exit code of the consumer."""
        self.watch.start()
        try:
            if self.heartbeat is not None:
                self.heartbeat.start()
            with self.recorder.recording() if self.recorder else nullcontext():
                return self.consumer.run()
        finally:
            self._stop_threads()

    def _stop_threads(self) -> None:
        """Stop both threads at the same time, so that a database that hangs costs FLUSH_SECONDS once."""
        ends = time.monotonic() + FLUSH_SECONDS
        if self.heartbeat is not None:
            self.heartbeat.stop(0.0)
        self.watch.stop(FLUSH_SECONDS)
        if self.heartbeat is not None:
            self.heartbeat.stop(max(ends - time.monotonic(), 0.0))
