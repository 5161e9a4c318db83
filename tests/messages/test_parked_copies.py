"""Messages of a parked queue, read back; most of them are forged or malformed."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import DeadLetter, Delivery, Fixed, Ladder, Queue, RetryThenPark
from django_rmq_retry.handlers import work_queues_of
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.messages import ErrorNote, Headers, Properties, Reason, decode_properties, encode_properties
from django_rmq_retry.messages.deaths import deaths
from django_rmq_retry.messages.header_names import BROKERS_OWN, KEPT, TICKET
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.messages.parked_copy import ROOM_BYTES, By, Original, ParkedCopy, read_parked, requeued, set_aside
from django_rmq_retry.messages.stamp import ADDED
from django_rmq_retry.policies import park
from tests.handlers.factories import NOW, arrived, delivery, subscription
from tests.messages.parked_copies import parked_copy

HOMES = {"payments.parked": "payments", "payments.quarantine": "payments", "payments.retry.30s": "payments"}
ERROR = ErrorNote(kind="BankDown", text="timeout")
GAVE_UP = park(Reason.EXHAUSTED, "after 5 attempts", ERROR)
ABSURD = b"T" + b"\xff" * 8
"""A timestamp of AMQP that no calendar has."""
FOREIGN = Headers(b"\x01d" + b"d@\x0e\x00\x00\x00\x00\x00\x00" + b"\x04when" + ABSURD)


def by_us(one: Delivery, *, nonce: int = 0) -> Delivery:
    """The copy that our consumer parks, as it is delivered from the parked queue."""
    return arrived(parked_copy(GAVE_UP, one, nonce=nonce), queue="payments.parked")


def read(headers: Mapping[str, Any] | Headers | None = None, **told: Any) -> ParkedCopy:
    return read_parked(delivery(**{"queue": "payments.parked", **told}, headers=headers), HOMES)


def died(queue: str = "payments", reason: str = "delivery_limit", **told: Any) -> dict[str, Any]:
    """An entry of x-death."""
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    known = {"queue": queue, "reason": reason, "count": 1, "exchange": "shop", "routing-keys": ["pay.card"], "time": at}
    return {**known, **told}


class TestParkedByAConsumer:
    def test_a_parked_copy_gives_the_original_message_and_the_reason(self) -> None:
        sent = Properties(message_id="m-1", type="charge", correlation_id="c", headers=Headers.of({"tenant": "acme"}))
        one = delivery(
            exchange="shop", routing_key="pay.card", body=b'{"n": 1}', raw=encode_properties(sent), attempt=5
        )
        found = read_parked(by_us(one), HOMES)

        assert decode_properties(found.raw) == replace(sent, delivery_mode=2)
        assert (found.body, found.queue, found.exchange, found.routing_key) == (
            b'{"n": 1}',
            "payments",
            "shop",
            "pay.card",
        )
        assert (found.by, found.reason, found.detail) == (By.CONSUMER, "retries_exhausted", "after 5 attempts")
        assert (found.error, found.error_text, found.handler) == ("BankDown", "timeout", "payments.handlers.charge")
        assert (found.stamp.attempts, found.stamp.summary) == (5, "#5 BankDown: timeout")
        assert (found.parked_at, found.parked_in) == (NOW, "payments.parked")

    def test_undecodable_headers_are_restored_byte_for_byte(self) -> None:
        raw = encode_properties(Properties(message_id="m-1", headers=FOREIGN))

        assert read_parked(by_us(delivery(raw=raw)), HOMES).raw == encode_properties(
            Properties(message_id="m-1", headers=FOREIGN, delivery_mode=2)
        )

    @pytest.mark.parametrize(
        "raw",
        [
            b"\x20\x00\x00\x00\x00\x05\x01aZ\x00\x00",
            encode_properties(Properties(headers=Headers.of({"big": "a" * (ROOM_BYTES + 1)}))),
            encode_properties(Properties(headers=Headers.of({"big": bytes(range(256)) * 473}))),
        ],
        ids=["of an unknown type", "large", "large and not to be packed"],
    )
    def test_properties_kept_as_bytes_are_restored_unchanged(self, raw: bytes) -> None:
        found = read_parked(by_us(delivery(raw=raw, body=b"body")), HOMES)

        assert (found.raw, found.body, found.by) == (raw, b"body", By.CONSUMER)

    def test_the_ticket_is_reported_and_left_out_of_the_properties(self) -> None:
        found = read_parked(by_us(delivery(headers={TICKET: "7.2:x", "tenant": "acme"})), HOMES)

        assert (found.ticket, dict(decode_properties(found.raw).headers)) == ("7.2:x", {"tenant": "acme"})

    def test_earlier_broker_headers_stay_in_the_record_and_decide_nothing(self) -> None:
        theirs = Headers.of({"x-death": [died(reason="rejected", count=4)], "x-delivery-count": 2, "CC": ["audit"]})
        one = delivery(headers=Headers(Headers.of({"tenant": "acme"}).raw + theirs.raw), message_id="m")
        copy = by_us(one)
        found = read_parked(copy, HOMES)

        assert BROKERS_OWN.isdisjoint(copy.headers)
        assert (found.by, found.reason, found.queue) == (By.CONSUMER, "retries_exhausted", "payments")
        assert found.properties.headers.raw == one.headers.raw
        assert decode_properties(found.raw).headers.raw == one.headers.raw
        assert deaths(found.properties.headers)[0].count == 4

    def test_counts_of_the_parked_queue_are_left_out_of_the_record(self) -> None:
        copy = by_us(delivery(headers={"x-delivery-count": 7}, message_id="m"))
        again = delivery(queue="payments.parked", headers=copy.headers.replacing(put={"x-delivery-count": 1}))

        assert read_parked(again, HOMES).properties.headers == Headers.of({"x-delivery-count": 7})

    def test_a_requeued_copy_has_no_broker_headers(self) -> None:
        found = read_parked(by_us(delivery(headers={"x-death": [died()], "tenant": "acme"})), HOMES)
        original = Original(body=b"", raw=found.raw, exchange="", routing_key="payments")
        copy = requeued(original, queue="payments", ticket="7.2:x")

        assert {name for name in copy.headers if not name.startswith("rmq-retry-")} == {"tenant"}
        assert "rmq-retry-broker" not in copy.headers

    def test_a_message_without_room_for_broker_headers_is_still_parked(self) -> None:
        big = {"big": "a" * (ROOM_BYTES - 1500), "x-death": [died(), {"padding": "b" * 1000}]}
        copy = by_us(delivery(headers=big))

        assert "rmq-retry-broker" not in copy.headers
        assert "x-death" not in read_parked(copy, HOMES).properties.headers
        assert len(str(read_parked(copy, HOMES).properties.headers["big"])) == ROOM_BYTES - 1500

    @given(theirs=st.lists(st.tuples(st.sampled_from(sorted(BROKERS_OWN)), st.binary(max_size=20)), min_size=1))
    def test_broker_headers_are_restored_byte_for_byte(self, theirs: list[tuple[str, bytes]]) -> None:
        raw = b"".join(Headers.of({name: value}).raw for name, value in theirs)

        assert read_parked(by_us(delivery(headers=Headers(raw))), HOMES).properties.headers.raw == raw

    @pytest.mark.parametrize("value", [Headers.of({"x-death": [died()]}).raw, b"\xff", "text", 3])
    def test_a_sender_cannot_forge_broker_headers(self, value: object) -> None:
        one = delivery(headers={"rmq-retry-broker": value, "tenant": "acme"})

        assert dict(read_parked(by_us(one), HOMES).properties.headers) == {"tenant": "acme"}

    @pytest.mark.parametrize(
        "value",
        [Headers.of({"x-death": [died()], "token": "x"}).raw, Headers.of({"x-death": 1}).raw[:-1], b"\x01aZ", b"", "x"],
    )
    def test_an_invalid_broker_header_in_the_parked_queue_is_ignored(self, value: object) -> None:
        found = read({"rmq-retry-reason": "x", "rmq-retry-broker": value, "tenant": "acme"}, message_id="m")

        assert (found.by, dict(found.properties.headers)) == (By.CONSUMER, {"tenant": "acme"})

    def test_x_death_wins_over_a_forged_header_when_the_broker_parked(self) -> None:
        forged = Headers.of({"x-death": [died("elsewhere", count=9)]}).raw
        found = read({"rmq-retry-reason": "x", "rmq-retry-broker": forged, "x-death": [died()]})

        assert (found.by, [one.queue for one in deaths(found.properties.headers)]) == (By.BROKER, ["payments"])

    @given(told=st.binary(max_size=60))
    def test_any_bytes_in_the_broker_header_are_read(self, told: bytes) -> None:
        found = read({"rmq-retry-reason": "x", "rmq-retry-broker": told, "tenant": "acme"})

        assert found.properties.headers["tenant"] == "acme"
        assert BROKERS_OWN.issuperset(set(found.properties.headers) - {"tenant"})

    @pytest.mark.parametrize("name", sorted(KEPT))
    @pytest.mark.parametrize("value", [b"\0\0", 3, 10**12, -1, True, "text", zlib.compress(b"\0\0")])
    def test_a_sender_cannot_forge_packed_properties_or_cut_its_body(self, name: str, value: object) -> None:
        sent = Properties(message_id="m", headers=Headers.of({name: value, "tenant": "acme"}))
        found = read_parked(by_us(delivery(raw=encode_properties(sent), body=b"12345")), HOMES)

        assert (found.body, found.properties.message_id) == (b"12345", "m")
        assert dict(decode_properties(found.raw).headers) == {"tenant": "acme"}


class TestParkedByTheBroker:
    @pytest.mark.parametrize(
        ("said", "reason"),
        [
            ("delivery_limit", "delivery_limit"),
            ("expired", "expired"),
            ("maxlen", "queue_overflow"),
            ("rejected", "rejected"),
            ("something new", "rejected"),
        ],
    )
    def test_the_newest_death_gives_reason_queue_and_time(self, said: str, reason: str) -> None:
        found = read({"x-death": [died(reason=said)]}, message_id="m")

        assert (found.by, found.reason, found.queue) == (By.BROKER, reason, "payments")
        assert (found.exchange, found.routing_key) == ("shop", "pay.card")
        assert found.parked_at == int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) * 1000 + 999

    def test_a_death_in_a_waiting_queue_belongs_to_its_work_queue(self) -> None:
        assert read({"x-death": [died("payments.retry.30s"), died("payments", "rejected")]}).queue == "payments"

    @pytest.mark.parametrize(
        ("story", "waiting"),
        [
            ([died("payments.retry.30s", "expired"), died("payments", "rejected")], {"payments.retry.30s"}),
            ([died("payments.retry.30s", "expired")], {"payments.retry.30s"}),
            ([died("payments.wait", "expired", count=5), died("payments", "rejected", count=5)], set()),
        ],
        ids=["a loop", "a copy that waited", "a loop of before"],
    )
    def test_a_death_that_returned_the_message_to_its_work_queue_is_not_why_it_is_here(
        self, story: list[dict[str, Any]], waiting: set[str]
    ) -> None:
        copied = delivery(queue="payments.parked", headers={"x-death": story})
        found = read_parked(copied, HOMES, waiting)

        assert (found.by, found.reason, found.queue, found.parked_at) == (By.OTHER, "foreign", "payments", 0)
        assert (found.exchange, found.routing_key) == ("shop", "pay.card")

    def test_the_reason_of_the_service_that_copied_it_is_kept(self) -> None:
        headers = {"x-death": [died("payments.retry.30s")], "rmq-retry-reason": "bank closed", **dict.fromkeys(KEPT, 3)}
        copied = delivery(queue="payments.parked", headers=headers, body=b"12345")
        found = read_parked(copied, HOMES, {"payments.retry.30s"})

        assert (found.by, found.reason, found.body) == (By.OTHER, "bank closed", b"12345")

    @pytest.mark.parametrize("newest", ["payments", "payments.quarantine", "payments.before"])
    def test_a_death_after_a_retry_is_why_it_is_here(self, newest: str) -> None:
        story = [died(newest, "expired"), died("payments.retry.30s", "expired")]
        found = read_parked(
            delivery(queue="payments.parked", headers={"x-death": story}), HOMES, {"payments.retry.30s"}
        )

        assert (found.by, found.reason) == (By.BROKER, "expired")

    def test_a_copy_in_a_shared_parked_queue_goes_back_to_the_queue_that_rejected_it(self) -> None:
        story = [died("wait", "expired"), died("payments", "rejected")]
        found = read_parked(delivery(queue="parked", headers={"x-death": story}), {}, {"wait"})

        assert (found.reason, found.queue) == ("foreign", "payments")

    def test_exchange_and_routing_key_are_read_from_the_queues_stamp(self) -> None:
        stamp = {"rmq-retry-queue": "payments", "rmq-retry-exchange": "first", "rmq-retry-routing-key": "pay.first"}
        found = read({**stamp, "x-death": [died("payments.quarantine")]})

        assert (found.queue, found.exchange, found.routing_key) == ("payments", "first", "pay.first")

    def test_a_sender_cannot_forge_the_queue_to_requeue_to(self) -> None:
        forged = {"rmq-retry-queue": "payouts", "rmq-retry-exchange": "x", "rmq-retry-reason": "no_handler"}
        found = read({**forged, "x-death": [died()]})

        assert (found.queue, found.exchange, found.by, found.reason) == (
            "payments",
            "shop",
            By.BROKER,
            "delivery_limit",
        )

    @pytest.mark.parametrize(("name", "value"), [("properties", b"\0\0"), ("properties-leading", 3)])
    def test_packed_properties_in_a_message_the_broker_parked_are_ignored(self, name: str, value: object) -> None:
        found = read({f"rmq-retry-{name}": value, "rmq-retry-reason": "x", "x-death": [died()]}, body=b"12345")

        assert (found.body, f"rmq-retry-{name}" in decode_properties(found.raw).headers) == (b"12345", True)

    def test_a_group_in_a_message_the_broker_parked_is_ignored(self) -> None:
        found = read({"rmq-retry-fingerprint": "f" * 40, "rmq-retry-culprit": "a:b", "x-death": [died()]})

        assert (found.fingerprint, found.culprit) == ("", "")

    def test_after_several_deaths_the_time_of_the_last_is_unknown(self) -> None:
        assert read({"x-death": [died(count=2)]}).parked_at == 0

    @pytest.mark.parametrize(
        "forged",
        [
            "text",
            1,
            [1, 2],
            [{"queue": 1}],
            [died(count=-1)],
            [died(count="9")],
            [{**died(), "queue": None}],
            {"a": 1},
            [],
        ],
    )
    def test_a_forged_x_death_is_ignored(self, forged: object) -> None:
        found = read({"x-death": forged})

        assert (found.by, found.reason, found.queue) == (By.OTHER, "foreign", "payments")


class TestParkedByOthers:
    def test_a_plain_message_in_a_parked_queue_belongs_to_its_work_queue(self) -> None:
        found = read({"a": 1}, body=b"x", message_id="m", exchange="others", routing_key="k")

        assert (found.by, found.reason, found.queue) == (By.OTHER, "foreign", "payments")
        assert (found.exchange, found.routing_key, found.parked_at) == ("others", "k", 0)

    def test_an_unknown_parked_queue_leaves_the_work_queue_empty(self) -> None:
        assert read(queue="theirs.failed").queue == ""

    @pytest.mark.parametrize(
        "value",
        [1, -1, 2**63 - 1, True, 1.5, Decimal("1.5"), b"\xff\x00", None, [], {}, ["a"], {"a": {"b": 1}},
         datetime(2026, 1, 1, tzinfo=UTC)],
    )  # fmt: skip
    @pytest.mark.parametrize("name", sorted(ADDED | {TICKET}))
    def test_retry_headers_of_a_wrong_type_are_tolerated(self, name: str, value: object) -> None:
        found = read({name: value}, body=b"", message_id="m")

        assert (found.properties.message_id, found.parked_in) == ("m", "payments.parked")
        assert all(isinstance(getattr(found, part), str) for part in ("reason", "detail", "error", "ticket", "handler"))
        assert type(found.parked_at) is int

    @pytest.mark.parametrize("name", ["rmq-retry-queue", "rmq-retry-reason", "rmq-retry-parked-at", "rmq-retry-since"])
    def test_an_undecodable_retry_header_leaves_the_rest_readable(self, name: str) -> None:
        table = Headers(bytes((len(name),)) + name.encode() + ABSURD)
        found = read(table, body=b"x", message_id="m-1")

        assert (found.reason, found.by, found.queue) == ("undecodable_headers", By.OTHER, "payments")
        assert (found.properties.message_id, found.body) == ("m-1", b"x")

    @pytest.mark.parametrize("raw", [b"", b"\x20", b"\xff\xff", b"\x20\x00\x00\x00\x00\x09\x01a", b"\0\0rest"])
    def test_invalid_properties_are_kept_as_bytes(self, raw: bytes) -> None:
        found = read_parked(delivery(queue="payments.parked", raw=raw, body=b"x"), HOMES)

        assert (found.raw, found.body, found.reason) == (raw, b"x", "undecodable_headers")

    def test_a_compression_bomb_is_not_decompressed(self) -> None:
        bomb = zlib.compress(bytes(50_000_000), 9)
        found = read({"rmq-retry-reason": "x", "rmq-retry-properties-zlib": bomb}, body=b"x")

        assert len(found.raw) < ROOM_BYTES
        assert decode_properties(found.raw).headers["rmq-retry-properties-zlib"] == bomb

    @pytest.mark.parametrize("packed", [b"", b"no zlib", zlib.compress(b"\0\0")[:-3]])
    def test_invalid_packed_properties_are_ignored(self, packed: bytes) -> None:
        found = read({"rmq-retry-reason": "x", "rmq-retry-properties-zlib": packed}, message_id="m")

        assert found.properties.message_id == "m"

    @given(raw=st.binary(max_size=200), body=st.binary(max_size=50), queue=st.text(max_size=10))
    def test_any_delivery_in_a_parked_queue_is_read(self, raw: bytes, body: bytes, queue: str) -> None:
        found = read_parked(Delivery(queue=queue, body=body, raw=raw), HOMES)

        assert (found.body, found.raw) == (body, found.raw)
        assert len(found.copy_digest) == 64


class TestIdentity:
    def test_a_message_that_fails_again_keeps_its_identity(self) -> None:
        one = delivery(message_id="m", body=b"x")
        later = delivery(message_id="m", body=b"x", headers={"rmq-retry-attempts": 3, "more": 1})

        assert read_parked(by_us(one), HOMES).identity == read_parked(by_us(later), HOMES).identity

    @pytest.mark.parametrize("other", [{"message_id": "n"}, {"body": b"y"}, {"queue": "payments.parked2"}])
    def test_another_id_body_or_queue_is_another_identity(self, other: dict[str, Any]) -> None:
        known: dict[str, Any] = {"message_id": "m", "body": b"x"}

        assert read(**known).identity != read(**{**known, **other}).identity

    def test_an_identity_separates_queue_id_and_body(self) -> None:
        assert (
            len({message_identity("a", "bc", b""), message_identity("ab", "c", b""), message_identity("a", "b", b"c")})
            == 3
        )

    @pytest.mark.parametrize("named", [None, ""])
    def test_without_an_id_each_copy_has_its_own_identity(self, named: str | None) -> None:
        one, other = read({"n": 1}, message_id=named), read({"n": 2}, message_id=named)

        assert one.identity == f"copy:{one.copy_digest}"
        assert one.identity != other.identity

    def test_two_messages_without_id_parked_at_one_time_stay_two(self) -> None:
        copies = [by_us(delivery(body=b"x"), nonce=nonce) for nonce in (1, 2)]
        one, other = (read_parked(copy, HOMES) for copy in copies)

        assert one.identity != other.identity
        assert one.raw == other.raw

    def test_the_copies_of_a_message_with_an_id_need_no_nonce(self) -> None:
        assert "rmq-retry-nonce" not in by_us(delivery(message_id="m"), nonce=1).headers

    def test_an_id_that_is_not_utf8_gives_an_identity(self) -> None:
        one, other = (read(message_id=text) for text in ("\udcff", "\udcfe"))

        assert one.identity.startswith("message:")
        assert one.identity != other.identity

    def test_broker_counts_do_not_change_the_copy_hash(self) -> None:
        first = read({"a": 1, "x-delivery-count": 0}, message_id="m")
        again = read({"x-delivery-count": 4, "a": 1, "x-acquired-count": 9}, message_id="m")

        assert first.copy_digest == read({"a": 1}, message_id="m").copy_digest == again.copy_digest

    def test_broker_counts_beside_an_undecodable_header_do_not_change_it(self) -> None:
        broken = b"\x0frmq-retry-queue" + ABSURD
        counted = Headers(broken).replacing(put={"x-delivery-count": 2})

        assert read(Headers(broken)).copy_digest == read(counted).copy_digest


class TestHomes:
    def test_each_queue_of_a_handler_belongs_to_its_work_queue(self) -> None:
        ladder = RetryThenPark(attempts=2, backoff=Fixed(30), via=Ladder())
        loop = RetryThenPark(attempts=2, via=DeadLetter(exchange="retry", queue="main.retry", after=30))
        found = homes_of(
            work_queues_of([subscription(ladder), subscription(loop, queue=Queue("main"), name="other", park="shared")])
        )

        assert found == {
            "payments.parked": "payments",
            "payments.quarantine": "payments",
            "payments.retry.30s": "payments",
            "main.retry": "main",
            "shared": "main",
        }

    def test_a_parked_queue_shared_by_two_work_queues_belongs_to_neither(self) -> None:
        two = [subscription(RetryThenPark(), queue=name, name=name, park="shared") for name in ("one", "two")]

        assert "shared" not in homes_of(work_queues_of(two))


class TestAside:
    def test_an_unrecorded_copy_has_the_reason_and_is_otherwise_unchanged(self) -> None:
        one = delivery(
            queue="payments.parked", message_id="m", body=b"x", headers={"a": 1, "CC": ["victim"]}, user_id="u"
        )
        copy = set_aside(one, "too\0large", queue="payments.parked.unrecorded")

        assert (copy.routing_key, copy.exchange, copy.body, copy.mandatory) == (
            "payments.parked.unrecorded",
            "",
            b"x",
            True,
        )
        assert dict(copy.headers) == {"a": 1, "rmq-retry-unrecorded": "too\\x00large"}
        assert (copy.properties.message_id, copy.properties.user_id, copy.properties.delivery_mode) == ("m", None, 2)

    def test_a_copy_put_back_is_read_as_the_original(self) -> None:
        first = delivery(queue="payments.parked", message_id="m", headers={"x-death": [died()], "a": 1})
        again = arrived(set_aside(first, "why", queue="unrecorded"), queue="payments.parked")
        found = read_parked(again, HOMES)

        assert (found.by, found.queue, found.identity) == (By.BROKER, "payments", read_parked(first, HOMES).identity)
        assert "rmq-retry-unrecorded" not in decode_properties(found.raw).headers

    @pytest.mark.parametrize(
        "raw", [b"\xff\xff", encode_properties(Properties(headers=Headers.of({"a": b"1" * ROOM_BYTES})))]
    )
    def test_properties_without_room_are_put_aside_as_bytes(self, raw: bytes) -> None:
        copy = set_aside(delivery(queue="q", raw=raw, body=b"x"), "why", queue="unrecorded")

        assert copy.headers["rmq-retry-unrecorded"] == "why"
        assert len(copy.headers.raw) < ROOM_BYTES + 1000
        assert copy.body.endswith(b"x")
