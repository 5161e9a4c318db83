"""Dead-lettering: what died is routed on, at most once, or at least once where a queue asks for it."""

from collections.abc import Callable

from django_rmq_retry.embedded.engine.dying import cycles, letter
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.messages import Message
from django_rmq_retry.embedded.engine.queues import Queue
from django_rmq_retry.embedded.engine.routing import Router
from django_rmq_retry.embedded.engine.surroundings import Source, Surroundings

# An at-least-once dead letter that was not taken is tried again after this (rabbit_fifo_dlx_worker).
_AGAIN = 180.0


class Undertaker:
    """Empties `around.graves`. One after the other, so that a chain of deaths needs no recursion."""

    def __init__(self, around: Surroundings, router: Router) -> None:
        self._around = around
        self._router = router

    def bury_all(self) -> None:
        graves = self._around.graves
        while graves:
            queue, entry, reason = graves.popleft()
            self._bury(queue, entry, reason)

    def _bury(self, queue: Source, entry: Entry, reason: str) -> None:
        name = queue.spec.text("x-dead-letter-exchange")
        if name is None:
            self._around.lost[reason] += 1
            queue.forget(entry)
            return
        message = self._letter(queue, entry, reason, name)
        if not _at_least_once(queue):
            self._send(message, name)
            queue.forget(entry)
            return
        done: set[Queue] = set()
        if self._deliver(message, name, done):
            queue.forget(entry)
        else:
            queue.pending += 1
            queue.note(entry, "dying", reason)
            self._retry_later(queue, entry, lambda: self._deliver(message, name, done))

    def _letter(self, queue: Source, entry: Entry, reason: str, exchange: str) -> Message:
        clock = self._around.clock
        return letter(
            entry,
            self._around.behaviour,
            queue=queue.name,
            reason=reason,
            time=int(clock.now + clock.epoch),
            exchange=exchange,
            key=queue.spec.text("x-dead-letter-routing-key"),
        )

    def _send(self, message: Message, name: str) -> None:
        """At most once: what no queue takes is gone."""
        lost = self._around.lost
        exchange = self._router.exchanges.get(name)
        targets = () if exchange is None else self._router.route(exchange, message)
        if not targets:
            lost["dead letter unroutable"] += 1
        for target in targets:
            if cycles(target.name, message):
                lost["dead letter cycle"] += 1
            elif not target.offer(message):
                lost["dead letter refused"] += 1

    def _deliver(self, message: Message, name: str, done: set[Queue]) -> bool:
        """At least once: whether every queue that should have it has it."""
        exchange = self._router.exchanges.get(name)
        targets = () if exchange is None else self._router.route(exchange, message)
        for target in targets:
            if target in done:
                continue
            if cycles(target.name, message):
                self._around.lost["dead letter cycle"] += 1
                done.add(target)
            elif target.offer(message):
                done.add(target)
        return bool(targets) and done.issuperset(targets)

    def _retry_later(self, queue: Source, entry: Entry, attempt: Callable[[], bool]) -> None:
        clock = self._around.clock

        def again() -> None:
            if queue.closed:
                return
            if attempt():
                queue.pending -= 1
                queue.forget(entry)
            else:
                self._retry_later(queue, entry, attempt)
            self.bury_all()

        clock.at(clock.now + _AGAIN, again)


def _at_least_once(queue: Source) -> bool:
    """Only a quorum queue that refuses when full does it; any other falls back without a word."""
    spec = queue.spec
    return (
        spec.quorum
        and spec.text("x-dead-letter-strategy") == "at-least-once"
        and spec.text("x-overflow") == "reject-publish"
    )
