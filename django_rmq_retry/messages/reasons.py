"""The reasons for parking a message."""

from enum import StrEnum


class Reason(StrEnum):
    """The reason for parking a message. The values are stored and compared by programs, so they are not translated."""

    EXHAUSTED = "retries_exhausted"
    PERMANENT = "permanent"
    REQUESTED = "parked_by_handler"
    UNDECODABLE_BODY = "undecodable_body"
    INVALID = "invalid"
    UNDECODABLE_HEADERS = "undecodable_headers"
    UNHANDLED = "no_handler"
    CRASHED = "worker_stopped"
    EXPIRED = "expired"
    DELIVERY_LIMIT = "delivery_limit"
    OVERFLOWN = "queue_overflow"
    REJECTED = "rejected"
    CONFLICT = "identity_conflict"
    ALIKE = "possible_duplicate"
    UNNAMED = "unnamed"
    UNSETTLED = "unsettled"
    HANDLED = "handled"
    FOREIGN = "foreign"


UNEXPLAINED = "The handler parked it."
"""The detail of a message that a handler parked without a word."""
UNBEGUN = frozenset(
    {
        *(Reason.UNHANDLED, Reason.UNDECODABLE_BODY, Reason.INVALID, Reason.UNDECODABLE_HEADERS),
        *(Reason.CONFLICT, Reason.ALIKE, Reason.UNNAMED),
    }
)
"""Reasons to park a message without calling its handler. With others and no failed attempt it may have been called."""
MAY_HAVE_RUN = (Reason.CRASHED, Reason.DELIVERY_LIMIT)
"""Reasons of messages that came back from workers, perhaps after their handler did its work."""
