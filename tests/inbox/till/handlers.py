"""Handlers that follow the message: ``{"do": "wait", "for": path}``. Each run creates a group in the database."""

import os
import signal
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection, connections

from django_rmq_retry import Delivery, Fixed, Queue, RetryThenPark, handler
from django_rmq_retry.amqp.open_line import OpenLine
from tests.tooling.waiting import wait_until

POLICY = RetryThenPark(attempts=2, backoff=Fixed(0.1))
KILLS = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT connection_id()", "KILL {}"),
}


def first_time(path: str) -> bool:
    """Return True once in all processes of a test."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait(data: Mapping[str, Any]) -> None:
    Path(data["here"]).touch()
    wait_until(Path(data["for"]).exists, 60, what=data["for"])


def fail_without(data: Mapping[str, Any]) -> None:
    if not Path(data["mark"]).exists():
        raise ValueError("not yet")


def die_once(data: Mapping[str, Any]) -> None:
    if first_time(data["mark"]):
        os.kill(os.getpid(), signal.SIGKILL)


OWN_END = {"postgresql": "SELECT pg_terminate_backend(pg_backend_pid())", "mysql": "KILL CONNECTION_ID()"}


def end_its_connection(data: Mapping[str, Any]) -> None:
    """Lose the connection each time, like a statement on which the database closes it."""
    with Path(data["mark"]).open("a") as runs:
        runs.write(".")
    with connection.cursor() as cursor:
        cursor.execute(OWN_END[connection.vendor])


def be_cut_off_once(data: Mapping[str, Any]) -> None:
    """Let the database close the connection during the transaction."""
    if not first_time(data["mark"]):
        return
    ask, kill = KILLS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(ask)
        number = cursor.fetchone()[0]
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute(kill.format(number))
    other.close()
    Group.objects.count()


def forward(data: Mapping[str, Any]) -> None:
    by_number.publish({"n": data["n"] + 100})


DOING: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "wait": wait,
    "forward": forward,
    "fail without": fail_without,
    "die once": die_once,
    "be cut off once": be_cut_off_once,
    "end its connection": end_its_connection,
}


def act(data: Mapping[str, Any]) -> None:
    Group.objects.create(name=f"{data['n']} {uuid.uuid4()}")
    doing = DOING.get(data.get("do", ""))
    if doing is not None:
        doing(data)


@handler(Queue("till.by.id"), policy=POLICY, once=True, name="by id")
def by_id(message: Delivery) -> None:
    act(message.data)


@handler(Queue("till.by.number"), policy=POLICY, once=lambda message: message.data["n"], name="by number")
def by_number(message: Delivery) -> None:
    act(message.data)


def dying_before_the_ack(ack: Callable[[OpenLine, Iterable[Delivery]], None]) -> Callable[..., None]:
    """Kill the process after the commit, once, if an environment variable names a file for it."""
    mark = os.environ["TILL_DIES"]

    def acking(self: OpenLine, deliveries: Iterable[Delivery]) -> None:
        if first_time(mark):
            os.kill(os.getpid(), signal.SIGKILL)
        ack(self, deliveries)

    return acking


if "TILL_DIES" in os.environ:
    OpenLine.ack = dying_before_the_ack(OpenLine.ack)  # type: ignore[method-assign]
