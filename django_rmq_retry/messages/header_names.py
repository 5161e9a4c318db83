"""The names of headers: this package's and the broker's. Those of the stamp are the fields of ``messages.stamp``."""

PREFIX = "rmq-retry-"
PREFIX_BYTES = PREFIX.encode()
"""Bytes searched for in undecoded properties, so that a message without our headers costs a single search."""

ANSWER = PREFIX + "answer"
"""The header that marks a reply as an answer or an error, so that the data itself can have any form."""
FAILED = "error"
BARE = PREFIX + "reply-to"
"""The header of our copies with a bare direct reply-to, which senders by other protocols (AMQP 1.0) may have stored."""
TICKET = PREFIX + "ticket"
"""The header that links a requeued copy to its record, to report the result. Retries and the parked copy keep it."""

DEATHS = PREFIX + "x-death"
"""The header with x-death as JSON, for people and other programs that read a parked queue."""
BROKERS = PREFIX + "broker"
"""The header with the original's broker headers (mainly x-death) as bytes, which no broker interprets, for records."""
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
"""Headers that the broker acts on, never republished: x-death may look like a cycle, CC sends copies elsewhere."""
COUNTS = frozenset({"x-delivery-count", "x-acquired-count"})
"""The headers that the broker changes when it redelivers a message."""
