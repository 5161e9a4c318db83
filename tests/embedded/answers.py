"""What a semantics test gets from either broker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUORUM: Mapping[str, object] = {"x-queue-type": "quorum"}
CLASSIC: Mapping[str, object] = {}
BOTH = {"classic": CLASSIC, "quorum": QUORUM}
SOON = 5.0


class Refusal(Exception):
    """The broker closed the channel or, if it is hard, the connection."""

    def __init__(self, code: int, text: str, *, hard: bool) -> None:
        self.code = code
        self.text = text
        self.hard = hard
        super().__init__(f"{code} {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message as a client sees it."""

    body: bytes
    exchange: str
    key: str
    redelivered: bool
    tag: int
    headers: Mapping[str, Any] = field(default_factory=dict)
    expiration: str | None = None
    reply_to: str | None = None
    consumer: str = ""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def deaths(self) -> list[tuple[str, str, int]]:
        """Queue, reason and count of each entry of x-death."""
        return [(death["queue"], death["reason"], death["count"]) for death in self.headers.get("x-death", [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    queue: str
    messages: int
    consumers: int


class Taking:
    """What a client of either broker can do with its `get`."""

    get: Callable[..., Arrival | None]

    def take(self, queue: str = "q", **options: Any) -> Arrival:
        """The next message, which must be there."""
        found = self.get(queue, **options)
        assert found is not None, f"nothing is in {queue}"
        return found
