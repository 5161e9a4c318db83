"""Writes down what the broker says after nobody waits for it any more, in a thread that lives only meanwhile."""

import logging
import os
import queue
import threading

from django.db import connections

from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.outbox import judging, settling
from django_rmq_retry.outbox.judging import Fault
from django_rmq_retry.outbox.posting import Answer
from django_rmq_retry.outbox.reach import reach
from django_rmq_retry.outbox.rows import Row

log = logging.getLogger("django_rmq_retry")

IDLE = 5.0
"""Seconds without an answer after which the thread ends."""
PAUSE, TRIES = 0.5, 10
MOST = 500


class Clerk:
    """Takes answers from any thread, at once; the broker's thread must never wait for a database."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False
        self._ended = threading.Event()

    def take(self, using: str, answer: Answer) -> None:
        """Write this one down soon."""
        if answer.outcome is Outcome.CONFIRMED:
            reach.found()
        self._answers.put((using, answer))
        with self._lock:
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="rmq-outbox-late", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                try:
                    first = self._answers.get(timeout=IDLE)
                except queue.Empty:
                    with self._lock:
                        if self._answers.empty():
                            self._busy = False
                            return
                    continue
                self._write([first, *self._rest()])
        finally:
            connections.close_all()

    def _rest(self) -> list[tuple[str, Answer]]:
        found: list[tuple[str, Answer]] = []
        while len(found) < MOST and not self._answers.empty():
            found.append(self._answers.get())
        return found

    def _write(self, answers: list[tuple[str, Answer]]) -> None:
        for using in dict.fromkeys(using for using, _answer in answers):
            told = [answer for alias, answer in answers if alias == using]
            for left in reversed(range(TRIES)):
                try:
                    written(told, using=using)
                    break
                except Exception as error:  # noqa: BLE001 - a database that is away
                    connections[using].close()
                    if not left:
                        log.warning("%s answers for the outbox of %r are lost: %s", len(told), using, error)
                    self._ended.wait(PAUSE)


def written(answers: list[Answer], *, using: str) -> None:
    """Delete what was confirmed, put off what failed by its own fault, leave the rest to the relays."""
    confirmed = [answer.row.id for answer in answers if answer.outcome is Outcome.CONFIRMED]
    if confirmed:
        settling.delete(confirmed, using=using)
    free: list[Row] = []
    for answer in answers:
        if answer.outcome is Outcome.CONFIRMED:
            continue
        whose = judging.fault(answer, alone=False)
        if whose in (Fault.BROKER, Fault.SHARED):
            free.append(answer.row)
        else:
            judging.failed(answer.row, using=using, why=answer.said or answer.outcome.value, whose=whose)
    if free:
        settling.release(free, using=using)


clerk = Clerk()


def _forked() -> None:
    """In the child: the parent's answers are the parent's."""
    global clerk  # noqa: PLW0603 - there is one process
    clerk = Clerk()


os.register_at_fork(after_in_child=_forked)
