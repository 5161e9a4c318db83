"""Answers to addresses that their senders have made up, among copies and honest callers, on a real broker."""

import base64
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery
from django_rmq_retry.amqp import CONFIRMED, Cause, Line, PublishEnd, PublishResult
from django_rmq_retry.amqp.answers import INTERNAL_ERROR, MOST_WAITING_ANSWERS, Answers
from django_rmq_retry.amqp.contracts import unanswered
from django_rmq_retry.amqp.reply_addresses import MOST_REMEMBERED, ReplyAddresses, family_of
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.errors import MessageUnsent
from django_rmq_retry.messages import Headers, Instruction, Settlement
from tests.amqp.answering import answering, ask, question
from tests.amqp.live import Held, Seen, calling, consuming, publishing, to
from tests.amqp.offline import ManualLoop
from tests.tooling.waiting import longer, wait_until

PREFIX = "amq.rabbitmq.reply-to."
WORK = Line(queue="work", prefetch=50)
SERIAL = slice(-8, -4)
LOST = unanswered(Cause.CONNECTION_LOST, "the connection was lost", code=INTERNAL_ERROR)


class Caller:
    """A caller of another project that calls and waits, by pika's own means."""

    def __init__(self, url: str) -> None:
        self.answers: list[bytes] = []
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self.connection.channel()
        self._channel.basic_consume("amq.rabbitmq.reply-to", lambda *got: self.answers.append(got[3]), auto_ack=True)

    def ask(self, body: bytes) -> None:
        self._channel.basic_publish("", "work", body, pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))

    def wait(self, count: int, seconds: float) -> list[bytes]:
        over = time.monotonic() + seconds
        while len(self.answers) < count and time.monotonic() < over:
            self.connection.process_data_events(time_limit=0.05)
        return self.answers


