"""The headers by which a message continues a trace; those of a wrong type or length are ignored."""

from collections.abc import Iterable

from django_rmq_retry.messages.properties import Headers

BAGGAGE, STATE = "baggage", "tracestate"
MOST_HEADER_BYTES = {"traceparent": 512, STATE: 512, "sentry-trace": 512}
"""In bytes. W3C demands that 512 of a tracestate are passed on; the other two are far shorter."""
MOST_BAGGAGE_BYTES = 8192
"""W3C's limit on a baggage; no header of another propagator needs more."""
MOST_MEMBERS = 180
"""W3C's limit on the members of a baggage."""


def usable(headers: Headers, names: Iterable[str] | None = None) -> dict[str, str]:
    """Return the headers, or those with these names, that a propagator may read.

    Other clients may have written values of any type, and propagators read text only. They also log what they cannot
    read, some in full, so a forged header of 100 kB would be written into the log at each attempt.
    """
    given = headers.items() if names is None else ((name, headers.get(name)) for name in names)
    return {name: value for name, value in given if isinstance(value, str) and _within(name, value)}


def _within(name: str, value: str) -> bool:
    few = name != BAGGAGE or value.count(",") < MOST_MEMBERS
    return few and len(value) <= MOST_HEADER_BYTES.get(name, MOST_BAGGAGE_BYTES) and value.isascii()
