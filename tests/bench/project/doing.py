"""Database work of a handler, for trials that compare its transaction."""

from collections.abc import Callable, Sequence

from django.contrib.auth.models import Group
from django.db import transaction

from django_rmq_retry import Delivery

ACCOUNTS = 100
Does = Callable[[Delivery], None]


def insert_row(message: Delivery) -> None:
    Group.objects.create(name=message.id or "")


def change_balance(message: Delivery) -> None:
    number = message.data["number"]
    if not Group.objects.filter(pk=1 + number % ACCOUNTS).update(name=f"account {number}"):
        Group.objects.bulk_create([Group(pk=1 + one, name=f"account -{one}") for one in range(ACCOUNTS)])


WORKS: dict[str, Does] = {"row": insert_row, "balance": change_balance}


def insert_rows(messages: Sequence[Delivery]) -> None:
    Group.objects.bulk_create([Group(name=message.id or "") for message in messages])


def worked_together(does: str, tick: Callable[[], None]) -> tuple[Callable[[list[Delivery]], None], bool]:
    """Return the handler of a trial with batches, such as "row once batch", and its ``once`` option."""

    def within(messages: list[Delivery]) -> None:
        insert_rows(messages)
        for _ in messages:
            tick()

    def plain(messages: list[Delivery]) -> None:
        with transaction.atomic():
            insert_rows(messages)
        for _ in messages:
            tick()

    return (within, True) if " once " in does else (plain, False)


def worked(does: str, tick: Callable[[], None]) -> tuple[Does, bool]:
    """Return the handler of a trial, such as "row once" or "row once in atomic", and its ``once`` option."""
    work, _, way = does.partition(" ")
    do = WORKS[work]

    def flat(message: Delivery) -> None:
        do(message)
        tick()

    def in_atomic(message: Delivery) -> None:
        with transaction.atomic():
            do(message)
        tick()

    return (flat if way == "once" else in_atomic), way.startswith("once")
