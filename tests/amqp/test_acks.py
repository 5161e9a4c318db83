import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.amqp.acks import Acks

ACK, REJECT, NACK = 80, 90, 120
Step = tuple[str, list[int]]


class Broker:
    """The tags that RabbitMQ keeps of one channel; a tag that is not outstanding is a channel error."""

    def __init__(self, count: int) -> None:
        self.unacked = set(range(1, count + 1))
        self.fates: dict[int, str] = {}

    def hear(self, data: bytes) -> None:
        for at in range(0, len(data), 21):
            kind, channel, size, class_id, method, tag, bits, end = struct.unpack_from(">BHIHHQBB", data, at)
            assert (kind, channel, size, class_id, end) == (1, 7, 13, 60, 0xCE)
            self._settle(method, tag, bits)

    def _settle(self, method: int, tag: int, bits: int) -> None:
        assert tag in self.unacked, f"406 PRECONDITION_FAILED - unknown delivery tag {tag}"
        multiple = method == ACK and bits & 1
        assert bits <= {ACK: 1, NACK: 2, REJECT: 1}[method]
        fate = {ACK: "ack", NACK: "requeue" if bits & 2 else "drop", REJECT: "counted"}[method]
        for one in [held for held in self.unacked if held <= tag] if multiple else [tag]:
            self.unacked.discard(one)
            self.fates[one] = fate


@st.composite
def plans(draw: st.DrawFn) -> list[Step]:
    """Every tag once, in any order, acks in batches of any size."""
    tags = draw(st.permutations(range(1, draw(st.integers(1, 40)) + 1)))
    steps: list[Step] = []
    while tags:
        how = draw(st.sampled_from(["ack", "ack", "ack", "requeue", "drop", "counted"]))
        size = draw(st.integers(1, 6)) if how == "ack" else 1
        steps.append((how, list(tags[:size])))
        tags = tags[size:]
    return steps


def tell(acks: Acks, step: Step) -> bytes:
    how, tags = step
    if how == "ack":
        return b"".join(acks.acks(tags))
    if how == "counted":
        return acks.counted_requeue(tags[0])
    return acks.nack(tags[0], requeue=how == "requeue")


def play(steps: Sequence[Step]) -> Broker:
    """After every step the broker must have received acks of exactly the settled deliveries."""
    broker = Broker(sum(len(tags) for _, tags in steps))
    acks, done = Acks(7), {}
    for step in steps:
        broker.hear(tell(acks, step))
        done.update(dict.fromkeys(step[1], step[0]))
        assert broker.fates == done
    assert broker.unacked == set()
    return broker


@given(plans())
def test_every_delivery_tag_is_settled_once_in_any_order(steps: list[Step]) -> None:
    play(steps)


def test_one_frame_acknowledges_consecutive_tags() -> None:
    assert list(Acks(7).acks([1, 2, 3, 4])) == [struct.pack(">BHIHHQBB", 1, 7, 13, 60, ACK, 4, 1, 0xCE)]


def test_later_acks_do_not_wait_for_a_slow_message() -> None:
    broker, acks = Broker(4), Acks(7)

    broker.hear(b"".join(acks.acks([2, 3, 4])))

    assert broker.unacked == {1}


def test_a_multiple_ack_never_acknowledges_a_requeued_message() -> None:
    broker = play([("ack", [3]), ("requeue", [1]), ("drop", [2]), ("ack", [5]), ("ack", [4, 6])])

    assert broker.fates == {1: "requeue", 2: "drop", 3: "ack", 4: "ack", 5: "ack", 6: "ack"}


def test_a_later_ack_never_acknowledges_a_tag_that_was_not_settled() -> None:
    # pika rejects by itself what arrives while a subscription is being cancelled: such a tag stays a gap for us.
    broker, acks = Broker(5), Acks(7)

    broker.hear(b"".join(acks.acks([1, 3])))
    broker.hear(b"".join(acks.acks([4, 5])))

    assert broker.unacked == {2}
