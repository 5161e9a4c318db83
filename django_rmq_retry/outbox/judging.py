"""What becomes of a row that the broker has not confirmed."""

import logging
import re
from enum import Enum

from django_rmq_retry.broker.base import UNWRITABLE, Outcome
from django_rmq_retry.core.errors import HeadersTooLarge
from django_rmq_retry.core.message import Message
from django_rmq_retry.outbox import settling
from django_rmq_retry.outbox.posting import Answer
from django_rmq_retry.outbox.rows import Row
from django_rmq_retry.publishing import check_writable

log = logging.getLogger("django_rmq_retry")

TRIES = 15
"""After so many the broker can never take it, as far as anybody knows: with these waits that is nine minutes."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
GONE = ("the connection was lost", "no confirm in time", "the I/O thread")
"""How it begins where the broker has said nothing of the message itself."""
NO_RIGHT = re.compile(r"ACCESS_REFUSED - (?:write )?access to exchange '")
"""What it says where the publisher lacks the right to all that goes to an exchange. The end may be missing."""
NO_TOPIC = re.compile(r"ACCESS_REFUSED - (?:write )?access to topic '")
"""The same of some of it: of what has such a routing key."""


class Fault(Enum):
    """Whose fault it is."""

    BROKER = "the broker is away"
    FULL = "it is refused for now"
    RIGHT = "a right to its exchange is missing"
    ROW = "the message itself"
    SHARED = "something that was sent together with it"


def fault(answer: Answer, *, alone: bool) -> Fault:
    """Whose fault it is that a message was not confirmed; `alone` means that nothing else was under way."""
    if answer.outcome is Outcome.NACKED:
        return Fault.FULL
    if answer.outcome in (Outcome.RETURNED, Outcome.TOO_LARGE):
        return Fault.ROW
    if answer.outcome is Outcome.UNSENT:
        fits = UNWRITABLE not in answer.said and writable(answer.row.message)
        return Fault.BROKER if fits else Fault.ROW
    if not answer.said or answer.said.startswith(GONE):
        return Fault.BROKER
    # The broker has closed the channel over one message, and has not said which.
    return _refused(answer.said) if alone else Fault.SHARED


def _refused(said: str) -> Fault:
    if NO_RIGHT.search(said):
        return Fault.RIGHT
    return Fault.FULL if NO_TOPIC.search(said) else Fault.ROW


def writable(message: Message) -> bool:
    try:
        check_writable(message)
    except (HeadersTooLarge, ValueError):
        return False
    return True


def wait_after(tries: int) -> float:
    """Seconds until the next try."""
    return float(min(FIRST_WAIT * 2 ** min(tries - 1, 16), LONGEST_WAIT))


def failed(row: Row, *, using: str, why: str, whose: Fault) -> float:
    """Try again after that many seconds, or keep it for a person."""
    # How long a queue was full, or a right was missing, says nothing of how long a message may be returned.
    tries = row.tries + 1 if whose is Fault.ROW else min(row.tries + 1, TRIES // 2)
    if whose is Fault.ROW and tries >= TRIES:
        settling.give_up(row.id, using=using, tries=tries, error=why)
        said = "Message %r stays in the outbox of %r until somebody sends it again or discards it: %s"
        log.critical(said, *_facts(row, using, why), extra=_extra(row, "outbox stuck"))
        return 0.0
    settling.put_off(row.id, using=using, seconds=wait_after(tries), tries=tries, error=why)
    if tries == 1:
        said = "Message %r waits in the outbox of %r and is tried again: %s"
        log.warning(said, *_facts(row, using, why), extra=_extra(row, "outbox retry"))
    return wait_after(tries)


def _facts(row: Row, using: str, why: str) -> tuple[str | None, str, str]:
    return row.message.properties.message_id, using, why


def _extra(row: Row, event: str) -> dict[str, object]:
    return {"event": event, "message_id": row.message.properties.message_id, "row": row.id}
