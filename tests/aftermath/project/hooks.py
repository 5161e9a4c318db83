"""Hooks that make the mistakes of the handlers."""

import os
from collections.abc import Iterator
from itertools import count

from django.contrib.auth.models import Group
from django.db import connection

from django_rmq_retry.hooks import AroundAttempt, AroundPublish

FIRST = "1"
NUMBERS = count(1)


def _is_first(one: AroundAttempt | AroundPublish) -> bool:
    data = one.delivery.data if isinstance(one, AroundAttempt) else None
    return isinstance(data, dict) and str(data["n"]) == FIRST


def begin_before(one: AroundAttempt | AroundPublish) -> Iterator[None]:
    """Begin a transaction around the handler, and forget it."""
    if _is_first(one):
        connection.cursor().execute("BEGIN")
    yield


def begin_after(one: AroundAttempt | AroundPublish) -> Iterator[None]:
    yield
    if _is_first(one):
        connection.cursor().execute("BEGIN")


def write(one: AroundAttempt | AroundPublish) -> Iterator[None]:
    """Write a row for each message, like a hook that keeps an account of them."""
    if isinstance(one, AroundAttempt):
        Group.objects.create(name=f"hook of {one.delivery.routing_key} {next(NUMBERS)}")
    yield


def fork(one: AroundAttempt | AroundPublish) -> Iterator[None]:
    """Fork a child that goes on like its parent."""
    if _is_first(one) and (child := os.fork()):
        os.waitpid(child, 0)
    yield
