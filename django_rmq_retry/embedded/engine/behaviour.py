"""The differences between RabbitMQ versions, as values."""

from dataclasses import dataclass
from typing import Literal

MEBIBYTE = 2**20
_SINCE_4_3 = frozenset(
    {
        "x-consumer-timeout",
        "x-consumer-disconnected-timeout",
        "x-delayed-retry-type",
        "x-delayed-retry-min",
        "x-delayed-retry-max",
    }
)
"""Arguments of quorum queues that 4.3 compares, and classic queues refuse."""
Return = Literal["reject", "nack", "recover", "lost"]
"""How a delivery came back: basic.reject, basic.nack, basic.recover, or its channel ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One RabbitMQ version where versions differ; Q is a quorum queue, dc its count of failed deliveries."""

    version: str = "4.0.5"
    max_message: int = 16 * MEBIBYTE
    least_frame: int = 4096
    carried_count: Literal["shown", "counted"] = "shown"
    """Q: whether the dc that comes with a dead letter is only shown, or also counts towards the delivery limit."""
    carrying: frozenset[Return] = frozenset({"reject", "nack"})
    classic_carries: bool = False
    """A classic queue counts as well, for the queues behind it; it shows no count itself."""
    counted: frozenset[Return] = frozenset({"reject", "nack", "recover", "lost"})
    """Q: the ways back that raise dc."""
    kept: frozenset[Return] = frozenset({"lost"})
    """Q: those of them that go with it when it is dead-lettered."""
    acquired_count: bool = False
    """Q: x-acquired-count tells how often a message was handed out and came back."""
    quorum_lanes: Literal[2, 32] = 2
    """Q: how many priorities it tells apart; 32 also expire each on its own."""
    delayed_retry: bool = False
    channel_prefetch: bool = True
    """basic.qos global=true limits the channel."""
    returned_yields: bool = False
    """Q: a single active consumer gives way to one of higher priority also when what it holds has been returned."""
    refuses: frozenset[str] = frozenset({"x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"})
    """Arguments of streams."""
    classic_refuses: frozenset[str] = frozenset()
    queue_versions: frozenset[int] = frozenset({1, 2})
    unchecked: frozenset[str] = _SINCE_4_3
    """Arguments whose value may be anything."""
    unknown: frozenset[str] = _SINCE_4_3
    """Arguments that a second declaration may change."""
    may_be_empty: frozenset[str] = frozenset()
    master_locator: bool = True
    replies_return: bool = True
    """A mandatory reply by direct reply-to is returned although it arrived."""
    replies_numbered: bool = False
    """Such replies are counted by the channel's delivery tags; if not, each has the tag 1."""

    def carries(self, how: Return, *, quorum: bool) -> bool:
        """Whether a consumer that dead-letters a message raises the count that goes with it."""
        return how in self.carrying and (quorum or self.classic_carries)


V4_0 = Behaviour()
V4_3 = Behaviour(
    version="4.3.6",
    least_frame=8192,
    carried_count="counted",
    carrying=frozenset({"reject"}),
    classic_carries=True,
    counted=frozenset({"reject", "lost"}),
    kept=frozenset({"reject", "lost"}),
    acquired_count=True,
    quorum_lanes=32,
    delayed_retry=True,
    channel_prefetch=False,
    returned_yields=True,
    classic_refuses=_SINCE_4_3,
    queue_versions=frozenset({2}),
    unchecked=frozenset({"x-queue-mode"}),
    unknown=frozenset(),
    refuses=V4_0.refuses | {"x-stream-filter-size-bytes"},
    may_be_empty=frozenset({"x-queue-type"}),
    master_locator=False,
    replies_return=False,
    replies_numbered=True,
)

BEHAVIOURS = {(4, 0): V4_0, (4, 3): V4_3}


def behaviour(version: str) -> Behaviour:
    """The newest of the known versions that is not above this one: ``behaviour("4.2")`` is that of 4.0."""
    asked = tuple(int(part) for part in version.split(".")[:2])
    known = [one for one in BEHAVIOURS if one <= asked]
    if not known:
        raise ValueError(f"The embedded broker behaves as RabbitMQ 4.0 or 4.3, not as {version!r}.")
    return BEHAVIOURS[max(known)]
