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
"""Arguments of quorum queues that 4.3 compares and that its classic queues refuse."""
Return = Literal["reject", "nack", "recover", "lost"]
"""The way a delivery returned: basic.reject, basic.nack, basic.recover, or the end of its channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One RabbitMQ version, as far as versions differ. In the notes Q is a quorum queue and dc its delivery count."""

    version: str = "4.0.5"
    max_message: int = 16 * MEBIBYTE
    least_frame: int = 4096
    carried_count: Literal["shown", "counted"] = "shown"
    """Q: the dc of a dead letter is only shown, or also counts towards the delivery limit."""
    carrying: frozenset[Return] = frozenset({"reject", "nack"})
    classic_carries: bool = False
    """True if classic queues also count, for the queues that dead letters reach; they show no count themselves."""
    counted: frozenset[Return] = frozenset({"reject", "nack", "recover", "lost"})
    """Q: the kinds of return that raise dc."""
    kept: frozenset[Return] = frozenset({"lost"})
    """Q: the kinds of return whose dc travels with the dead letter."""
    acquired_count: bool = False
    """Q: x-acquired-count shows the number of deliveries that returned."""
    quorum_lanes: Literal[2, 32] = 2
    """Q: the number of distinct priorities; with 32, each priority expires separately."""
    delayed_retry: bool = False
    channel_prefetch: bool = True
    """True if basic.qos global=true limits the channel."""
    returned_yields: bool = False
    """Q: a single active consumer also yields to a higher priority once its unacked messages were returned."""
    refuses: frozenset[str] = frozenset({"x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"})
    """Arguments of streams, refused by other queues."""
    classic_refuses: frozenset[str] = frozenset()
    queue_versions: frozenset[int] = frozenset({1, 2})
    unchecked: frozenset[str] = _SINCE_4_3
    """Arguments that accept any value."""
    unknown: frozenset[str] = _SINCE_4_3
    """Arguments that a second declaration may change."""
    may_be_empty: frozenset[str] = frozenset()
    master_locator: bool = True
    replies_return: bool = True
    """True if a mandatory direct reply-to message is returned even after its delivery."""
    replies_numbered: bool = False
    """True if direct replies use the channel's delivery tags; otherwise each has the tag 1."""

    def carries(self, how: Return, *, quorum: bool) -> bool:
        """True if a consumer that dead-letters a message raises the count that travels with it."""
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
    """Return the newest behaviour not above this version: ``behaviour("4.2")`` is that of 4.0."""
    asked = tuple(int(part) for part in version.split(".")[:2])
    known = [one for one in BEHAVIOURS if one <= asked]
    if not known:
        raise ValueError(f"The embedded broker behaves as RabbitMQ 4.0 or 4.3, not as {version!r}.")
    return BEHAVIOURS[max(known)]
