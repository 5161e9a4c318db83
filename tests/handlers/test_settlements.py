"""From verdict to settlement: what is parked keeps its content and says why, and nothing keeps it from being parked."""

import random
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import DeadLetter, Delivery, Fixed, Ladder, Message, Park, Republish, RetryThenPark, StopTheLine
from django_rmq_retry.handlers.settlement import next_hop
from django_rmq_retry.messages import (
    DONE,
    ErrorNote,
    Headers,
    Instruction,
    Properties,
    Reason,
    Settlement,
    Stamp,
    encode_properties,
)
from django_rmq_retry.messages.stamp import OURS, STAMPED
from django_rmq_retry.policies import ACK, Failure, Policy, Verdict, discard, halt, park, retry
from tests.handlers.factories import NOW, arrived, delivery, settled, subscription, unattempted
from tests.messages.exceptions import BankDown

CHARGE = subscription(RetryThenPark(attempts=5, backoff=Fixed(30)))
FRAME = 131_072 - 8 - 12
GAVE_UP = park(
    Reason.EXHAUSTED, "Gave up after 5 attempts: BankDown: timeout", ErrorNote(kind="BankDown", text="timeout")
)


def parked_copy(one: Delivery, verdict: Verdict = GAVE_UP) -> Message:
    settlement = settled(verdict, one, CHARGE)
    assert settlement.instruction is Instruction.ACK
    assert not settlement.ack_first
    assert settlement.copy is not None
    return settlement.copy


def failing(error: BaseException, policy: Policy, one: Delivery) -> Message:
    """The parked copy of a delivery whose handler raised this, by the policy's own judgement."""
    one = replace(one, attempt=10**6)
    verdict = policy.judge(Failure(delivery=one, error=error))
    copy = settled(verdict, one, subscription(policy)).copy
    assert copy is not None
    return copy


def ours(copy: Message) -> dict[str, object]:
    return {name: value for name, value in copy.headers.items() if name.startswith("rmq-retry-")}


class TestVerdicts:
    @pytest.mark.parametrize("verdict", [ACK, discard("Superseded")], ids=["ack", "discard"])
    def test_a_success_or_discard_is_only_acknowledged(self, verdict: Verdict) -> None:
        assert settled(verdict, delivery(), CHARGE) is DONE
        assert Settlement(instruction=Instruction.ACK) == DONE

    def test_a_halt_keeps_the_message_unacked(self) -> None:
        line = subscription(StopTheLine())

        assert settled(halt(7.5), delivery(), line) == Settlement(instruction=Instruction.KEEP, hold=7.5)

    def test_the_first_copy_records_exchange_and_routing_key(self) -> None:
        first = settled(retry(30), delivery(exchange="main", routing_key="pay.cash"), CHARGE).copy
        assert first is not None
        second = settled(retry(30), arrived(first, queue="payments"), CHARGE, now=NOW + 30_000).copy
        assert second is not None

        for copy in (first, second):
            assert copy.headers["rmq-retry-exchange"] == "main"
            assert copy.headers["rmq-retry-routing-key"] == "pay.cash"
            assert copy.headers["rmq-retry-queue"] == "payments"
            assert copy.headers["rmq-retry-since"] == NOW

    def test_a_stamp_of_another_queue_is_reset(self) -> None:
        before = Stamp(
            attempts=4, since=5, wait=60_000, exchange="main", routing_key="pay", queue="shop", summary="#4 old"
        )
        one = delivery(exchange="ledger", routing_key="post", headers=before.headers())
        copy = settled(retry(30, ErrorNote(kind="BankDown", text="")), one, CHARGE).copy

        assert copy is not None
        assert ours(copy) == {
            "rmq-retry-attempts": 1,
            "rmq-retry-since": NOW,
            "rmq-retry-exchange": "ledger",
            "rmq-retry-routing-key": "post",
            "rmq-retry-queue": "payments",
            "rmq-retry-summary": "#1 BankDown, waits 30 s",
        }
        assert next_hop(one, CHARGE) is None

    def test_a_message_with_names_that_are_not_utf_8_is_retried(self) -> None:
        one = delivery(exchange="\udcff", routing_key="a\udc80")
        copy = settled(retry(30), one, CHARGE).copy

        assert copy is not None
        assert copy.headers["rmq-retry-routing-key"] == b"a\x80"
        again = Stamp.read(copy.headers)
        assert (again.exchange, again.routing_key) == ("\udcff", "a\udc80")


