import asyncio
import gc
import json
import struct
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from django_rmq_retry import (
    DeadLetter,
    Delivery,
    Discard,
    Fixed,
    Json,
    Message,
    NackRequeue,
    Native,
    OneShot,
    Park,
    Queue,
    Raw,
    Republish,
    Retry,
    RetryThenPark,
    StopTheLine,
)
from django_rmq_retry.amqp.frames import check_writable, marshal_publish
from django_rmq_retry.attempts.rows import AttemptDraft, draft_of
from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.handlers import Match, Subscription
from django_rmq_retry.handlers.verdicts import was_unacked
from django_rmq_retry.messages import (
    DONE,
    Codec,
    Headers,
    Instruction,
    Properties,
    Reason,
    Settlement,
    encode_properties,
)
from django_rmq_retry.messages.header_names import ANSWER
from django_rmq_retry.policies import Backoff, Hop, Kind, Policy, Route
from django_rmq_retry.policies.policy import AutoAck
from tests.consumer.attempts import PLAIN, Bench, Book, pipeline_of
from tests.handlers.factories import delivery, subscription
from tests.messages.exceptions import post
from tests.messages.parked_copies import read_back

DIRECT = "amq.rabbitmq.reply-to.g1AAA"


class Broken(Exception):
    """The error that handlers raise here."""


def raising(error: BaseException) -> Callable[[Delivery], object]:
    def act(_: Delivery) -> object:
        raise error

    return act


def copy_in(settlement: Settlement) -> Message:
    assert settlement.copy is not None
    return settlement.copy


def reason_in(settlement: Settlement) -> object:
    copy = copy_in(settlement)
    assert copy.routing_key == "payments.parked"
    return copy.headers["rmq-retry-reason"]


def answer_in(settlement: Settlement) -> tuple[object, object]:
    assert settlement.answer is not None
    return json.loads(settlement.answer.body), settlement.answer.headers[ANSWER]