@contextmanager
def callers(url: str, count: int) -> Iterator[list[Caller]]:
    made = [Caller(url) for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.connection.close()


def address(channel: BlockingChannel) -> bytes:
    """The Erlang pid in a direct reply-to address of this broker."""
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
    channel.queue_declare("own", exclusive=True)
    channel.basic_publish("", "own", b"", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    own: list[str] = []

    def arrived() -> bool:
        _, properties, _ = channel.basic_get("own", auto_ack=True)
        own.extend([properties.reply_to] if properties and properties.reply_to else [])
        return bool(own)

    wait_until(arrived, 5)
    try:
        return base64.b64decode(own[0].removeprefix(PREFIX).split(".")[0], validate=True)
    except ValueError:
        # The embedded broker's addresses have another form.
        return b"\x83Xv\x00\x07reply@1" + bytes(12)


def forged(pid: bytes, key: bytes = b"key") -> str:
    return f"{PREFIX}{base64.b64encode(pid).decode()}.{base64.b64encode(key).decode()}"


def elsewhere(number: int) -> bytes:
    node = b"reply@%d" % number
    return b"\x83Xv" + len(node).to_bytes(2) + node + bytes((0, 0, 2, 5, 0, 0, 0, 0, 99, 3, 82, 229))


def hostile(pid: bytes) -> list[str]:
    """Addresses that a sender may write: without a pid, with a broken one, one of another broker, or a wrong one."""
    odd = pid[: SERIAL.start] + b"\xff\xff\xff\xff" + pid[SERIAL.stop :]
    return [
        *(forged(os.urandom(30)) for _ in range(10)),
        *(f"{PREFIX}{text}" for text in ("", "x", "!!!.!!!", "é.é", "a.b.c", ".")),
        *(forged(elsewhere(number)) for number in range(10)),
        *(forged(elsewhere(7), os.urandom(9)) for _ in range(10)),
        *(forged(odd, os.urandom(9)) for _ in range(2)),
        *(forged(pid[:-1]), forged(pid + b"x"), forged(pid, b"absent")),
    ]


def settlement(delivery: Delivery) -> Settlement:
    """A message that fails is copied; any other is answered."""
    if delivery.body.startswith(b"fails"):
        return Settlement(instruction=Instruction.ACK, copy=to("waiting", delivery.body))
    to_whom = delivery.reply_to or ""
    return Settlement(instruction=Instruction.ACK, answer=to(to_whom, b"re: " + delivery.body, mandatory=False))


def work(source: PikaSource, seen: Seen, count: int) -> None:
    for _ in range(count):
        delivery = seen.next()
        source.settle(delivery, settlement(delivery))


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    return [body for _, _, body in iter(lambda: channel.basic_get(queue, auto_ack=True), (None, None, None)) if body]


@pytest.mark.contract
@pytest.mark.on_both
def test_invented_reply_addresses_cost_no_copy_and_no_answer(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("work", "waiting"):
        amqp.queue_declare(name, durable=True)
    invented = hostile(address(amqp))
    with callers(broker_url, 8) as asking, caplog.at_level(logging.INFO):
        for number, reply_to in enumerate(invented * 2):
            amqp.basic_publish("", "work", b"hostile", pika.BasicProperties(reply_to=reply_to))
            amqp.basic_publish("", "work", b"fails %d" % number)
            asking[number % 8].ask(b"%d" % number)
        count = 3 * len(invented * 2)
        with consuming(broker_url, WORK) as (source, seen):
            began = time.monotonic()
            work(source, seen, count)
            wait_until(lambda: amqp.queue_declare("waiting", passive=True).method.message_count == count // 3, 10)
            copied = time.monotonic() - began
            answered = [one.wait(len(range(place, count // 3, 8)), 10) for place, one in enumerate(asking)]
            took = time.monotonic() - began
            assert amqp.queue_declare("work", passive=True).method.message_count == 0

    expected = [sorted(b"re: %d" % number for number in range(place, count // 3, 8)) for place in range(8)]
    assert [sorted(found) for found in answered] == expected
    assert sorted(bodies(amqp, "waiting")) == sorted(b"fails %d" % number for number in range(count // 3))
    assert [one for one in caplog.messages if "not stored" in one or "No connection to publish" in one] == []
    assert copied < 5 > took - 2, (copied, took)


@pytest.mark.contract
@pytest.mark.on_both
@pytest.mark.parametrize("header", [None, "CC", "BCC"])
def test_a_publish_to_an_invented_reply_address_costs_no_other_publish(
    broker_url: str, amqp: BlockingChannel, header: str | None
) -> None:
    amqp.queue_declare("payments", durable=True)
    invented = forged(elsewhere(1))
    bad = to("payments", headers=Headers.of({header: ["other", invented]})) if header else to(invented, mandatory=False)
    ends: Counter[PublishEnd] = Counter()
    with publishing(broker_url) as publisher:
        publisher.publish(to("payments"))
        for number in range(200):
            publisher.send(to("payments", b"%d" % number), lambda result: ends.update([result.kind]))
        with pytest.raises(MessageUnsent, match="is a direct reply-to address"):
            publisher.publish(bad)
        with pytest.raises(MessageUnsent, match="is a direct reply-to address"):
            publisher.publish_many([bad])
        wait_until(lambda: ends.total() == 200, 5)

    assert ends == {PublishEnd.CONFIRMED: 200}
    assert len(bodies(amqp, "payments")) == 201


@pytest.mark.contract
@pytest.mark.on_both
def test_a_call_with_an_invented_reply_address_costs_no_other_call(broker_url: str) -> None:
    copied = question(b"bad", headers=Headers.of({"CC": [forged(elsewhere(1))]}))
    with answering(broker_url), calling(broker_url) as caller:
        assert ask(caller, b"before") == b"re: before"
        connection = caller._link.connection
        with pytest.raises(MessageUnsent, match="is a direct reply-to address"):
            caller.call(copied, timeout=5)

        assert ask(caller, b"after") == b"re: after"
        assert caller._link.connection is connection


@pytest.mark.contract
def test_new_callers_get_answers_during_a_flood_of_forged_addresses(broker_url: str, amqp: BlockingChannel) -> None:
    amqp.queue_declare("work")
    pid = address(amqp)
    with callers(broker_url, 10) as asking:
        for number in range(200):
            odd = pid[: SERIAL.start] + (2**32 - 1 - number % 2).to_bytes(4) + pid[SERIAL.stop :]
            reply_to = forged(odd, b"%d" % number)
            amqp.basic_publish("", "work", b"hostile", pika.BasicProperties(reply_to=reply_to))
        for caller in asking:
            caller.ask(b"1")
        with consuming(broker_url, WORK) as (source, seen):
            began = time.monotonic()
            work(source, seen, 210)
            answered = [one.wait(1, 10) for one in asking]
            took = time.monotonic() - began

    assert answered == [[b"re: 1"]] * 10
    assert took < 5


@pytest.mark.contract
def test_an_answer_given_before_a_stop_arrives(broker_url: str, amqp: BlockingChannel) -> None:
    amqp.queue_declare("work")
    with callers(broker_url, 1) as (caller,):
        caller.ask(b"last")
        with consuming(broker_url, WORK) as (source, seen):
            work(source, seen, 1)
            source.stop()
            assert seen.has_closed.wait(longer(5))

        assert caller.wait(1, 5) == [b"re: last"]


class Sending:
    """Answers whose connections are the test's: to addresses that worked, and to untried ones."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.proven, self.untried, self.addresses = Held(), Held(), ReplyAddresses()
        self.ended: list[PublishResult] = []
        self.answers = Answers(
            self.loop,
            Held(),
            proven=self.proven,
            untried=self.untried,
            addresses=self.addresses,
            patience=10,
        )

    def send(self, address: str) -> None:
        self.answers.send(to(address, mandatory=False), self.ended.append)

    def end(self, publisher: Held, result: PublishResult) -> str:
        """Let the publish that was sent first end so; return its address."""
        message, done = publisher.sent.get(timeout=1)
        done(result)
        return message.routing_key


def test_a_flood_of_invented_nodes_does_not_delay_a_real_node() -> None:
    sending, honest = Sending(), forged(elsewhere(1000))
    for number in range(1, 101):
        sending.send(forged(elsewhere(number)))
    sending.send(honest)

    assert honest in [sending.end(sending.untried, LOST) for _ in range(3)]


def test_the_idle_connection_for_untried_addresses_is_closed() -> None:
    sending = Sending()
    for number in range(2):
        sending.send(forged(elsewhere(1), b"%d" % number))
        sending.end(sending.untried, CONFIRMED)
    (_, first), (_, second) = sending.loop.timers
    first()
    assert sending.untried.closed == 0
    second()

    assert (sending.untried.closed, sending.ended) == (1, [CONFIRMED] * 2)


def test_answers_lost_with_a_node_are_sent_again() -> None:
    sending, address = Sending(), forged(elsewhere(1))
    sending.send(address)
    sending.end(sending.untried, CONFIRMED)
    sending.send(address)
    sending.end(sending.proven, LOST)

    assert sending.end(sending.untried, CONFIRMED) == address
    assert sending.ended == [CONFIRMED] * 2


def test_a_flood_of_reply_addresses_fills_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    sending = Sending()
    for number in range(5000):
        sending.send(forged(elsewhere(number)))
        sending.addresses.refused.add(number)

    assert (sending.answers.under_way, len(sending.addresses.refused)) == (MOST_WAITING_ANSWERS + 1, MOST_REMEMBERED)
    assert sending.ended == []
    assert [one.split(" the last")[0] for one in caplog.messages] == [
        "1 answers were dropped for their direct reply-to address,"
    ]


@pytest.mark.parametrize(
    ("address", "family"),
    [
        (
            "g1h2AA5yZXBseUAxNjg5OTU4OAAAA1AAAAAAawNS5Q==.l7zI+RY6scn95BgO6SRqrQ==",
            (b"\x83Xv\0\x0ereply@16899588", True),
        ),
        ("g1h2AA5yZXBseUAxNjg5OTU4OAAAgAAAAAAAawNS5Q==.YWJj", (b"\x83Xv\0\x0ereply@16899588", False)),
        ("g1h2AA5yZXBseUAxNjg5OTU4OAAAA1AAACAAawNS5Q==.YWJj", (b"\x83Xv\0\x0ereply@16899588", False)),
        ("g2dkAA5yYWJiaXRAZm9yZWlnbgAAAfQAAAAAYw==.YWJj", (b"\x83gd\0\x0erabbit@foreign", True)),
        ("g2dkAA5yYWJiaXRAZm9yZWlnbgAAAfQAAAAAYw==.YWJj.x", None),
        ("g1h2AA5yZXBseUAxNjg5OTU4OAAAA1AAAAAAawNS.YWJj", None),
        ("g1h2//9yZXBseUAxNjg5OTU4OAAAA1AAAAAAawNS5Q==.YWJj", None),
        ("embedded.0123", None),
        ("é.é", None),
        ("", None),
    ],
)
def test_the_family_is_parsed_from_a_rabbitmq_reply_address(address: str, family: tuple[bytes, bool] | None) -> None:
    assert family_of(PREFIX + address) == family
