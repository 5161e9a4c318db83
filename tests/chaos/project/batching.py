"""The steps of a call with several messages; the sweep ends the process in each of them too."""

from collections.abc import Sequence
from zlib import crc32

from django.db import transaction

from django_rmq_retry import BatchFailed, Delivery
from tests.chaos.ledger import BEGAN, CALLED, FAILED, now
from tests.chaos.naming import read
from tests.chaos.project.acting import Broken, Hopeless, ledger, obey
from tests.chaos.project.models import Effect

RAISED, NAMED_INSIDE, NAMED_AFTER = range(3)
"""A call raises the first failure, or names all of them: in the transaction of the others, or after its commit."""


def write_all(messages: Sequence[Delivery]) -> None:
    """Write an effect for each message in one transaction, and let the planned ones fail."""
    begin(messages)
    try:
        failed = write_those_that_succeed(messages)
    except (Broken, Hopeless, BatchFailed):
        raise
    except Exception:
        note_alone(messages)
        raise
    if failed:
        raise BatchFailed(failed)


def write_those_that_succeed(messages: Sequence[Delivery]) -> dict[Delivery, BaseException]:
    """Return the errors of the others, unless the whole transaction is to fail with them."""
    way = crc32(name_of(messages[0]).encode()) % 3
    failed: dict[Delivery, BaseException] = {}
    with transaction.atomic():
        for message in messages:
            try:
                write_one(message)
            except (Broken, Hopeless) as error:
                if way == RAISED:
                    raise
                failed[message] = error
        if failed and way == NAMED_INSIDE:
            raise BatchFailed(failed)
    return failed


def begin(messages: Sequence[Delivery]) -> None:
    """Note the attempts before anything can fail, in as few writes as messages need."""
    ledger.note(CALLED, read(name_of(messages[0])).lane, len(messages))
    ledger.note_all(BEGAN, [f"{name_of(message)} {message.attempt} {now()}" for message in messages])


def write_one(message: Delivery) -> None:
    name = name_of(message)
    obey(read(name), message.attempt)
    Effect.objects.create(name=name, attempt=message.attempt)


def note_alone(messages: Sequence[Delivery]) -> None:
    """Note a failure that was not planned, such as of the database: it counts for a message that is alone."""
    if len(messages) == 1:
        ledger.note(FAILED, name_of(messages[0]), messages[0].attempt, now())


def name_of(message: Delivery) -> str:
    name: str = message.data["id"]
    return name
