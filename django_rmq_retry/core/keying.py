"""The key within which order counts, as a text; and which handlers can keep such an order."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from uuid import UUID

from django_rmq_retry.core.carriers import AckFirst, Carrier
from django_rmq_retry.core.errors import RmqRetryError
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.verdict import short

PLAIN = (str, int, UUID, Decimal, date)
BETWEEN = ":"


class NoKey(RmqRetryError):
    """A message whose key cannot be told, so that nobody knows what it must not pass."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"Its key cannot be told: order_by {problem}. Mend the message or order_by, and requeue it.")


def key_of(order_by: Callable[[Delivery], object], delivery: Delivery) -> str:
    """What ``order_by`` says of a decoded message; NoKey where that is no text, number, date or UUID, or several."""
    try:
        found = order_by(delivery)
    except BaseException as broken:
        raise NoKey(f"raised {type(broken).__name__}: {short(broken)}") from broken
    try:
        return _text(found)
    except NoKey:
        raise
    except Exception as broken:
        # Lists as deep as a sender likes, numbers of too many digits, a __str__ of the project's.
        raise NoKey(f"returned a {type(found).__name__} that makes no text: {short(broken)}") from broken


def unordered(via: Carrier) -> str | None:
    """Why retries by this carrier cannot keep an order of keys, as a sentence; None where they can."""
    name = type(via).__name__
    if isinstance(via, AckFirst):
        return f"order_by needs messages that are never lost, and {name} may lose one: all behind it would wait on."
    if not via.stamps:
        return (
            f"order_by needs retries that leave the queue as copies, and {name} sends none: a message waits in a "
            "consumer's hand or its queue counts for it. Use via=Ladder(), or StopTheLine() where all is one line."
        )
    return None


def _text(found: object) -> str:
    if type(found) is str and found:
        return found
    if isinstance(found, tuple | list) and found:
        return BETWEEN.join(map(_text, found))
    text = "" if isinstance(found, bool) or not isinstance(found, PLAIN) else str(found)
    if not text:
        raise NoKey(f"returned {_said(found)}, not a text, a whole number, a date or a UUID, or several of them")
    return text


def _said(found: object) -> str:
    empty = isinstance(found, str) and not found
    return "nothing" if found is None else "an empty text" if empty else f"a {type(found).__name__}"
