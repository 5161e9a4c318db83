"""One way to talk to two brokers: what a semantics test may do, and what it gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Client(Protocol):
    """A connection with one channel that has publisher confirms."""

    def exchange(self, name: str, kind: str = "direct", **options: Any) -> None: ...

    def delete_exchange(self, name: str, **options: Any) -> None: ...

    def queue(self, name: str, arguments: Mapping[str, object] | None = None, **options: Any) -> Declared: ...

    def delete_queue(self, name: str, **options: Any) -> int: ...

    def purge(self, name: str) -> int: ...

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None: ...

    def unbind(
        self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None
    ) -> None: ...

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None: ...

    def publish(self, key: str, body: str = "", *, exchange: str = "", mandatory: bool = False, **props: Any) -> str:
        """The outcome: "ack", "nack" or "returned"."""
        ...

    def get(self, queue: str, *, within: float = SOON, no_ack: bool = False) -> Arrival | None: ...

    def consume(self, queue: str, *, prefetch: int = 0, **options: Any) -> str: ...

    def cancel(self, tag: str) -> None: ...

    def qos(self, prefetch: int, *, channel_wide: bool = False) -> None: ...

    def arrivals(self, count: int, *, within: float = SOON) -> list[Arrival]:
        """The next deliveries; fewer where no more come in time."""
        ...

    def cancelled(self, *, within: float = SOON) -> list[str]:
        """Consumers that the broker has ended: waits for at least one."""
        ...

    def ack(self, arrival: Arrival | int, *, multiple: bool = False) -> None: ...

    def nack(self, arrival: Arrival | int, *, multiple: bool = False, requeue: bool = True) -> None: ...

    def reject(self, arrival: Arrival | int, *, requeue: bool = True) -> None: ...

    def recover(self) -> None: ...

    def tx(self) -> None: ...

    def close_channel(self) -> None: ...

    def cut(self) -> None:
        """The connection breaks, with no word to the broker."""
        ...


class Rig(Protocol):
    """A broker with an empty virtual host."""

    version: tuple[int, ...]

    def connect(self) -> Client: ...

    def wait(self, seconds: float) -> None:
        """Let the broker's time pass."""
        ...

    def close(self) -> None: ...