class TestFirstFailure:
    @staticmethod
    def since(*deaths: tuple[str, str, int], **stamped: object) -> object:
        """Return the headers of the parked copy; each death is a queue, a reason and its age in seconds."""
        told = [
            {"count": 1, "queue": queue, "reason": reason, "time": datetime.fromtimestamp(NOW / 1000 - ago, UTC)}
            for queue, reason, ago in deaths
        ]
        return parked_copy(delivery(headers={"x-death": told, **stamped})).headers["rmq-retry-since"]

    def test_without_a_stamp_the_first_reject_dates_the_first_failure(self) -> None:
        waited = ("payments.wait", "expired", 5)

        assert self.since(waited, ("payments", "rejected", 6)) == NOW - 6_000
        assert self.since(("payments", "rejected", 2), waited, ("payments", "rejected", 6)) == NOW - 6_000
        assert self.since(waited, ("ledger", "rejected", 6), ("payments", "expired", 6)) == NOW

    def test_a_stamp_of_the_first_failure_wins_over_x_death(self) -> None:
        stamped = {"rmq-retry-since": NOW - 9_000, "rmq-retry-queue": "payments"}

        assert self.since(("payments", "rejected", 6), **stamped) == NOW - 9_000

    @pytest.mark.parametrize("ago", [-1, -(10**9), 366 * 86_400, 1_700_000_000])
    def test_an_impossible_time_in_x_death_is_ignored(self, ago: int) -> None:
        assert self.since(("payments", "rejected", ago)) == NOW
        assert self.since(("payments", "rejected", ago), ("payments", "rejected", 6)) == NOW - 6_000


class TestWaitingOn:
    def test_a_fresh_message_does_not_wait(self) -> None:
        assert next_hop(delivery(), CHARGE) is None
        assert next_hop(delivery(headers={"rmq-retry-attempts": 1}), CHARGE) is None

    def test_a_message_with_remaining_wait_takes_another_hop(self) -> None:
        settlement = next_hop(delivery(headers={"rmq-retry-wait": 45_000}), CHARGE)

        assert settlement is not None
        assert settlement.copy is not None
        assert settlement.copy.routing_key == "payments.retry.30s"
        assert settlement.copy.headers["rmq-retry-wait"] == 15_000

    def test_a_forged_huge_wait_is_ignored(self) -> None:
        assert next_hop(delivery(headers={"rmq-retry-wait": 2**62}), CHARGE) is None


