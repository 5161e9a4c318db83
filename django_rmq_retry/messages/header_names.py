"""The names of headers: those of this package, each in one place, and those that belong to the broker.

The headers of the stamp are named by its fields, in ``messages.history``, with the sets of headers that copies omit.
"""

PREFIX = "rmq-retry-"
PREFIX_BYTES = PREFIX.encode()
"""Bytes searched for in undecoded properties, so that a message without our headers costs a single search."""

ANSWER = PREFIX + "answer"
"""The header that marks a reply as an answer or an error, so that the data itself can have any form."""
FAILED = "error"
BARE = PREFIX + "reply-to"
"""The header in which our copies carry a bare direct reply-to.

A stored message can have one, because the broker accepts it from senders using other protocols, such as AMQP 1.0.
"""
TICKET = PREFIX + "ticket"
"""The header that links a requeued copy to its record, to report the result. Retries and the parked copy keep it."""

DEATHS = PREFIX + "x-death"
"""The header with x-death as JSON, for people and other programs that read a parked queue."""
BROKERS = PREFIX + "broker"
"""The header with the original's broker headers (mainly x-death), as bytes, which the broker does not interpret.

Only records show them.
"""
KEPT_RAW = PREFIX + "properties"
"""The header with the original properties, as bytes, if they are unreadable or leave no room for our headers."""
KEPT_PACKED = PREFIX + "properties-zlib"
KEPT_LEADING = PREFIX + "properties-leading"
"""The header with the length in bytes of the original properties, if they are put in front of the body."""
KEPT = frozenset({KEPT_RAW, KEPT_PACKED, KEPT_LEADING})
UNRECORDED = PREFIX + "unrecorded"
"""The header with the reason why a parked message could not be recorded."""

PARKED_TEXTS = ("reason", "detail", "error", "message", "handler", "fingerprint", "culprit")
"""The headers of a parked copy that hold a text, without their prefix."""
PARKED = frozenset({PREFIX + name for name in (*PARKED_TEXTS, "parked-at", "nonce")}) | {DEATHS, BROKERS}
"""The headers that a parked copy carries besides its stamp."""

BROKERS_OWN = frozenset(
    {
        "x-death",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-first-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
        "x-last-death-exchange",
        "x-delivery-count",
        "x-acquired-count",
        "x-stream-offset",
        "x-delay",
        "CC",
        "BCC",
    }
)
"""Headers that the broker sets or acts on. They are never republished.

RabbitMQ before version 4 may drop a message as a dead-letter cycle because of its x-death; CC sends copies elsewhere.
"""
COUNTS = frozenset({"x-delivery-count", "x-acquired-count"})
"""The headers that the broker changes when it redelivers a message."""
