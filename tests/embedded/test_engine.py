"""The engine by itself: time, confirms, writes to a file, and hostile clients."""

import tracemalloc
from dataclasses import replace

import pytest

from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import Ack, Nack
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.session import ClientSession
from django_rmq_retry.embedded.engine.specs import QueueSpec
from django_rmq_retry.embedded.engine.store import Detail, DurableStore, KeptBinding, MessagePlace
from django_rmq_retry.embedded.engine.vhost import Vhost
from django_rmq_retry.messages import Headers, Properties, decode_properties, encode_properties
from tests.embedded.engine_rig import EPOCH, LASTING, EngineRig
from tests.embedded.rig import QUORUM

PLAIN = b"\0\0"


class Remembering(DurableStore):
    """The contents that a file would have."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def queue_declared(self, spec: QueueSpec) -> None:
        self.told.append(f"+queue {spec.name}")

    def queue_deleted(self, name: str) -> None:
        self.told.append(f"-queue {name}")

    def bound(self, binding: KeptBinding) -> None:
        self.told.append(f"+binding {binding.source} {binding.destination} {binding.key}")

    def enqueued(self, queue: str, entry: Entry) -> None:
        self.told.append(f"+{queue} {entry.position}")

    def moved(self, queue: str, entry: Entry, place: MessagePlace, detail: Detail) -> None:
        self.told.append(f"{queue} {entry.position} {place}")

    def removed(self, queue: str, position: int) -> None:
        self.told.append(f"-{queue} {position}")


def vhost(store: DurableStore | None = None) -> Vhost:
    return Vhost("/", Clock(epoch=EPOCH), random_name=lambda: "made-up", store=store)


def test_timers_run_in_order_each_at_its_own_time() -> None:
    clock = Clock(100.0)
    seen: list[tuple[str, float]] = []
    clock.at(103.0, lambda: seen.append(("late", clock.now)))
    clock.at(101.0, lambda: clock.at(102.0, lambda: seen.append(("nested", clock.now))))
    never = clock.at(101.5, lambda: seen.append(("never", clock.now)))
    never.cancel()
    clock.advance(110.0)

    assert seen == [("nested", 102.0), ("late", 103.0)]
    assert (clock.now, clock.next_due()) == (110.0, None)


def test_cancelled_timers_do_not_pile_up() -> None:
    clock = Clock()
    for _ in range(10_000):
        clock.at(1.0, lambda: None).cancel()
    clock.at(5.0, lambda: None)

    assert len(clock._heap) < 200
    assert clock.next_due() == 5.0


def test_chained_expirations_happen_at_their_own_times() -> None:
    rig = EngineRig("4.0")
    client = rig.connect()
    client.queue("a", {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    client.queue("b", {"x-message-ttl": 2000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"})
    client.queue("end")
    client.publish("a", "x")
    rig.wait(60)
    found = client.take("end")
    times = [death["time"].timestamp() - EPOCH for death in found.headers["x-death"]]

    assert times == [3.0, 1.0]


def test_no_timer_is_due_without_waiting_messages() -> None:
    host = vhost()
    channel = ClientSession(host).channel(1)
    channel.queue_declare("q", durable=True)
    channel.publish("", "q", PLAIN, b"x")

    assert host.clock.next_due() is None


def test_consecutive_confirms_are_merged_around_a_nack() -> None:
    host = vhost()
    session = ClientSession(host)
    channel = session.channel(1)
    channel.confirm_select()
    channel.queue_declare("q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    for _ in range(5):
        channel.publish("", "q", PLAIN, b"x")
    channel.publish("", "nowhere", PLAIN, b"x")
    told = [(type(one), one.number) for one in session.drain() if isinstance(one, Ack | Nack)]

    assert told == [(Ack, 3), (Nack, 4), (Nack, 5), (Ack, 6)]
    assert not host.busy


def test_only_connections_with_output_are_marked_busy() -> None:
    host = vhost()
    quiet, busy = ClientSession(host), ClientSession(host)
    quiet.channel(1).queue_declare("q")
    busy.channel(1).consume("q")
    quiet.channels[1].publish("", "q", PLAIN, b"x")

    assert list(host.busy) == [busy]
    assert len(busy.drain()) == 1
    assert not host.busy


def test_only_durable_objects_and_messages_reach_the_store() -> None:
    store = Remembering()
    channel = ClientSession(vhost(store)).channel(1)
    channel.exchange_declare("e", durable=True)
    channel.queue_declare("c", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    channel.queue_declare("q", durable=True, arguments=QUORUM)
    channel.queue_declare("passing")
    channel.queue_bind("c", "e", "k")
    channel.queue_bind("passing", "e", "k")
    channel.publish("", "c", LASTING, b"kept")
    channel.publish("", "c", PLAIN, b"not kept")
    channel.publish("", "passing", LASTING, b"not kept")
    for _ in range(2):
        got = channel.get("c")
        assert got is not None
        channel.nack(got.tag, requeue=False)
    channel.queue_delete("c")

    assert store.told == [
        "+queue c", "+queue q", "+binding e c k", "+c 1", "c 1 held", "+q 1", "-c 1", "+q 2", "-queue c"
    ]  # fmt: skip


def test_at_least_once_resends_only_missing_copies_after_3_minutes() -> None:
    rig = EngineRig("4.0")
    client = rig.connect()
    client.exchange("dlx", "fanout")
    careful = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    client.queue("main", {**QUORUM, **careful, "x-dead-letter-exchange": "dlx"})
    client.queue("free")
    client.queue("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    for name in ("free", "full"):
        client.bind(name, "dlx")
    client.publish("main", "x")
    found = client.take("main")
    client.reject(found, requeue=False)
    assert rig.vhost.router.queues["main"].pending == 1
    client.delete_queue("full")
    client.queue("full")
    client.bind("full", "dlx")
    rig.wait(179)
    early = client.queue("full", passive=True).messages
    rig.wait(1)

    assert early == 0
    assert [client.queue(name, passive=True).messages for name in ("free", "full")] == [1, 1]
    assert rig.vhost.router.queues["main"].pending == 0


def test_dead_lettering_keeps_the_publishers_properties() -> None:
    channel = ClientSession(vhost()).channel(1)
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"})
    channel.queue_declare("end")
    odd = Headers(b"\x02u8B\xff\x01fd\x40\x0e\0\0\0\0\0\0\x02hiS\0\0\0\x02\xff\xfe")
    sent = Properties(
        content_type="a", content_encoding="b", headers=odd, delivery_mode=2, priority=3, correlation_id="c",
        reply_to="d", expiration="5", message_id="e", timestamp=6, type="f", user_id="guest", app_id="g",
        cluster_id="h",
    )  # fmt: skip
    channel.publish("", "q", encode_properties(sent), b"x")
    channel.vhost.clock.advance(1)
    got = channel.get("end")
    assert got is not None
    found = decode_properties(got.raw)

    assert found.headers.raw.startswith(odd.raw)
    assert found == replace(sent, headers=found.headers, expiration=None)


def test_a_long_refusal_is_cut_to_a_short_string() -> None:
    channel = ClientSession(vhost()).channel(1)
    with pytest.raises(RequestRefused) as refused:
        channel.queue_declare("q" * 255, passive=True)

    assert len(refused.value.text) == 255
    assert refused.value.text.endswith("q...")


def test_transactions_are_refused_in_a_sentence() -> None:
    with pytest.raises(RequestRefused) as refused:
        ClientSession(vhost()).channel(1).tx_select()

    assert refused.value.text == "NOT_IMPLEMENTED - the embedded broker has no transactions; use publisher confirms"


def test_a_waiting_message_uses_little_memory_beyond_its_body() -> None:
    channel = ClientSession(vhost()).channel(1)
    channel.queue_declare("end", durable=True, arguments=QUORUM)
    back = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"}
    channel.queue_declare("wait", durable=True, arguments={**QUORUM, **back})
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(5000):
        properties = Properties(delivery_mode=2, message_id=f"{number:032x}", headers=Headers.of({"attempt": number}))
        channel.publish("", "wait", encode_properties(properties), b"")
    each = (tracemalloc.get_traced_memory()[0] - before) / 5000
    tracemalloc.stop()

    assert each < 600
    assert len(channel.vhost.clock._heap) == 1


def test_hundreds_of_chained_dead_letters_do_not_overflow_the_stack() -> None:
    channel = ClientSession(vhost()).channel(1)
    for number in range(400):
        following = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{number + 1}"}
        channel.queue_declare(f"q{number}", arguments={"x-message-ttl": 0, **following})
    channel.queue_declare("q400")
    channel.publish("", "q0", PLAIN, b"x")

    assert channel.queue_declare("q400", passive=True).messages == 1


def test_many_unacked_messages_are_acked_one_by_one_quickly() -> None:
    host = vhost()
    session = ClientSession(host)
    channel = session.channel(1)
    channel.queue_declare("q")
    for _ in range(20_000):
        channel.publish("", "q", PLAIN, b"")
    channel.consume("q")
    looked = 0
    for tag in range(1, 20_001):
        channel.ack(tag, multiple=True)
        looked += len(channel.unacked)

    assert looked == sum(range(20_000))
    assert host.router.queues["q"].held == 0