class TestParking:
    def test_a_parked_copy_has_reason_and_origin(self) -> None:
        one = delivery(exchange="main", routing_key="pay.cash", attempt=5, headers={"own": 1}, message_id="m-1")
        copy = parked_copy(one)

        assert (copy.exchange, copy.routing_key, copy.mandatory) == ("", "payments.parked", True)
        assert copy.body == b"{}"
        assert copy.properties.message_id == "m-1"
        assert dict(copy.headers) == {
            "own": 1,
            "rmq-retry-attempts": 5,
            "rmq-retry-since": NOW,
            "rmq-retry-exchange": "main",
            "rmq-retry-routing-key": "pay.cash",
            "rmq-retry-queue": "payments",
            "rmq-retry-summary": "#5 BankDown: timeout",
            "rmq-retry-reason": "retries_exhausted",
            "rmq-retry-detail": "Gave up after 5 attempts: BankDown: timeout",
            "rmq-retry-error": "BankDown",
            "rmq-retry-message": "timeout",
            "rmq-retry-handler": "payments.handlers.charge",
            "rmq-retry-parked-at": NOW,
        }

    def test_the_summary_lists_every_attempt(self) -> None:
        one = delivery()
        for attempt in range(1, 5):
            one = replace(one, attempt=attempt)
            copy = settled(retry(30, GAVE_UP.error), one, CHARGE, now=NOW + attempt).copy
            assert copy is not None
            one = arrived(copy, queue="payments")
        one = replace(one, attempt=5)

        assert parked_copy(one).headers["rmq-retry-summary"] == (
            "#1 BankDown: timeout, waits 30 s\n"
            "#2 BankDown: timeout, waits 30 s\n"
            "#3 BankDown: timeout, waits 30 s\n"
            "#4 BankDown: timeout, waits 30 s\n"
            "#5 BankDown: timeout"
        )

    @pytest.mark.parametrize(("wait", "said"), [(1234.5678, ", waits 1234.6 s"), (0.0, "")])
    def test_the_summary_shows_each_wait_with_one_decimal(self, wait: float, said: str) -> None:
        copy = settled(retry(wait, GAVE_UP.error), delivery(), CHARGE).copy

        assert copy is not None
        assert copy.headers["rmq-retry-summary"] == f"#1 BankDown: timeout{said}"

    def test_an_uncounted_retry_writes_no_attempt_and_no_summary(self) -> None:
        verdict = replace(retry(30, GAVE_UP.error), counted=False)
        copy = settled(verdict, delivery(), CHARGE).copy

        assert copy is not None
        assert "rmq-retry-summary" not in copy.headers
        assert "rmq-retry-attempts" not in copy.headers

    def test_parking_again_replaces_the_old_reason(self) -> None:
        first = parked_copy(delivery())
        again = parked_copy(arrived(first, queue="payments"), park(Reason.UNHANDLED, "No handler"))

        assert again.headers["rmq-retry-reason"] == "no_handler"
        assert "rmq-retry-error" not in again.headers
        assert list(again.headers).count("rmq-retry-detail") == 1

    def test_a_parked_copy_has_no_broker_headers_or_properties(self) -> None:
        headers: dict[str, object] = {
            "x-death": [{"queue": "payments", "reason": "rejected", "count": 1}],
            "CC": ["audit"],
            "own": 1,
        }
        copy = parked_copy(delivery(headers=headers, user_id="eve", expiration="5", delivery_mode=1))

        assert {name for name in copy.headers if name not in OURS} == {"own"}
        assert (copy.properties.user_id, copy.properties.expiration, copy.properties.delivery_mode) == (None, None, 2)

    def test_a_parked_copy_has_no_remaining_wait(self) -> None:
        assert "rmq-retry-wait" not in parked_copy(delivery(headers={"rmq-retry-wait": 60_000})).headers

    def test_a_message_without_handler_is_parked_in_its_queues_parked_queue(self) -> None:
        settlement = unattempted(park(Reason.UNHANDLED, "No handler takes it."), delivery(), park=CHARGE.park)

        assert settlement.copy is not None
        assert settlement.copy.routing_key == "payments.parked"
        assert settlement.copy.headers["rmq-retry-detail"] == "No handler takes it."
        assert "rmq-retry-handler" not in settlement.copy.headers

    @pytest.mark.parametrize(
        ("headers", "attempts"),
        [
            ({}, None),
            ({"rmq-retry-attempts": 2, "rmq-retry-queue": "payments"}, 2),
            ({"rmq-retry-attempts": 2, "rmq-retry-queue": "payouts"}, None),
            ({"x-death": [{"queue": "payments", "reason": "rejected", "count": 3}]}, 3),
        ],
        ids=["new", "tried before", "tried elsewhere", "counted by the broker"],
    )
    def test_parking_without_a_handler_counts_no_attempt(
        self, headers: dict[str, object], attempts: int | None
    ) -> None:
        settlement = unattempted(park(Reason.UNHANDLED, "None."), delivery(headers=headers), park=CHARGE.park)

        assert settlement.copy is not None
        assert settlement.copy.headers.get("rmq-retry-attempts") == attempts
        assert "rmq-retry-summary" not in settlement.copy.headers

    def test_parking_with_an_unreadable_count_counts_no_attempt(self) -> None:
        unreadable = delivery(raw=b"\x20")
        settlement = unattempted(park(Reason.UNDECODABLE_HEADERS, "cut off"), unreadable, park=CHARGE.park)

        assert settlement.copy is not None
        assert "rmq-retry-attempts" not in settlement.copy.headers

    def test_the_parked_queue_is_never_read_from_a_header(self) -> None:
        forged: dict[str, object] = {
            "rmq-retry-queue": "victim",
            "rmq-retry-exchange": "victims",
            "rmq-retry-routing-key": "k",
        }
        copy = parked_copy(delivery(exchange="main", routing_key="pay", headers=forged))

        assert copy.routing_key == "payments.parked"
        assert copy.headers["rmq-retry-queue"] == "payments"
        assert copy.headers["rmq-retry-exchange"] == "main"


