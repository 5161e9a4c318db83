"""A file restores the engine's state: after any history, and for any kind of message."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis.stateful import precondition, rule

from django_rmq_retry.embedded.engine.behaviour import behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.queue import BrokerQueue
from django_rmq_retry.embedded.engine.session import ClientSession, restore
from django_rmq_retry.embedded.engine.vhost import Vhost
from django_rmq_retry.embedded.file_store import FileStore
from django_rmq_retry.messages import Headers, Properties, encode_properties
from tests.embedded.clients import THOROUGH, Clients
from tests.embedded.engine_rig import EPOCH, LASTING, EngineRig


def seen(entry: Entry) -> tuple[object, ...]:
    """Everything about a message that could differ."""
    message = entry.message
    return (
        message.body,
        message.exchange,
        message.key,
        message.raw,
        (message.persistent, message.priority, message.expiration, message.more, message.bcc, message.count),
        message.deaths,
        round(entry.expires, 3),
        (entry.redelivered, entry.count, entry.unkept, entry.acquired),
    )


def contents(queue: BrokerQueue) -> tuple[object, ...]:
    delayed = sorted((round(queue.delayed.due(entry), 3), seen(entry)) for entry in queue.delayed)
    # A queue that was empty may count its places again from 0: only their order means anything.
    places = [entry.message.body for entry in sorted(queue.ready, key=lambda entry: entry.position)]
    return [seen(entry) for entry in queue.ready], places, delayed, queue.pending, queue.held


def everything(vhost: Vhost) -> Mapping[str, object]:
    bindings = [
        (source.name, one.destination.name, one.key, one.arguments)
        for source in vhost.router.exchanges.values()
        for one in source.bindings
    ]
    return {
        "queues": {name: (queue.spec, contents(queue)) for name, queue in vhost.router.queues.items()},
        "exchanges": {
            name: (exchange.spec.type, exchange.spec.internal, exchange.spec.arguments)
            for name, exchange in vhost.router.exchanges.items()
        },
        "bindings": bindings,
    }


def restored(store: FileStore, *, version: str = "4.0", now: float = 0.0) -> Vhost:
    """The state with which a broker on this file would begin."""
    store.commit()
    vhost = Vhost("/", Clock(now, epoch=EPOCH), behaviour(version), random_name=lambda: "made-up")
    restore(vhost, store.read())
    return vhost


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with closing(FileStore(tmp_path / "broker.sqlite3", epoch=EPOCH)) as store:
        yield store


class Restarts(Clients):
    """One client, so that what it holds goes back in one order."""

    clients = 1

    def made(self) -> EngineRig:
        self.folder = TemporaryDirectory()
        self.store = FileStore(Path(self.folder.name) / "broker.sqlite3", epoch=EPOCH)
        return EngineRig(self.version, self.store)

    @precondition(lambda self: not any(queue.pending for queue in self.rig.vhost.router.queues.values()))
    @rule()
    def restart(self) -> None:
        self.read()
        vhost = self.rig.vhost
        found = restored(self.store, version=self.version, now=vhost.clock.now)
        self.sessions[0].close()
        self.sessions[0] = self.opened()
        for queue in list(vhost.router.queues.values()):
            # A file does not keep which priority is next in a quorum queue of 4.0; only the next message expires.
            queue.ready._run = 0
            queue.watch()
        vhost.settle()

        assert everything(found) == everything(vhost)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


class Restarts40(Restarts):
    version = "4.0"


TestRestarts43 = Restarts.TestCase
TestRestarts40 = Restarts40.TestCase
TestRestarts43.settings = TestRestarts40.settings = THOROUGH


def test_unacked_messages_are_restored_as_redelivered_in_order(store: FileStore) -> None:
    vhost = EngineRig("4.0", store).vhost
    channel = ClientSession(vhost).channel(1)
    for name, arguments in {"classic": {}, "quorum": {"x-queue-type": "quorum"}}.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
        for body in (b"1", b"2", b"3"):
            channel.publish("", name, LASTING, body)
        channel.get(name)
        channel.get(name)
    found = restored(store).router.queues

    assert [(one.message.body, one.redelivered, one.count) for one in found["classic"].ready] == [
        (b"1", True, 0), (b"2", True, 0), (b"3", False, 0)
    ]  # fmt: skip
    assert [(one.message.body, one.redelivered, one.count) for one in found["quorum"].ready] == [
        (b"1", True, 1), (b"2", True, 1), (b"3", False, 0)
    ]  # fmt: skip


def test_a_message_without_a_priority_keeps_its_place_among_those_of_4(store: FileStore) -> None:
    channel = ClientSession(EngineRig("4.3", store).vhost).channel(1)
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    for priority in (0, None, 4):
        raw = encode_properties(Properties(priority=priority))
        channel.publish("", "q", raw, str(priority).encode())
    found = restored(store, version="4.3").router.queues["q"]

    assert [entry.message.body for entry in found.ready] == [b"None", b"4", b"0"]


def test_the_uncounted_part_of_a_delivery_count_is_restored(store: FileStore) -> None:
    channel = ClientSession(EngineRig("4.0", store).vhost).channel(1)
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    channel.publish("", "q", LASTING, b"1")
    channel.get("q")
    channel.recover(requeue=True)

    assert [(one.count, one.unkept) for one in restored(store).router.queues["q"].ready] == [(1, 1)]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_delivery_count_from_another_queue_is_restored(store: FileStore, kind: str) -> None:
    channel = ClientSession(EngineRig("4.3", store).vhost).channel(1)
    dead = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", durable=True, arguments=dead)
    channel.queue_declare("dead", durable=True, arguments={"x-queue-type": kind})
    channel.publish("", "q", LASTING, b"1")
    channel.get("q")
    channel.reject(1, requeue=True)
    channel.get("q")
    channel.reject(2, requeue=False)

    assert [one.count for one in restored(store, version="4.3").router.queues["dead"].ready] == [2]


def test_transient_objects_and_messages_are_not_restored(store: FileStore) -> None:
    vhost = EngineRig("4.0", store).vhost
    channel = ClientSession(vhost).channel(1)
    channel.exchange_declare("passing")
    channel.queue_declare("kept", durable=True)
    channel.queue_declare("of-one-client", durable=True, exclusive=True)
    channel.queue_declare("of-consumers", durable=True, auto_delete=True)
    channel.queue_declare("passing")
    for name in ("kept", "of-one-client", "of-consumers", "passing"):
        channel.queue_bind(name, "amq.fanout")
        channel.queue_bind(name, "passing", "k")
        channel.publish("", name, LASTING, b"lasting")
        channel.publish("", name, b"\0\0", b"transient")
    found = restored(store)

    assert list(found.router.queues) == ["kept"]
    assert [one.message.body for one in found.router.queues["kept"].ready] == [b"lasting"]
    assert "passing" not in found.router.exchanges
    assert everything(found)["bindings"] == [("amq.fanout", "kept", "", {})]


def test_deleted_objects_are_not_restored(store: FileStore) -> None:
    vhost = EngineRig("4.0", store).vhost
    before = everything(vhost)
    channel = ClientSession(vhost).channel(1)
    for commits in (False, True):
        channel.exchange_declare("e", "topic", durable=True)
        channel.exchange_declare("f", "fanout", durable=True)
        channel.exchange_bind("f", "e", "#")
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "f")
        channel.queue_bind("q", "amq.topic", "k")
        channel.publish("", "q", LASTING, b"x")
        if commits:
            store.commit()
        channel.queue_delete("q")
        channel.exchange_delete("f")
        channel.exchange_delete("e")

        assert everything(restored(store)) == before


def test_any_names_and_arguments_are_restored(store: FileStore) -> None:
    odd = {
        "text": "é\udcff",
        "bytes": b"\0\xff",
        "decimal": Decimal("1.50"),
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "list": [1, 2.5, None, {"bytes": "no bytes", "table": {}}],
        "flag": True,
    }
    vhost = EngineRig("4.0", store).vhost
    channel = ClientSession(vhost).channel(1)
    channel.exchange_declare("e\udcfe", "headers", durable=True, internal=True, arguments=odd)
    channel.queue_declare("q\udcfd", durable=True, arguments={"x-odd": odd})
    channel.queue_bind("q\udcfd", "e\udcfe", "k\udcfc", odd)
    channel.publish("", "q\udcfd", LASTING, b"x")

    assert everything(restored(store)) == everything(vhost)


def test_ttl_continues_while_the_broker_is_stopped(store: FileStore) -> None:
    vhost = EngineRig("4.0", store).vhost
    channel = ClientSession(vhost).channel(1)
    letters = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("wait", durable=True, arguments=letters)
    channel.queue_declare("dead", durable=True)
    channel.publish("", "wait", LASTING, b"x")
    early = restored(store, now=59.0)
    waiting = len(list(early.router.queues["dead"].ready))
    early.clock.advance(60.0)
    late = restored(store, now=3600.0)

    assert waiting == 0
    assert len(list(early.router.queues["dead"].ready)) == 1
    (found,) = late.router.queues["dead"].ready
    assert found.message.deaths[0].time == EPOCH + 3600


def test_an_undelivered_dead_letter_is_sent_again_after_a_restart(store: FileStore) -> None:
    channel = ClientSession(EngineRig("4.0", store).vhost).channel(1)
    careful = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"}
    channel.queue_declare("main", durable=True, arguments={**careful, **letters})
    channel.publish("", "main", LASTING, b"x")
    got = channel.get("main")
    assert got is not None
    channel.reject(got.tag, requeue=False)
    again = restored(store)
    channel.queue_declare("later", durable=True)
    found = restored(store)

    assert again.router.queues["main"].pending == 1
    assert [one.message.deaths[0].reason for one in found.router.queues["later"].ready] == ["rejected"]
    assert found.router.queues["main"].pending == 0


def test_a_delayed_retry_keeps_waiting_after_a_restart(store: FileStore) -> None:
    channel = ClientSession(EngineRig("4.3", store).vhost).channel(1)
    delaying = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 60_000, "x-delayed-retry-max": 60_000}
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", **delaying})
    channel.publish("", "q", LASTING, b"x")
    got = channel.get("q")
    assert got is not None
    channel.nack(got.tag)
    found = restored(store, version="4.3", now=59.0)
    early = len(list(found.router.queues["q"].ready))
    found.clock.advance(60.0)
    late = [(one.redelivered, one.acquired) for one in found.router.queues["q"].ready]

    assert early == 0
    assert late == [(True, 1)]


def test_bindings_with_values_of_different_types_are_restored_apart(store: FileStore) -> None:
    vhost = EngineRig("4.0", store).vhost
    channel = ClientSession(vhost).channel(1)
    channel.queue_declare("q", durable=True)
    for value in (1, True, Decimal(1), 1.0, [1], [True], "z", b"z"):
        channel.queue_bind("q", "amq.headers", "", {"a": value})
    channel.queue_unbind("q", "amq.headers", "", {"a": True})
    kept = [one.arguments["a"] for one in restored(store).router.exchanges["amq.headers"].bindings]

    assert list(map(repr, kept)) == ["1", "Decimal('1')", "1.0", "[1]", "[True]", "'z'", "b'z'"]


def test_cc_keys_and_x_death_are_restored(store: FileStore) -> None:
    vhost = EngineRig("4.0", store).vhost
    channel = ClientSession(vhost).channel(1)
    channel.exchange_declare("e", durable=True)
    channel.exchange_declare("dead", "fanout", durable=True)
    for name in ("a", "b", "end"):
        letters = {"x-dead-letter-exchange": "dead"} if name != "end" else {}
        channel.queue_declare(name, durable=True, arguments=letters)
    for key in ("k", "cc", "bcc"):
        channel.queue_bind("a", "e", key)
    channel.queue_bind("b", "dead")
    copies = Headers.of({"CC": ["cc"], "BCC": ["bcc"]})
    channel.publish("e", "k", encode_properties(Properties(headers=copies, delivery_mode=2, expiration="60000")), b"x")
    waiting = restored(store)
    for name in ("a", "b"):
        got = channel.get(name)
        assert got is not None
        if name == "a":
            channel.reject(got.tag, requeue=False)

    assert [one.message.more for one in waiting.router.queues["a"].ready] == [("cc", "bcc")]
    (found,) = restored(store).router.queues["b"].ready
    assert [(death.keys, death.expiration) for death in found.message.deaths] == [(("k", "cc"), "60000")]
