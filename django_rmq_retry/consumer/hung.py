"""Finds handlers that their deadline could not end, logs where they hang, and settles their messages without them."""

import logging
import threading
import time
import traceback
from collections.abc import Hashable, Sequence
from contextlib import suppress

from django_rmq_retry.amqp.contracts import Source
from django_rmq_retry.consumer.attempt import AttemptPipeline
from django_rmq_retry.consumer.deadlines import TimedRun
from django_rmq_retry.handlers.contracts import log_failure
from django_rmq_retry.handlers.loop import known_loop
from django_rmq_retry.messages.message import Delivery

log = logging.getLogger("django_rmq_retry")

RECORD_SECONDS = 5.0
"""Seconds to record the attempts of handlers that hang."""


class HungHandlers:
    """The hung handlers of one consumer. Its main thread calls these methods, a worker thread only ``has_settled``."""

    def __init__(self, pipeline: AttemptPipeline, source: Source) -> None:
        self._pipeline = pipeline
        self._source = source
        self._settled = set[Hashable]()
        """The tokens of messages that are settled, or return to their queue, without their handler."""
        self._named = set[TimedRun]()
        """The runs whose place in the code is in the log."""

    def look(self) -> Sequence[TimedRun]:
        """Return the runs that hang now, first the one that blocks the event loop, and with it the others.

        Also replace a watcher of deadlines that has died.
        """
        deadlines, loop = self._pipeline.deadlines, known_loop()
        deadlines.keep_watch()
        blocking = None if loop is None else loop.blocked_by
        return sorted(deadlines.hung, key=lambda run: blocking is None or run.delivery.token is not blocking.token)

    def reason_to_stop(self, run: TimedRun) -> str:
        """Return why the process stops for this run, which the consumer logs."""
        self._named.add(run)
        what = f"message is {'parked' if run.part else 'settled as a failed attempt'}"
        if run.batch:
            what = f"{len(run.batch)} messages return to their queue, and each is then handled alone"
        return f"{_located(run)} Its {what}. This process ends once its other handlers have ended; start a new one."

    def has_settled(self, delivery: Delivery) -> bool:
        """True if a message was left to a hung handler's end: what the handler still returns is ignored."""
        return delivery.token in self._settled

    def settle(self, runs: Sequence[TimedRun]) -> None:
        """Settle the messages of hung handlers, within a time limit: a hanging database must not block the exit.

        Those of a batch return to their queue: all but one of them did nothing.
        """
        for run in runs:
            if run.batch and self._pipeline.deadlines.abandon(run):
                self._settled.update(delivery.token for delivery in run.batch)
        for run in runs:
            if run not in self._named:
                log_failure(_located(run), run.error())
        threads = [
            threading.Thread(target=self._settle, args=(run,), name="rmq-abandon", daemon=True)
            for run in runs
            if not run.batch
        ]
        end = time.monotonic() + RECORD_SECONDS
        with suppress(RuntimeError):
            # If no thread can be started, the message returns to its queue.
            for thread in threads:
                thread.start()
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        left = sum(thread.ident is None or thread.is_alive() for thread in threads)
        if left:
            log.error(
                "%s hanging handlers have no record of their attempt; their messages return to their queues, or are "
                "lost with ack=auto",
                left,
            )

    def _settle(self, run: TimedRun) -> None:
        self._settled.add(run.delivery.token)
        if not self._pipeline.deadlines.abandon(run):
            # The handler has ended in the meantime, so its worker thread settles the message.
            self._settled.discard(run.delivery.token)
            return
        try:
            self._source.settle(run.delivery, self._pipeline.settle_hung(run))
        except Exception:
            log.exception(
                "The attempt of a hanging handler cannot be recorded; its message returns to its queue, or is lost "
                "with ack=auto"
            )


def _located(run: TimedRun) -> str:
    """Return the sentence that a handler hangs, with its place in the code."""
    error = run.error()
    place = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" It is at {place[0].filename}:{place[0].lineno} ({place[0].name})." if place else ""
    what = run.part or "handler"
    return f"{error}: a call that Python cannot interrupt, or the {what} caught {run.exception}.{at}"
