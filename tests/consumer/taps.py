"""A source whose messages come from the test."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django_rmq_retry import Delivery
from django_rmq_retry.amqp import Line
from django_rmq_retry.amqp.contracts import LostLine
from django_rmq_retry.messages import Settlement
from tests.handlers.factories import delivery

Settled = tuple[bytes, Settlement]


class Tap:
    """A source that delivers the messages of the test, and keeps the settlements it receives."""

    def __init__(self) -> None:
        self.alive = self.ready = True
        self.copies = 0
        self.is_empty = False
        self.receives_last_acks = True
        self.lines: Sequence[Line] = ()
        self.settled: list[Settled] = []
        self.returned: list[bytes] = []
        self.words: list[str] = []
        self.untouched_marks: dict[str, object] = {}
        self.asked: list[Callable[[bool], None]] = []
        self.lost: list[Delivery] = []
        self.receiver: Any = None

    def start(self, lines: Sequence[Line], receiver: object) -> None:
        self.lines, self.receiver = lines, receiver

    def settle(self, arrival: Delivery, settlement: Settlement) -> None:
        self.settled.append((arrival.body, settlement))

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self.returned += [one.body for one in deliveries]

    def pause(self, queue: str) -> None:
        self.words.append(f"pause {queue}")

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self.words.append(f"resume {queue} {prefetch}")

    def untouched(self, queue: str) -> object:
        return self.untouched_marks.get(queue)

    def when_answered(self, queue: str, callback: Callable[[bool], None]) -> None:
        self.asked.append(callback)

    def knows(self, delivery: Delivery) -> bool:
        return delivery not in self.lost

    def unsettled(self, queue: str) -> int | None:
        return 0 if f"pause {queue}" in self.words else None

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()

    def quiesce(self) -> None:
        self.words.append("quiesce")

    def stop(self) -> None:
        self.words.append("stop")
        if self.receives_last_acks:
            self.receiver.closed()

    def take_lost(self) -> Sequence[LostLine]:
        return ()

    def take_unclosed(self) -> Sequence[LostLine]:
        return ()

    def report_emptiness(self, told: Callable[[bool], None]) -> None:
        told(self.is_empty)

    def bring(self, *bodies: bytes) -> None:
        for body in bodies:
            self.receiver.arrived(delivery(body=body))
