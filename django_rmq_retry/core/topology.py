"""The exchanges, queues and bindings a project names in its handlers. What is declared from them: declarations.py."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from django_rmq_retry.core.errors import ConfigurationError

NAME_LIMIT = 255
NO_LIMIT = 1_000_000
"""A delivery limit that is never met: RabbitMQ 4's default of 20 eats untouched messages, and -1 means 0 on 3.x."""

Arguments = Mapping[str, object]
QueueType = Literal["quorum", "classic"]
Overflow = Literal["reject-publish", "drop-head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where something bound gets its messages from; made by ``Exchange.bind``."""

    source: "Exchange"
    key: str = ""
    arguments: Arguments = field(default_factory=dict)

    def takes(self, key: str) -> bool:
        """Whether messages with this key pass; where something else than the key decides, they may."""
        if self.source.type == "topic":
            return matches(self.key, key)
        return self.source.type != "direct" or self.key == key


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange by its name: ``main = Exchange("main-exchange", "direct")``; ``main.bind("srvc.transact.cash")``.

    ``Exchange("")`` is the default exchange, to which every queue is bound by its name.
    """

    name: str
    type: str = "direct"
    durable: bool = field(default=True, kw_only=True)
    auto_delete: bool = field(default=False, kw_only=True)
    internal: bool = field(default=False, kw_only=True)
    alternate: str | None = field(default=None, kw_only=True)
    bindings: Sequence[Binding] = field(default=(), kw_only=True)
    arguments: Arguments = field(default_factory=dict, kw_only=True)
    existing: bool = field(default=False, kw_only=True)
    """Somebody else's: it is looked for, never declared."""

    def __post_init__(self) -> None:
        if self.name:
            check_name("exchange", self.name)
        elif self.type != "direct":
            raise ConfigurationError(f"The default exchange has the type 'direct', not {self.type!r}.")
        object.__setattr__(self, "bindings", tuple(self.bindings))

    def bind(
        self, key: str = "", *, headers: Mapping[str, object] | None = None, match: Literal["all", "any"] = "all"
    ) -> Binding:
        """A binding by routing key, or to a headers exchange by headers."""
        if headers is None:
            return Binding(source=self, key=key)
        if self.type != "headers":
            raise ConfigurationError(
                f"Exchange {self.name!r} has the type {self.type!r}; bind(headers=…) needs the type 'headers'."
            )
        return Binding(source=self, key=key, arguments={"x-match": match, **headers})


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue by its name, durable and of quorum type unless it says otherwise: ``Queue("payments.charge")``."""

    name: str
    type: QueueType | None = field(default="quorum", kw_only=True)
    """None sends no type at all: the broker's default, for topologies declared elsewhere."""
    bindings: Sequence[Binding] = field(default=(), kw_only=True)
    max_priority: int | None = field(default=None, kw_only=True)
    max_length: int | None = field(default=None, kw_only=True)
    max_bytes: int | None = field(default=None, kw_only=True)
    overflow: Overflow = field(default="reject-publish", kw_only=True)
    """A full queue refuses the publisher, or (drop-head) parks its oldest message."""
    message_ttl: float | None = field(default=None, kw_only=True)
    """Seconds after which a message nobody took is parked as expired."""
    single_active_consumer: bool = field(default=False, kw_only=True)
    delivery_limit: int | None = field(default=NO_LIMIT, kw_only=True)
    arguments: Arguments = field(default_factory=dict, kw_only=True)
    existing: bool = field(default=False, kw_only=True)
    """Somebody else's: it is looked for, never declared."""

    def __post_init__(self) -> None:
        check_name("queue", self.name)
        object.__setattr__(self, "bindings", tuple(self.bindings))
        if self.max_priority is not None and self.type == "quorum":
            raise ConfigurationError(
                f"Queue {self.name!r} asks for max_priority={self.max_priority}, which quorum queues refuse. "
                "Use type='classic', or leave max_priority out."
            )
        if self.message_ttl is not None and not self.message_ttl > 0:
            raise ConfigurationError(f"Queue {self.name!r}: message_ttl must be above 0 s, not {self.message_ttl!r}.")
        if self.delivery_limit is not None and self.delivery_limit < 0:
            raise ConfigurationError(
                f"Queue {self.name!r}: delivery_limit={self.delivery_limit} means 0 on RabbitMQ 3 (gone at the first "
                f"requeue) and 'none' on 4. Use the default ({NO_LIMIT}), which is never met on any version."
            )

    @property
    def bounded(self) -> bool:
        """Whether it can be full."""
        return self.max_length is not None or self.max_bytes is not None

    def varied(self, **changes: object) -> "Queue":
        return replace(self, **changes)  # type: ignore[arg-type]  # names are the dataclass's own

    def plain_arguments(self) -> dict[str, object]:
        """The broker's arguments without where rejected messages go: that is the layout's to say."""
        found: dict[str, object] = {}
        if self.type is not None:
            found["x-queue-type"] = self.type
        if self.type == "quorum" and self.delivery_limit is not None:
            found["x-delivery-limit"] = self.delivery_limit
        if self.max_priority is not None:
            found["x-max-priority"] = self.max_priority
        if self.max_length is not None:
            found["x-max-length"] = self.max_length
        if self.max_bytes is not None:
            found["x-max-length-bytes"] = self.max_bytes
        if self.bounded:
            found["x-overflow"] = self.overflow
        if self.message_ttl is not None:
            found["x-message-ttl"] = milliseconds(self.message_ttl)
        if self.single_active_consumer:
            found["x-single-active-consumer"] = True
        return found


def met_limit(arguments: Arguments) -> str | None:
    """The delivery limit at which the broker gives a message of this queue up; None where it never comes to that."""
    kind, limit = arguments.get("x-queue-type"), arguments.get("x-delivery-limit")
    if limit is None:
        return "no x-delivery-limit, which is 20 from RabbitMQ 4 on" if kind == "quorum" else None
    # -1 is no limit at all where it can be declared: it is refused on RabbitMQ 3.
    never = kind == "classic" or (isinstance(limit, int) and (limit == -1 or limit >= NO_LIMIT))
    return None if never else f"x-delivery-limit={limit!r}"


def milliseconds(seconds: float) -> int:
    """Rounded up: a wait is never shorter than asked."""
    return math.ceil(round(seconds * 1000, 6))


def matches(pattern: str, key: str) -> bool:
    """Whether a topic exchange would route the key by this pattern: ``*`` is one word, ``#`` any number of words."""
    words = key.split(".") if key else []
    # The numbers of words that the pattern, as far as it has been read, can have taken.
    taken = {0}
    for part in pattern.split(".") if pattern else []:
        if part == "#":
            taken = set(range(min(taken), len(words) + 1)) if taken else taken
        else:
            taken = {at + 1 for at in taken if at < len(words) and part in {"*", words[at]}}
    return len(words) in taken


def check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"The {what}'s name must be a text that is not empty, not {name!r}.")
    if len(name.encode()) > NAME_LIMIT:
        raise ConfigurationError(f"The {what} name {name[:40]!r}… is longer than {NAME_LIMIT} bytes.")
    if name.startswith("amq.") and what == "queue":
        raise ConfigurationError(f"The queue name {name!r} begins with 'amq.', which belongs to the broker.")
