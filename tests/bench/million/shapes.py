"""How many rows a measured database has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many rows there are; each text in ``{}`` of a table's SQL is one of these."""

    messages: int
    groups: int = 200
    parked: float = 0.6
    """The share of messages that are parked; the others are in all other states."""
    steep: int = 6
    """How much larger the largest groups are than the others."""
    span: str = "90 days"
    """The time in which they were parked."""
    first: str = "CASE WHEN m.id % 5 = 0 THEN 4 ELSE 5 END"
    """The number of the first attempt of a message that is kept; the last one is 5."""


MILLION = Shape(messages=1_000_000)
INCIDENT = Shape(messages=200_000, groups=40, parked=1.0, steep=3, span="2 hours", first="4")
"""All messages are parked, with two attempts each."""