class TestHostileContent:
    def test_an_undecodable_retry_header_is_replaced(self) -> None:
        forged = Headers(b"\x12rmq-retry-attempts" + b"T\xff\xff\xff\xff\xff\xff\xff\xff")
        copy = parked_copy(delivery(headers=forged), park(Reason.UNDECODABLE_HEADERS, "the year 9999"))

        copy.headers.check()
        assert copy.headers["rmq-retry-attempts"] == 1

    def test_nul_and_lone_surrogates_are_parked_readably(self) -> None:
        copy = failing(BankDown("a\0b\ud800c"), RetryThenPark(), delivery())

        assert copy.headers["rmq-retry-message"] == "a\\x00b\\ud800c"
        assert copy.headers["rmq-retry-detail"] == "Gave up after 1000000 attempts: BankDown: a\\x00b\\ud800c"

    @given(
        text=st.text(st.characters(), max_size=3000),
        queue_key=st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
        summary=st.text(st.characters(exclude_categories=["Cs"]), max_size=3000),
        via_handler=st.booleans(),
    )
    def test_the_retry_headers_stay_under_four_kilobytes(
        self, text: str, queue_key: str, summary: str, via_handler: bool
    ) -> None:
        error: BaseException = Park(text) if via_handler else type("E" * 400, (Exception,), {})(text)
        headers = {"rmq-retry-summary": summary, "rmq-retry-queue": "payments"}
        one = delivery(exchange="e" * 255, routing_key=queue_key, headers=headers, attempt=5)
        verdict = RetryThenPark().judge(Failure(delivery=one, error=error))
        copy = settled(verdict, one, subscription(RetryThenPark(), name="h" * 5000)).copy

        assert copy is not None
        assert len(Headers.of(ours(copy)).raw) < 4096

    @given(st.binary(max_size=300), st.sampled_from([GAVE_UP, park(Reason.UNDECODABLE_HEADERS, "x")]))
    def test_any_property_bytes_can_be_parked(self, raw: bytes, verdict: Verdict) -> None:
        copy = settled(verdict, delivery(raw=raw), CHARGE).copy

        assert copy is not None
        encode_properties(copy.properties)


class TestRoomInTheFrame:
    """The broker closes the connection of a client that publishes properties larger than one frame."""

    def big(self, size: int, *, packs: bool = True) -> Delivery:
        value = "x" * size if packs else random.Random(1).randbytes(size)
        return delivery(headers={"baggage": value}, message_id="m-1")

    def test_a_copy_that_fits_into_a_frame_is_sent_unpacked(self) -> None:
        copy = settled(retry(30), self.big(100_000), CHARGE).copy

        assert copy is not None
        assert copy.routing_key == "payments.retry.30s"
        assert len(encode_properties(copy.properties)) < FRAME

    @pytest.mark.parametrize("via", [Ladder(), Republish()])
    def test_a_message_without_room_to_count_its_attempts_is_parked(self, via: Any) -> None:
        charge = subscription(RetryThenPark(via=via))
        one = self.big(130_000)
        copy = settled(retry(30, ErrorNote(kind="BankDown", text="timeout")), one, charge).copy

        assert copy is not None
        assert copy.routing_key == "payments.parked"
        assert len(encode_properties(copy.properties)) < FRAME
        assert str(copy.headers["rmq-retry-detail"]) == (
            f"Its headers of {len(one.raw)} bytes leave no room to count attempts: BankDown: timeout"
        )

    def test_a_large_message_is_parked_with_compressed_properties(self) -> None:
        one = self.big(130_000)
        packed = parked_copy(one).headers["rmq-retry-properties-zlib"]

        assert isinstance(packed, bytes)
        assert zlib.decompress(packed) == one.raw

    def test_properties_that_do_not_compress_are_parked_before_the_body(self) -> None:
        one = self.big(130_000, packs=False)
        copy = parked_copy(one)
        leading = copy.headers["rmq-retry-properties-leading"]

        assert leading == len(one.raw)
        assert copy.body == one.raw + one.body
        assert len(encode_properties(copy.properties)) < FRAME

    def test_a_dead_letter_loop_needs_no_room_for_headers(self) -> None:
        loop = subscription(RetryThenPark(via=DeadLetter(exchange="retry", queue="wait", after=30)))

        assert settled(retry(30), self.big(130_000), loop) == Settlement(instruction=Instruction.REJECT)


def test_every_stamp_header_is_removed_before_a_new_stamp() -> None:
    full = Stamp(1, 1, 1, exchange="e", routing_key="k", queue="q", summary="s", traceparent="t", unacked=1)

    assert set(full.headers()) == STAMPED
    assert STAMPED < OURS


def test_a_copy_without_senders_headers_has_retry_headers_only() -> None:
    copy = parked_copy(delivery(raw=encode_properties(Properties())))

    assert set(copy.headers) <= OURS