def entry(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


MILLISECONDS = entry(b"when", b"T" + struct.pack(">Q", 1_700_000_000_000 * 1000))
NOT_UTF8 = entry(b"\xff\xfe", b"t\x01")


def nested(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = entry(b"a", b"F" + struct.pack(">I", len(inner)) + inner)
    return inner


HOSTILE = {"milliseconds": MILLISECONDS, "not UTF-8": NOT_UTF8, "5,000 deep": nested(5000)}


def with_table(table: bytes) -> bytes:
    return struct.pack(">HI", 0x2000, len(table)) + table


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(_raw: bytes) -> Properties:
        raise AssertionError("decoded")

    monkeypatch.setattr("django_rmq_retry.messages.message.decode_properties", decode)


@pytest.mark.usefixtures("undecoded")
def test_a_plain_message_is_handled_without_its_properties_being_decoded() -> None:
    seen: list[object] = []
    bench = Bench(act=lambda message: seen.append(message.data))
    arrival = delivery(body=b'{"payment": 7}', message_id="a", content_type="application/json", delivery_mode=2)

    assert bench.settle(arrival) is DONE
    assert seen == [{"payment": 7}]


@pytest.mark.parametrize("table", HOSTILE.values(), ids=HOSTILE)
def test_undecodable_headers_are_parked_without_running_a_handler(table: bytes) -> None:
    bench = Bench()
    settlement = bench.settle(delivery(raw=with_table(table), body=b"as it came"))

    assert reason_in(settlement) == "undecodable_headers"
    assert table in encode_properties(copy_in(settlement).properties)
    assert copy_in(settlement).body == b"as it came"
    assert bench.log == ["enter", "leave"]
    assert bench.verdicts == [(Kind.PARK, Reason.UNDECODABLE_HEADERS)]


@pytest.mark.parametrize("raw", [b"\x20\x00\xff\xff\xff\xff", b"\x80\x00\x09ab", b"\x00\x01", b"\x20\x00"])
def test_broken_properties_are_parked_as_bytes(raw: bytes) -> None:
    bench = Bench()
    settlement = bench.settle(delivery(raw=raw, redelivered=True))

    assert reason_in(settlement) == "undecodable_headers"
    assert copy_in(settlement).headers["rmq-retry-properties"] == raw
    assert "run" not in bench.log


@pytest.mark.parametrize("body", [b"\xff", b"{", b'{"a": 1, "a": 2}', b"[" * 100_000, b"NaN", b"1e999999999"])
def test_an_undecodable_body_is_parked_without_running_a_handler(body: bytes) -> None:
    bench = Bench()
    settlement = bench.settle(delivery(body=body))

    assert reason_in(settlement) == "undecodable_body"
    assert copy_in(settlement).body == body
    assert bench.log == ["enter", "leave"]


def test_a_compressed_body_is_parked_and_not_guessed_at() -> None:
    assert reason_in(Bench().settle(delivery(content_encoding="gzip"))) == "undecodable_body"


def test_whatever_a_codec_raises_parks_the_message() -> None:
    class Mad(Raw):
        def decode(self, body: bytes, properties: Properties | None = None) -> object:
            raise KeyError("schema")

    assert reason_in(Bench(codec=Mad()).settle()) == "undecodable_body"


def test_a_codec_gets_the_properties_of_every_message() -> None:
    """It got them only of a message with a content-encoding, and always in the test kit."""

    class ByVersion(Json):
        def decode(self, body: bytes, properties: Properties | None = None) -> object:
            assert properties is not None
            return properties.type, super().decode(body, properties)

    got: list[Any] = []
    bench = Bench(codec=ByVersion(), act=lambda message: got.append(message.data))
    for arrival in (delivery(type="v2"), delivery(type="v2", content_encoding="utf-8"), delivery()):
        bench.settle(arrival)

    assert [kind for kind, _data in got] == ["v2", "v2", None]


@pytest.mark.parametrize("lost", [True, False])
def test_a_success_whose_connection_was_lost_meanwhile_is_told_and_recorded(
    caplog: pytest.LogCaptureFixture, *, lost: bool
) -> None:
    """A frozen consumer paid four payments three minutes after others had, and its log said "ack"."""
    line, book = SimpleNamespace(stale=False, last_acks=deque()), Book(notes_acks=False)

    def pay(_message: Delivery) -> None:
        line.stale = lost

    Bench(act=pay, book=book).settle(replace(delivery(message_id="m-1"), token=(line, 1)))

    assert [one.verdict.name for one in book.notes] == (["ack"] if lost else [])
    assert ("message 'm-1', but its connection was lost" in caplog.text) == lost


class EndingLine:
    """Its connection is lost after so many looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.last_acks = deque[object]()

    @property
    def stale(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("looks", range(1, 5))
def test_a_lost_connection_is_told_by_all_who_tell_of_an_attempt_or_by_none(
    caplog: pytest.LogCaptureFixture, looks: int
) -> None:
    named = replace(subscription(PLAIN), keys=lambda _message: ["PAY-1"])
    line, drafts = EndingLine(looks), list[AttemptDraft]()
    journal = SimpleNamespace(notes_acks=True, note=lambda attempt: drafts.append(draft_of(attempt, None)))
    pipeline_of(named, journals=(journal,)).attempt(replace(delivery(message_id="m-1"), token=(line, 1)))
    warned = "but its connection was lost" in caplog.text

    assert [(one.redelivered, bool(one.keys)) for one in drafts] == [(warned, warned)]


@pytest.mark.parametrize(
    ("arrival", "act", "remembered"),
    [
        (delivery(message_id="m-1"), lambda _: None, 1),
        (delivery(message_id="m-1"), lambda _: post(), 0),
        (replace(delivery(message_id="m-1"), redelivered=True), lambda _: None, 0),
        (delivery(message_id="m-1", headers={"rmq-retry-attempts": 1}), lambda _: None, 0),
    ],
    ids=["first", "failed", "delivered again: it has a row", "a retry: it has a row"],
)
def test_a_first_success_is_remembered_until_its_ack_has_arrived(
    arrival: Delivery, act: Callable[[Delivery], object], remembered: int
) -> None:
    line = SimpleNamespace(stale=False, last_acks=deque())
    Bench(act=act).settle(replace(arrival, token=(line, 1)))

    assert [one[1].id for one in line.last_acks] == ["m-1"] * remembered


def test_a_message_that_no_handler_takes_is_parked_with_that_reason() -> None:
    bench = Bench(match=Match(type="charge"))
    settlement = bench.settle(delivery(type="refund"))

    assert reason_in(settlement) == "no_handler"
    assert bench.log == ["enter", "leave"]
    assert bench.book.notes[0].subscription is None


@pytest.mark.parametrize(
    ("match", "sent", "said"),
    [
        (Match(type="charge"), {"type": "refund"}, " of type 'refund'."),
        (Match(type="charge"), {}, " without a type."),
        (Match(routing_key="pay.#"), {"routing_key": "post"}, " with the routing key 'post'."),
        (Match(headers={"task": "pay"}), {"headers": {"task": "post"}}, " with the header task='post'."),
        (Match(headers={"task": "pay", "v": 2}), {"headers": {"v": 2}}, " with no header task and the header v=2."),
    ],
)
def test_the_reason_of_a_message_without_handler_names_what_was_compared(
    match: Match, sent: dict[str, Any], said: str
) -> None:
    bench = Bench(match=match)
    bench.settle(delivery(**sent))

    assert bench.book.notes[0].verdict.detail == f"No handler of queue 'payments' takes a message{said}"


@pytest.mark.parametrize("match", [Match(), Match(type="charge")])
def test_messages_without_id_parked_together_get_different_copies(match: Match) -> None:
    chances = iter((0.0, 0.25, 0.5, 0.75))
    bench = Bench(act=raising(Park("closed")), match=match, chance=lambda: next(chances))
    copies = [copy_in(bench.settle()).properties for _ in range(2)]

    assert copies[0] != copies[1]


@pytest.mark.parametrize(("redelivered", "count"), [(True, 2), (False, 50), (True, "many")])
def test_a_message_returned_twice_is_handled(redelivered: bool, count: object) -> None:
    bench = Bench()

    assert bench.settle(delivery(redelivered=redelivered, headers={"x-delivery-count": count})) is DONE
    assert "run" in bench.log


def test_a_message_returned_three_times_goes_to_quarantine() -> None:
    bench = Bench()
    arrival = delivery(redelivered=True, headers={"x-delivery-count": 3, "rmq-retry-attempts": 3, "own": "kept"})
    copy = copy_in(bench.settle(arrival))

    assert (copy.exchange, copy.routing_key) == ("", "payments.quarantine")
    assert "run" not in bench.log
    assert (copy.headers["own"], copy.headers["rmq-retry-attempts"]) == ("kept", 3)
    assert "x-delivery-count" not in copy.headers


def test_a_quarantined_message_is_handled_as_in_its_own_queue() -> None:
    bench = Bench(act=raising(Broken()))
    told = {"rmq-retry-queue": "payments", "rmq-retry-routing-key": "pay.card", "rmq-retry-attempts": 1}
    arrival = delivery(queue="payments.quarantine", redelivered=True, headers={"x-delivery-count": 4, **told})
    copy = copy_in(bench.settle(arrival))

    tried = bench.book.notes[0].delivery
    assert (tried.queue, tried.routing_key, tried.attempt) == ("payments", "pay.card", 2)
    assert (arrival.queue, arrival.attempt) == ("payments.quarantine", 1)
    assert copy.routing_key.startswith("payments.retry.")


def test_a_quarantined_message_is_parked_after_five_worker_deaths() -> None:
    bench = Bench()
    arrival = delivery(queue="payments.quarantine", redelivered=True, headers={"x-delivery-count": 5})
    copy = copy_in(bench.settle(arrival))

    assert copy.headers["rmq-retry-reason"] == "worker_stopped"
    assert "run" not in bench.log
    # No handler has made this attempt.
    assert ("rmq-retry-handler" in copy.headers, bench.book.notes[0].subscription) == (False, None)
    # Eight workers died with it: three before it was quarantined.
    assert bench.book.notes[0].verdict.detail.startswith("Redelivered 8 times after its workers stopped")


LOOP = RetryThenPark(via=DeadLetter(exchange="again", queue="later", after=5))


@pytest.mark.parametrize(("counts", "handled"), [({}, 19), ({"x-acquired-count": 50}, 4)], ids=["before 4.3", "4.3"])
def test_without_quarantine_the_crash_limit_allows_for_planned_stops(counts: dict[str, object], handled: int) -> None:
    bench = Bench(policy=LOOP)
    last = bench.settle(delivery(redelivered=True, headers={"x-delivery-count": handled, **counts}))
    one_more = bench.settle(delivery(redelivered=True, headers={"x-delivery-count": handled + 1, **counts}))

    assert last is DONE
    assert reason_in(one_more) == "worker_stopped"


@pytest.mark.parametrize(
    ("policy", "arrived", "ended"),
    [
        (LOOP, {}, None),
        (LOOP, {"x-death": [{"queue": "payments", "reason": "rejected", "count": 2}]}, 2),
        (RetryThenPark(attempts=2, via=NackRequeue()), {}, None),
        (RetryThenPark(attempts=3, via=Native(5)), {}, None),
        (PLAIN, {"rmq-retry-attempts": 1, "rmq-retry-queue": "payments"}, 1),
        (PLAIN, {}, None),
    ],
    ids=["loop", "loop, retried", "requeue", "native", "ladder, retried", "ladder"],
)
def test_a_message_parked_after_crashes_counts_only_finished_attempts(
    policy: Policy, arrived: dict[str, object], ended: int | None
) -> None:
    queue = "payments.quarantine" if policy is PLAIN else "payments"
    bench = Bench(policy=policy)
    copy = copy_in(bench.settle(delivery(queue=queue, redelivered=True, headers={"x-delivery-count": 30, **arrived})))

    assert copy.headers["rmq-retry-reason"] == "worker_stopped"
    assert copy.headers.get("rmq-retry-attempts") == ended
    assert bench.book.notes[0].delivery.attempt == (ended or 0) + 1


STOPPED_CLEANLY = {"x-delivery-count": 0, "x-acquired-count": 1}
"""The counts of RabbitMQ 4.3 for a message that a worker gave back before it ended."""


@pytest.mark.parametrize(
    ("policy", "queue", "counts", "unacked"),
    [
        (PLAIN, "payments", {}, 1),
        (PLAIN, "payments", {"x-delivery-count": 1}, 1),
        (PLAIN, "payments", {"x-delivery-count": 1, "x-acquired-count": 1}, 1),
        (PLAIN, "payments", STOPPED_CLEANLY, None),
        (PLAIN, "payments.quarantine", {}, 1),
        (LOOP, "payments", {}, 1),
        # The broker marks each retry of these as redelivered.
        (RetryThenPark(attempts=2, via=NackRequeue()), "payments", {}, None),
        (RetryThenPark(attempts=2, via=Native(5)), "payments", {"x-delivery-count": 1}, None),
    ],
    ids=["classic", "quorum", "4.3", "4.3, given back", "quarantine", "loop", "requeue", "native"],
)
def test_a_failed_message_remembers_that_a_consumer_had_it_before(
    policy: Policy, queue: str, counts: dict[str, object], unacked: int | None
) -> None:
    bench = Bench(policy=policy, act=raising(Broken()))
    failed = copy_in(bench.settle(delivery(queue=queue, redelivered=True, headers=counts)))
    put = {name: value for name, value in failed.headers.items() if name != "rmq-retry-attempts"}
    last = copy_in(Bench(act=raising(Park("closed"))).settle(delivery(headers=put)))

    assert failed.headers.get("rmq-retry-unacked") == unacked
    assert last.headers.get("rmq-retry-unacked") == unacked


@pytest.mark.parametrize(
    ("counts", "unacked"),
    [({}, False), ({"x-delivery-count": 2}, False), ({"x-delivery-count": 3}, True)],
    ids=["classic", "rejected", "rejected, and lost once"],
)
def test_what_comes_back_from_a_dead_letter_loop_is_not_taken_for_lost(
    counts: dict[str, object], *, unacked: bool
) -> None:
    """RabbitMQ 4 marks it as redelivered: each message of such a loop was left out of requeues."""
    deaths = [{"queue": "payments", "reason": "rejected", "count": 2}, {"queue": "w", "reason": "expired", "count": 2}]
    back = delivery(redelivered=True, headers={"x-death": deaths, **counts})

    assert was_unacked(back, subscription(LOOP)) is unacked


def test_a_message_that_failed_in_the_hands_of_its_consumer_has_no_doubt() -> None:
    copy = copy_in(Bench(act=raising(Broken())).settle(delivery()))

    assert "rmq-retry-unacked" not in copy.headers


def test_crash_limit_none_disables_parking_after_crashes() -> None:
    bench = Bench(options={"crash_limit": None})

    assert bench.settle(delivery(redelivered=True, headers={"x-delivery-count": 99})) is DONE


@pytest.mark.parametrize(
    "policy",
    [
        StopTheLine(),
        StopTheLine(attempts=5),
        RetryThenPark(attempts=None, via=NackRequeue()),
        RetryThenPark(attempts=None, via=Native(5)),
    ],
)
def test_a_policy_with_unlimited_requeues_never_parks_for_returns(policy: Policy) -> None:
    bench = Bench(policy=policy)

    assert bench.settle(delivery(redelivered=True, headers={"x-delivery-count": 99})) is DONE


def test_native_retries_do_not_count_as_crashes() -> None:
    bench = Bench(policy=RetryThenPark(attempts=8, via=Native(5)), act=raising(Broken()))
    seventh = bench.settle(delivery(redelivered=True, headers={"x-delivery-count": 6}))
    eighth = bench.settle(delivery(redelivered=True, headers={"x-delivery-count": 7}))

    assert seventh.instruction is Instruction.COUNTED_REQUEUE
    assert reason_in(eighth) == "retries_exhausted"
    lost = {"x-delivery-count": 12, "x-acquired-count": 12}
    assert reason_in(bench.settle(delivery(redelivered=True, headers=lost))) == "worker_stopped"


def test_a_message_without_room_for_a_count_is_noted_as_parked() -> None:
    bench = Bench(act=raising(Broken("no bank")))
    full = delivery(headers={"baggage": "x" * 125_000}, message_id="m-1")
    copy = copy_in(bench.settle(full))

    assert bench.verdicts == [(Kind.PARK, Reason.PERMANENT)]
    assert (copy.routing_key, copy.properties.message_id) == ("payments.parked", "m-1")


def test_a_hop_of_a_long_delay_counts_no_attempt() -> None:
    bench = Bench(act=raising(Broken()))
    waiting = {"rmq-retry-wait": 5000, "rmq-retry-attempts": 1, "rmq-retry-queue": "payments"}
    settlement = bench.settle(delivery(headers=waiting))

    assert "run" not in bench.log
    assert bench.book.notes == []
    assert copy_in(settlement).headers["rmq-retry-attempts"] == 1
    assert copy_in(settlement).properties.expiration == "5000"


def test_the_third_of_three_attempts_is_the_last() -> None:
    bench = Bench(act=raising(Broken("no bank")))
    arrival = delivery(headers={"rmq-retry-attempts": 2, "rmq-retry-queue": "payments"})

    assert reason_in(bench.settle(arrival)) == "retries_exhausted"
    assert bench.book.notes[0].delivery.attempt == 3


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(0),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        RecursionError(),
        MemoryError(),
        StopIteration(),
        type("Own", (BaseException,), {})(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_exception_of_a_handler_is_a_failed_attempt(error: BaseException) -> None:
    bench = Bench(act=raising(error))
    settlement = bench.settle()

    assert copy_in(settlement).routing_key == "payments.retry.30s"
    assert bench.log == ["enter", "run", "leave"]
    assert bench.book.notes[0].error is error


def test_a_handler_that_recurses_without_end_is_a_failed_attempt() -> None:
    def endless(message: Delivery) -> object:
        return endless(message)

    assert copy_in(Bench(act=endless).settle()).routing_key == "payments.retry.30s"


def test_an_exception_with_a_failing_str_still_parks() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    bench = Bench(policy=RetryThenPark(attempts=1), act=raising(Mute()))

    assert reason_in(bench.settle()) == "retries_exhausted"


def test_an_exception_text_of_a_megabyte_still_parks_in_one_frame() -> None:
    bench = Bench(policy=RetryThenPark(attempts=1), act=raising(Broken("x\0\ud800" * 400_000)))
    copy = copy_in(bench.settle())

    assert len(copy.headers.raw) < 4000
    assert marshal_publish(
        1,
        encode_properties(copy.properties),
        copy.body,
        exchange=copy.exchange,
        routing_key=copy.routing_key,
        mandatory=True,
        frame_max=131_072,
    )


@pytest.mark.parametrize("broken", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_a_failing_retry_if_parks_the_message(broken: BaseException) -> None:
    def predicate(_: BaseException) -> bool:
        raise broken

    bench = Bench(policy=RetryThenPark(attempts=3, backoff=Fixed(30), retry_if=predicate), act=raising(Broken()))

    assert reason_in(bench.settle()) == "permanent"


@dataclass(frozen=True, slots=True)
class Odd(Backoff):
    """A back-off of the project's that returns what no broker takes."""

    value: float

    @property
    def spread(self) -> float:
        return 0.0

    def nominal(self, attempt: int) -> float:
        return 30.0

    def delay(self, attempt: int, chance: float) -> float:
        return self.value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0])
