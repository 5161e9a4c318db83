"""Handlers that follow the message: each writes a row for it, and may make a mistake before or after that."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction

from django_rmq_retry import Delivery, Fixed, RetryThenPark, handler

POLICY = RetryThenPark(attempts=1, backoff=Fixed(0.1))
KEPT: list[object] = []


def begin() -> None:
    connection.cursor().execute("BEGIN")


def switch_autocommit_off() -> None:
    transaction.set_autocommit(False)


def enter_atomic() -> None:
    block = transaction.atomic()
    block.__enter__()
    KEPT.append(block)


def switch_off_and_commit() -> None:
    """Leave autocommit off with nothing open, which loses nothing."""
    transaction.set_autocommit(False)
    Group.objects.create(name="committed by hand")
    transaction.commit()


def begin_and_fail() -> None:
    begin()
    raise ValueError("after BEGIN")


def close_in_atomic() -> None:
    """Close the connection in a block that is never left, so nothing can be written after it."""
    enter_atomic()
    connection.close()


def begin_in_other() -> None:
    """Write in a transaction of the database that is not the default."""
    with connections["other"].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1")


BEFORE: Mapping[str, Callable[[], None]] = {
    "begin in other": begin_in_other,
    "begin": begin,
    "autocommit": switch_autocommit_off,
    "atomic": enter_atomic,
    "begin and fail": begin_and_fail,
}


async def forgotten(name: str) -> None:
    await Group.objects.acreate(name=name)


def yielding(name: str) -> Iterator[str]:
    Group.objects.create(name=name)
    yield name


async def ayielding(name: str) -> AsyncIterator[str]:
    await Group.objects.acreate(name=name)
    yield name


def forked(how: str) -> None:
    """Fork a child that does not end itself, and wait for it."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        Group.objects.create(name=f"child ended with {os.waitstatus_to_exitcode(status)}")
        return
    if how == "raises":
        raise RuntimeError("in the child")
    if how == "exits":
        sys.exit(3)


UNRUN: Mapping[str, Callable[[str], object]] = {
    "coroutine": forgotten,
    "generator": yielding,
    "async generator": ayielding,
}


def act(data: Mapping[str, Any]) -> object:
    doing, name = data.get("do", ""), str(data["n"])
    if doing in UNRUN:
        return UNRUN[doing](name)
    if doing in BEFORE:
        BEFORE[doing]()
    if doing == "fork":
        with transaction.atomic():
            Group.objects.create(name=name)
            forked(data["how"])
        return None
    if doing == "close":
        close_in_atomic()
        return None
    Group.objects.create(name=name)
    if doing == "autocommit by SQL":
        with connection.cursor() as cursor:
            cursor.execute("SET autocommit=0")
    if doing == "commit":
        switch_off_and_commit()
    return None


@handler("aftermath.plain", policy=POLICY, name="plain")
def plain(message: Delivery) -> object:
    return act(message.data)


@handler("aftermath.once", policy=POLICY, once=True, name="once")
def once(message: Delivery) -> object:
    return act(message.data)


@handler("aftermath.async", policy=POLICY, name="async")
async def asynchronous(message: Delivery) -> object:
    if message.data.get("do") == "fork":
        await asyncio.sleep(0)
        await sync_to_async(Group.objects.create)(name=str(message.data["n"]))
        if child := os.fork():
            await sync_to_async(os.waitpid)(child, 0)
        return None
    return await sync_to_async(act)(message.data)


def around(message: Any, place: str) -> None:
    """Make the mistake of a function around the handler, if the message names it."""
    if message.data.get("around") == place:
        if message.data["do"] != "fork":
            begin()
        elif child := os.fork():
            os.waitpid(child, 0)
        else:
            raise RuntimeError("in the child")


def key(message: Delivery) -> str:
    around(message, "order_by")
    return "key"


@handler("aftermath.keyed", policy=POLICY, order_by=key, name="keyed")
def keyed(message: Delivery) -> None:
    Group.objects.create(name=str(message.data["n"]))


def names(message: Delivery) -> str:
    around(message, "keys")
    return str(message.data["n"])


def grouped(message: Delivery, _error: BaseException) -> str:
    around(message, "fingerprint")
    return "group"


def identity(message: Delivery) -> str:
    around(message, "once")
    return str(message.data["n"])


@handler("aftermath.failing", policy=POLICY, keys=names, fingerprint=grouped, once=identity, name="failing")
def failing(message: Delivery) -> None:
    """Fail for the first message, so that all functions around a handler are called."""
    Group.objects.create(name=str(message.data["n"]))
    if message.data["n"] == 1:
        raise ValueError("first")


@handler("aftermath.token", policy=POLICY, name="token")
def token(message: Delivery) -> None:
    """Ask for the value that only this message knows, as a query of the process next door would not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s, pg_backend_pid()", [str(message.data["n"])])
        answer, backend = cursor.fetchone()
    Group.objects.create(name=f"{message.data['n']} {answer} {os.getpid()} {backend}")
