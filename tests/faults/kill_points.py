"""Break a consumer at one step of an attempt, once, by wrapping functions of the product."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp import Done, PublishResult, source
from django_rmq_retry.amqp.open_line import OpenLine
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.handlers import WorkQueue
from django_rmq_retry.messages import Instruction
from tests.faults.handlers import Act
from tests.tooling.brokers import on_the_io_thread


class Once:
    """Return True once in all processes of a test."""

    def __init__(self, folder: Path, victim: int) -> None:
        self._mark = folder / "broken"
        self._victim = victim

    def dies(self, body: bytes) -> None:
        """Kill the process at the first occurrence of the message."""
        if self.strikes(body):
            os.kill(os.getpid(), signal.SIGKILL)

    def strikes(self, body: bytes) -> bool:
        if json.loads(body).get("id") != self._victim:
            return False
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def before_the_handler(once: Once, work_queue: WorkQueue) -> WorkQueue:
    def run(message: Delivery, inner: Callable[[Delivery], object]) -> object:
        once.dies(message.body)
        return inner(message)

    return _around(work_queue, run)


def after_the_handler(once: Once, work_queue: WorkQueue) -> WorkQueue:
    def run(message: Delivery, inner: Callable[[Delivery], object]) -> object:
        answer = inner(message)
        once.dies(message.body)
        return answer

    return _around(work_queue, run)


def before_the_copy(once: Once, work_queue: WorkQueue) -> WorkQueue:
    send = PikaPublisher.send

    def sending(self: PikaPublisher, message: Message, done: Done, *, timeout: float | None = None) -> None:
        once.dies(message.body)
        send(self, message, done, timeout=timeout)

    PikaPublisher.send = sending  # type: ignore[method-assign]
    return work_queue


def instead_of_the_copy(once: Once, work_queue: WorkQueue) -> WorkQueue:
    """Kill the process a moment later, after earlier writes were sent."""
    send = PikaPublisher.send

    def sending(self: PikaPublisher, message: Message, done: Done, *, timeout: float | None = None) -> None:
        if once.strikes(message.body):
            self._io.later(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL))
        else:
            send(self, message, done, timeout=timeout)

    PikaPublisher.send = sending  # type: ignore[method-assign]
    return work_queue


def after_the_copys_confirm(once: Once, work_queue: WorkQueue) -> WorkQueue:
    send = PikaPublisher.send

    def sending(self: PikaPublisher, message: Message, done: Done, *, timeout: float | None = None) -> None:
        def confirmed(result: PublishResult) -> None:
            if result.confirmed:
                once.dies(message.body)
            done(result)

        send(self, message, confirmed, timeout=timeout)

    PikaPublisher.send = sending  # type: ignore[method-assign]
    return work_queue


def before_the_ack(once: Once, work_queue: WorkQueue) -> WorkQueue:
    ack = OpenLine.ack

    def acking(self: OpenLine, deliveries: Iterable[Delivery]) -> None:
        known = list(deliveries)
        for delivery in known:
            once.dies(delivery.body)
        ack(self, known)

    OpenLine.ack = acking  # type: ignore[method-assign]
    return work_queue


def before_it_is_given_back(once: Once, work_queue: WorkQueue) -> WorkQueue:
    told = OpenLine.instruct

    def telling(self: OpenLine, delivery: Delivery, instruction: Instruction) -> None:
        once.dies(delivery.body)
        told(self, delivery, instruction)

    OpenLine.instruct = telling  # type: ignore[method-assign]
    return work_queue


def after_it_is_given_back(once: Once, work_queue: WorkQueue) -> WorkQueue:
    """Kill the process a moment later, after the writes were sent."""
    told = OpenLine.instruct

    def telling(self: OpenLine, delivery: Delivery, instruction: Instruction) -> None:
        told(self, delivery, instruction)
        if once.strikes(delivery.body):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()

    OpenLine.instruct = telling  # type: ignore[method-assign]
    return work_queue


def the_clock_jumps(_once: Once, work_queue: WorkQueue) -> WorkQueue:
    """Return a time one day ahead and one day behind, alternating with each call."""
    real, jumps = time.time, itertools.cycle([86_400.0, -86_400.0])
    time.time = lambda: real() + next(jumps)
    return work_queue


def the_loop_raises(once: Once, work_queue: WorkQueue) -> WorkQueue:
    def boom() -> None:
        raise SystemExit("the loop is broken")

    return _on_the_loop(once, work_queue, boom)


def the_loop_stands_still(once: Once, work_queue: WorkQueue) -> WorkQueue:
    source.MOST_UNANSWERED_LOOKS = 4

    def stand_still() -> None:
        threading.Event().wait()

    return _on_the_loop(once, work_queue, stand_still)


def _on_the_loop(once: Once, work_queue: WorkQueue, call: Callable[[], None]) -> WorkQueue:
    def run(message: Delivery, inner: Callable[[Delivery], object]) -> object:
        if once.strikes(message.body):
            on_the_io_thread(call)
        return inner(message)

    return _around(work_queue, run)


def _around(work_queue: WorkQueue, run: Callable[[Delivery, Callable[[Delivery], object]], object]) -> WorkQueue:
    subscription = work_queue.subscriptions[0]
    inner = subscription.run
    assert isinstance(inner, Act)
    one = replace(subscription, run=lambda message: run(message, inner))
    if subscription.batch:
        one = replace(one, run_batch=lambda messages: [run(message, inner) for message in messages])
    return replace(work_queue, subscriptions=(one,))


WAYS: Mapping[str, Callable[[Once, WorkQueue], Any]] = {
    way.__name__: way
    for way in (
        before_the_handler,
        after_the_handler,
        before_the_copy,
        instead_of_the_copy,
        after_the_copys_confirm,
        before_the_ack,
        before_it_is_given_back,
        after_it_is_given_back,
        the_clock_jumps,
        the_loop_raises,
        the_loop_stands_still,
    )
}