def test_an_invalid_back_off_loses_no_message(value: float) -> None:
    bench = Bench(policy=RetryThenPark(attempts=3, backoff=Odd(value)), act=raising(Broken()))

    assert reason_in(bench.settle()) == "permanent"


@pytest.mark.parametrize(
    ("error", "kind"), [(Park("frozen"), Kind.PARK), (Discard("old"), Kind.DISCARD), (Retry(after=30), Kind.RETRY)]
)
def test_an_overrule_decides(error: BaseException, kind: Kind) -> None:
    bench = Bench(policy=PLAIN, act=raising(error))
    bench.settle()

    assert [note.verdict.kind for note in bench.book.notes] == [kind]


class BankDown(Exception):
    """The bank did not answer."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BankDown("no answer"), Kind.RETRY),
        (Park("ask"), Kind.PARK),
        (Discard("sent already"), Kind.DISCARD),
        (Retry(after=7), Kind.RETRY),
        (KeyError("iban"), Kind.PARK),
    ],
)
def test_an_error_of_one_task_in_a_task_group_is_judged_as_itself(error: Exception, kind: Kind) -> None:
    """The group that asyncio makes of it is no BankDown, so the message was parked; Retry and Discard were no wish."""

    async def ask() -> None:
        raise error

    async def charge() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(asyncio.Event().wait())
            inner.create_task(ask())

    policy = RetryThenPark(attempts=3, backoff=Fixed(30), retry_on=BankDown)
    bench = Bench(policy, act=lambda _: asyncio.run(charge()))
    bench.settle()

    [note] = bench.book.notes
    assert (note.verdict.kind, note.error) == (kind, error)
    assert note.verdict.after == {BankDown: 30, Retry: 7}.get(type(error), 0)


def test_several_errors_of_a_task_group_stay_a_group() -> None:
    group = ExceptionGroup("two", [BankDown("no answer"), KeyError("iban")])
    bench = Bench(PLAIN, act=raising(group))
    bench.settle()

    assert bench.book.notes[0].error is group


def test_undecodable_body_raised_by_a_handler_parks_the_message() -> None:
    bench = Bench(act=raising(UndecodableBody("inner", size=3)))

    assert reason_in(bench.settle()) == "undecodable_body"


@pytest.mark.parametrize("to", [DIRECT, "amq.gen-Xa2"])
def test_the_return_value_of_a_handler_is_sent_to_reply_to(to: str) -> None:
    bench = Bench(act=lambda _: {"status": "ok"})
    settlement = bench.settle(delivery(reply_to=to, correlation_id="c-1"))

    assert settlement.instruction is Instruction.ACK
    assert settlement.answer is not None
    assert (settlement.answer.exchange, settlement.answer.routing_key) == ("", to)
    assert settlement.answer.mandatory is (to != DIRECT)
    assert settlement.answer.properties.correlation_id == "c-1"
    assert answer_in(settlement) == ({"status": "ok"}, "ok")


@pytest.mark.parametrize("to", ["payments", "payments.parked", "amq.rabbitmq.reply-to", "", "AMQ.GEN-1"])
def test_an_arbitrary_reply_to_queue_gets_no_answer(to: str) -> None:
    assert Bench(act=lambda _: 1).settle(delivery(reply_to=to)).answer is None


def test_reply_to_queues_that_the_project_allows_get_answers() -> None:
    bench = Bench(act=lambda _: 1, options={"reply_to": ("reply-*",)})

    assert bench.settle(delivery(reply_to="reply-queue")).answer is not None
    assert bench.settle(delivery(reply_to=DIRECT)).answer is None


def test_a_retried_message_is_not_answered_yet() -> None:
    settlement = Bench(act=raising(Broken())).settle(delivery(reply_to=DIRECT))

    assert settlement.answer is None


@pytest.mark.parametrize(("park", "routing_key"), [(False, None), (True, "payments.parked")])
def test_one_shot_answers_with_the_error(park: bool, routing_key: str | None) -> None:
    bench = Bench(policy=OneShot(park=park), act=raising(Broken("no rate")))
    settlement = bench.settle(delivery(reply_to=DIRECT))

    assert answer_in(settlement) == ({"error": {"type": "Broken", "message": "no rate"}}, "error")
    assert settlement.instruction is Instruction.ACK
    assert (settlement.copy and settlement.copy.routing_key) == routing_key


def test_one_shot_answers_an_undecodable_body_with_an_error() -> None:
    settlement = Bench(policy=OneShot()).settle(delivery(body=b"{", reply_to=DIRECT))

    assert answer_in(settlement)[1] == "error"
    assert reason_in(settlement) == "undecodable_body"


class Exploding(Raw):
    def encode(self, data: object) -> bytes:
        raise KeyError("schema")


@pytest.mark.parametrize("codec", [Json(), Raw(), Exploding()], ids=["json", "raw", "exploding"])
@pytest.mark.parametrize("policy", [OneShot(), PLAIN], ids=["one shot", "retry"])
def test_an_unencodable_answer_becomes_an_error_answer(policy: Policy, codec: Codec) -> None:
    bench = Bench(policy=policy, codec=codec, act=lambda _: object())
    settlement = bench.settle(delivery(reply_to=DIRECT))

    assert settlement.instruction is Instruction.ACK
    assert settlement.copy is None
    assert answer_in(settlement)[1] == "error"


class Unable(Republish):
    """A carrier that can carry nothing."""

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        raise ValueError("no way")


class TooFar(Republish):
    """A carrier whose copies no broker takes."""

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return copied_to("k" * 256, delivery)


def copied_to(key: str, delivery: Delivery) -> Settlement:
    return Settlement(instruction=Instruction.ACK, copy=Message(body=delivery.body, routing_key=key))


@pytest.mark.parametrize(
    ("via", "detail"),
    [
        (Unable(), "It cannot be settled (ValueError: no way) after: Broken: x"),
        (
            TooFar(),
            f"It cannot be settled (ValueError: The name '{'k' * 60}'… takes 256 bytes; AMQP takes 255.) after: ",
        ),
    ],
)
def test_a_verdict_that_cannot_be_settled_parks_the_message_once(via: Republish, detail: str) -> None:
    policy = RetryThenPark(attempts=3, backoff=Fixed(30), via=via)
    bench = Bench(policy=policy, act=raising(Broken("x")), options={"check": check_writable})
    one = delivery(body=b'"\xc3\xa9"', message_id="m-1", headers={"own": b"\xff"})
    settlement = bench.settle(one)

    assert reason_in(settlement) == "unsettled"
    found = read_back(copy_in(settlement))
    assert (found.body, found.raw, found.stamp.attempts) == (one.body, one.raw, 1)
    assert found.detail.startswith(detail)
    assert bench.verdicts == [(Kind.PARK, Reason.UNSETTLED)]
    assert bench.log == ["enter", "run", "leave"]


@pytest.mark.parametrize("error", [OSError("the disk is full"), SystemExit(2)])
def test_a_failing_journal_does_not_change_the_settlement(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(book=Book(failing=error))

    assert bench.settle() is DONE
    assert bench.log == ["enter", "run", "leave"]
    assert caplog.messages == ["An attempt could not be recorded or announced; its message is settled anyway"]


def test_a_failing_reply_to_check_settles_without_an_answer() -> None:
    def refused(_address: str) -> None:
        raise OSError("the log is closed")

    bench = Bench(act=lambda _: "done", options={"refused": refused})

    assert bench.settle(delivery(reply_to="anothers")) is DONE
    assert bench.log == ["enter", "run", "leave"]


@pytest.mark.parametrize("headers", [{}, {"x": 1}])
def test_successes_are_not_noted_in_a_journal_without_them(headers: dict[str, object]) -> None:
    bench = Bench(book=Book(notes_acks=False))

    assert bench.settle(delivery(headers=headers)) is DONE
    assert bench.book.notes == []


def test_a_retried_message_shows_its_first_exchange_and_routing_key() -> None:
    seen: list[tuple[str, str, int]] = []
    story = Headers.of(
        {
            "rmq-retry-attempts": 1,
            "rmq-retry-exchange": "main",
            "rmq-retry-routing-key": "cash",
            "rmq-retry-queue": "payments",
        }
    )
    bench = Bench(act=lambda message: seen.append((message.exchange, message.routing_key, message.attempt)))
    bench.settle(delivery(headers=story))

    assert seen == [("main", "cash", 2)]


@pytest.mark.parametrize("match", [Match(), Match(type="charge")])
def test_an_auto_acked_message_is_never_parked(match: Match) -> None:
    made = Subscription(
        name="seen",
        run=raising(Park("no")),
        queue=Queue("payments"),
        policy=AutoAck(),
        park="p",
        match=match,
        ack="auto",
    )
    bench = Bench()
    pipeline = bench.pipeline(made)

    assert pipeline.attempt(delivery()) == DONE
    assert pipeline.attempt(delivery(body=b"no json")) == DONE
    assert [note.verdict.kind for note in bench.book.notes] == [Kind.DISCARD, Kind.DISCARD]


def test_attempts_of_an_unacked_message_continue_to_count() -> None:
    bench, arrival = Bench(policy=StopTheLine(backoff=Fixed(3)), act=raising(Broken())), delivery()
    pipeline = bench.pipeline()
    for _ in range(3):
        pipeline.attempt(arrival)

    assert [note.delivery.attempt for note in bench.book.notes] == [1, 2, 3]


@pytest.mark.parametrize(
    ("back", "number"),
    [
        (delivery(body=b"1", redelivered=True), 3),
        (delivery(body=b"2", redelivered=True), 1),
        (delivery(body=b"1"), 1),
    ],
    ids=["the same", "another", "a twin"],
)
def test_a_halted_message_redelivered_on_another_channel_keeps_its_count(back: Delivery, number: int) -> None:
    hours = count(1)
    bench = Bench(
        policy=StopTheLine(backoff=Fixed(3)),
        act=raising(Broken()),
        options={"clock": lambda: 3600.0 * next(hours)},
    )
    pipeline, arrival = bench.pipeline(), delivery(body=b"1")
    pipeline.attempt(arrival)
    pipeline.attempt(arrival)
    pipeline.attempt(back)

    assert bench.book.notes[-1].delivery.attempt == number


def test_a_halted_message_that_comes_again_in_its_wait_is_not_attempted_before_its_time() -> None:
    bench, arrival = Bench(policy=StopTheLine(backoff=Fixed(60)), act=raising(Broken())), delivery(body=b"1")
    pipeline = bench.pipeline()
    pipeline.attempt(arrival)
    kept = pipeline.attempt(delivery(body=b"1", redelivered=True))

    assert (kept.instruction, kept.copy, len(bench.book.notes)) == (Instruction.KEEP, None, 1)
    assert 30 < kept.hold <= 60


def test_an_equal_next_message_starts_its_own_attempts() -> None:
    errors: list[BaseException | None] = [Broken(), None, None, None]

    def act(_message: Delivery) -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    bench, first = Bench(policy=StopTheLine(backoff=Fixed(3)), act=act), delivery()
    pipeline = bench.pipeline()
    for arrival in (first, first, delivery(), delivery(redelivered=True)):
        pipeline.attempt(arrival)

    assert [note.delivery.attempt for note in bench.book.notes] == [1, 2, 1, 1]


def test_each_attempt_gets_the_data_unchanged() -> None:
    seen: list[object] = []

    def act(message: Delivery) -> None:
        seen.append(dict(message.data))
        message.data["amount"] = 0
        raise Broken

    bench, arrival = Bench(policy=StopTheLine(backoff=Fixed(3)), act=act), delivery(body=b'{"amount": 5}')
    pipeline = bench.pipeline()
    pipeline.attempt(arrival)
    pipeline.attempt(arrival)

    assert seen == [{"amount": 5}, {"amount": 5}]


def dropped(begin: Callable[[Delivery], object], **message: Any) -> bool:
    """Return True if nothing refers to a delivery any longer that was begun and then dropped by its consumer."""
    arrival = delivery(**message)
    begin(arrival)
    reference = weakref.ref(arrival)
    del arrival
    gc.collect()
    return reference() is None


def test_the_state_of_a_requeued_message_is_dropped() -> None:
    def fail(_: Delivery) -> None:
        raise Broken("no bank")

    def settle_unrecorded(arrival: Delivery) -> None:
        halted.attempt(arrival)
        bench.book.notes.clear()

    keyed = Subscription(
        name="post", run=fail, queue=Queue("accounts"), policy=PLAIN, park="parked", order_by=lambda _: "A"
    )
    bench = Bench(policy=StopTheLine(backoff=Fixed(60)), act=fail)
    waiting = bench.pipeline(keyed)
    halted = bench.pipeline()

    assert dropped(waiting.read_key, queue="accounts")
    assert dropped(waiting.read_key, queue="accounts", body=b"{")
    assert dropped(lambda one: waiting.after_outside_failure(one, Broken("the gate")), queue="accounts")
    assert dropped(settle_unrecorded)
