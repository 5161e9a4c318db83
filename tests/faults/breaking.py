"""Breaks a consumer at one step of an attempt, once: the product has no hooks for it, so its functions are wrapped."""

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

from django_rmq_retry.amqp import source
from django_rmq_retry.amqp.channel import OpenLine
from django_rmq_retry.amqp.contracts import Done, PublishResult
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.handlers.subscription import Intake
from django_rmq_retry.messages.message import Delivery, Message, Tell
from django_rmq_retry.publishing import broker_connections
from tests.faults.acting import Act


class Once:
    """One process among all of a test, one time."""

    def __init__(self, folder: Path, victim: int) -> None:
        self._mark = folder / "broken"
        self._victim = victim

    def dies(self, body: bytes) -> None:
        """Kill -9, if this is the message, for the first time."""
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


def before_the_handler(once: Once, intake: Intake) -> Intake:
    def run(message: Delivery, inner: Callable[[Delivery], object]) -> object:
        once.dies(message.body)
        return inner(message)

    return _around(intake, run)


def after_the_handler(once: Once, intake: Intake) -> Intake:
    def run(message: Delivery, inner: Callable[[Delivery], object]) -> object:
        answer = inner(message)
        once.dies(message.body)
        return answer

    return _around(intake, run)


def before_the_copy(once: Once, intake: Intake) -> Intake:
    send = PikaPublisher.send

    def sending(self: PikaPublisher, message: Message, done: Done, *, timeout: float | None = None) -> None:
        once.dies(message.body)
        send(self, message, done, timeout=timeout)

    PikaPublisher.send = sending  # type: ignore[method-assign]
    return intake


def instead_of_the_copy(once: Once, intake: Intake) -> Intake:
    """A moment later: what was written before has left by then."""
    send = PikaPublisher.send

    def sending(self: PikaPublisher, message: Message, done: Done, *, timeout: float | None = None) -> None:
        if once.strikes(message.body):
            self._io.later(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL))
        else:
            send(self, message, done, timeout=timeout)

    PikaPublisher.send = sending  # type: ignore[method-assign]
    return intake


def after_the_copys_confirm(once: Once, intake: Intake) -> Intake:
    send = PikaPublisher.send

    def sending(self: PikaPublisher, message: Message, done: Done, *, timeout: float | None = None) -> None:
        def confirmed(result: PublishResult) -> None:
            if result.confirmed:
                once.dies(message.body)
            done(result)

        send(self, message, confirmed, timeout=timeout)

    PikaPublisher.send = sending  # type: ignore[method-assign]
    return intake


def before_the_ack(once: Once, intake: Intake) -> Intake:
    ack = OpenLine.ack

    def acking(self: OpenLine, deliveries: Iterable[Delivery]) -> bytes:
        known = list(deliveries)
        for delivery in known:
            once.dies(delivery.body)
        return ack(self, known)

    OpenLine.ack = acking  # type: ignore[method-assign]
    return intake


def before_it_is_given_back(once: Once, intake: Intake) -> Intake:
    told = OpenLine.tell

    def telling(self: OpenLine, delivery: Delivery, tell: Tell) -> None:
        once.dies(delivery.body)
        told(self, delivery, tell)

    OpenLine.tell = telling  # type: ignore[method-assign]
    return intake


def after_it_is_given_back(once: Once, intake: Intake) -> Intake:
    """A moment later: what was written has left by then."""
    told = OpenLine.tell

    def telling(self: OpenLine, delivery: Delivery, tell: Tell) -> None:
        told(self, delivery, tell)
        if once.strikes(delivery.body):
            broker_connections.current.io("rmq-io").later(0.05, lambda: os.kill(os.getpid(), signal.SIGKILL))

    OpenLine.tell = telling  # type: ignore[method-assign]
    return intake


def the_clock_jumps(_once: Once, intake: Intake) -> Intake:
    """A day ahead, a day back: each time somebody asks, the other way."""
    real, jumps = time.time, itertools.cycle([86_400.0, -86_400.0])
    time.time = lambda: real() + next(jumps)
    return intake


def the_loop_raises(once: Once, intake: Intake) -> Intake:
    def boom() -> None:
        raise RuntimeError("the loop is broken")

    return _on_the_loop(once, intake, boom)


def the_loop_stands_still(once: Once, intake: Intake) -> Intake:
    source.DEAF = 4

    def stand_still() -> None:
        threading.Event().wait()

    return _on_the_loop(once, intake, stand_still)


def _on_the_loop(once: Once, intake: Intake, call: Callable[[], None]) -> Intake:
    def run(message: Delivery, inner: Callable[[Delivery], object]) -> object:
        if once.strikes(message.body):
            broker_connections.current.io("rmq-io").call(call)
        return inner(message)

    return _around(intake, run)


def _around(intake: Intake, run: Callable[[Delivery, Callable[[Delivery], object]], object]) -> Intake:
    subscription = intake.subscriptions[0]
    inner = subscription.run
    assert isinstance(inner, Act)
    return replace(intake, subscriptions=(replace(subscription, run=lambda message: run(message, inner)),))


WAYS: Mapping[str, Callable[[Once, Intake], Any]] = {
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
