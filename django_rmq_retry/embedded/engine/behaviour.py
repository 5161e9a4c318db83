"""What RabbitMQ versions do differently, as values: the engine behaves as 4.0 unless told otherwise."""

from dataclasses import dataclass
from typing import Literal

MEBIBYTE = 2**20
Return = Literal["reject", "nack", "recover", "lost"]
"""How a delivery came back: basic.reject, basic.nack, basic.recover, or its channel ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One RabbitMQ version where versions differ; Q is a quorum queue, dc its count of failed deliveries."""

    version: str = "4.0.5"
    max_message: int = 16 * MEBIBYTE
    least_frame: int = 4096
    last_death: bool = True
    """The headers x-last-death-* are written."""
    believes_x_death: bool = False
    """An x-death that a client published is gone on with."""
    shuffles_deaths: bool = False
    """Only the first entry of x-death is where it belongs: the others change their order at every death."""
    key_drops_cc: bool = False
    """A dead-letter routing key takes the header CC away."""
    zero_count: bool = False
    """Q: x-delivery-count is written at the first delivery too, over whatever a client wrote."""
    carried_count: Literal["no", "shown", "counted"] = "shown"
    """Q: what becomes of dc where a message is dead-lettered by a consumer."""
    carrying: frozenset[Return] = frozenset({"reject", "nack"})
    classic_carries: bool = False
    """A classic queue counts as well, for the queues behind it; it shows no count itself."""
    counted: frozenset[Return] = frozenset({"reject", "nack", "recover", "lost"})
    """Q: the ways back that raise dc."""
    kept: frozenset[Return] = frozenset({"lost"})
    """Q: those of them that go with it when it is dead-lettered."""
    acquired_count: bool = False
    """Q: x-acquired-count tells how often a message was handed out and came back."""
    delivery_limit: int | None = 20
    negative_limit: int | None = None
    """Q: what x-delivery-limit=-1 means."""
    unlimited_to_back: bool = False
    """Q without a delivery limit: what is returned goes to the back of the queue."""
    quorum_lanes: Literal[1, 2, 32] = 2
    """Q: how many priorities it tells apart; 32 also expire each on its own."""
    delayed_retry: bool = False
    channel_prefetch: bool = True
    """basic.qos global=true limits the channel."""
    cancel_hands_over: bool = True
    """Classic queue with a single active consumer: its cancel gives the next one what is ready, without more ado."""
    quorum_ranks: bool = True
    """Q: a single active consumer gives way to one of higher priority when what it holds has been dealt with."""
    returned_yields: bool = False
    """Q: ... or has been returned."""
    names_classic: bool = True
    """A queue declared without x-queue-type counts as declared with 'classic'."""
    refuses: frozenset[str] = frozenset({"x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"})
    """Arguments of streams."""
    classic_refuses: frozenset[str] = frozenset()
    queue_versions: frozenset[int] = frozenset({1, 2})
    unchecked: frozenset[str] = frozenset({"x-consumer-timeout"})
    """Arguments whose value may be anything."""
    may_be_empty: frozenset[str] = frozenset()
    master_locator: bool = True
    quorum_knows: frozenset[str] = frozenset({"x-consumer-timeout"})
    unknown_type_is_hard: bool = False
    """An exchange type that does not exist closes the connection."""
    strict_delivery_mode: bool = False
    replies_return: bool = True
    """A mandatory reply by direct reply-to is returned although it arrived."""
    replies_numbered: bool = False
    """Such replies are counted by the channel's delivery tags; if not, each has the tag 1."""

    def carries(self, how: Return, *, quorum: bool) -> bool:
        """Whether a consumer that dead-letters a message raises the count that goes with it."""
        return how in self.carrying and (quorum or self.classic_carries)


V3_10 = Behaviour(
    version="3.10.8",
    max_message=128 * MEBIBYTE,
    last_death=False,
    believes_x_death=True,
    shuffles_deaths=True,
    key_drops_cc=True,
    zero_count=True,
    carried_count="no",
    delivery_limit=None,
    negative_limit=0,
    unlimited_to_back=True,
    quorum_lanes=1,
    cancel_hands_over=False,
    quorum_ranks=False,
    names_classic=False,
    classic_refuses=frozenset({"x-queue-leader-locator"}),
    quorum_knows=frozenset(),
    unknown_type_is_hard=True,
    strict_delivery_mode=True,
)
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
    classic_refuses=frozenset(
        {"x-consumer-timeout", "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"}
    ),
    queue_versions=frozenset({2}),
    unchecked=frozenset({"x-queue-mode"}),
    refuses=V4_0.refuses | {"x-stream-filter-size-bytes"},
    may_be_empty=frozenset({"x-queue-type"}),
    master_locator=False,
    replies_return=False,
    replies_numbered=True,
)

BEHAVIOURS = {(3, 10): V3_10, (4, 0): V4_0, (4, 3): V4_3}


def behaviour(version: str) -> Behaviour:
    """The newest of the known versions that is not above this one: ``behaviour("3.13")`` is that of 3.10."""
    asked = tuple(int(part) for part in version.split(".")[:2])
    known = [one for one in BEHAVIOURS if one <= asked]
    if not known:
        raise ValueError(f"The embedded broker behaves as RabbitMQ 3.10, 4.0 or 4.3, not as {version!r}.")
    return BEHAVIOURS[max(known)]
