"""The effect of an arriving parked copy on its record: the seven rules."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_rmq_retry import Delivery
from django_rmq_retry.messages import Reason, decode_properties
from django_rmq_retry.messages.parked_copy import requeued as requeued_message
from django_rmq_retry.models import ErrorGroup, ItemState, MessageVersion, ParkedMessage, RequeueRun, State
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.parked import copies
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.policies import park
from tests.operators.invariants import check_counters
from tests.parked.arrivals import DAWN, by_us, change, foreign, store, the_group, the_record, ticket_header, untaken
from tests.parked.made import item

pytestmark = [pytest.mark.django_db, pytest.mark.database]
SECOND = 1000
NO_ID: dict[str, Any] = {"id": None}


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@pytest.fixture(autouse=True)
def counters_agree() -> Any:
    """Whatever happened, the groups' counters say what their messages are."""
    yield
    check_counters()


def first(**told: Any) -> ParkedMessage:
    store(by_us(**told))
    return the_record()


def requeued(record: ParkedMessage, *, later: int = 60 * SECOND, state: State = State.REQUEUED) -> ParkedMessage:
    """As it is once an operator has sent it."""
    sent = None if state == State.REQUEUEING else at(DAWN + later)
    claimed = at(DAWN + later + 60 * SECOND) if state == State.REQUEUEING else None
    ErrorGroup.objects.filter(pk=record.group_id).update(parked=0, requeued=1)
    return change(record, state=state, cycle=2, requeued_at=sent, claimed_until=claimed)


def resolved(record: ParkedMessage, state: State = State.DISCARDED) -> ParkedMessage:
    ErrorGroup.objects.filter(pk=record.group_id).update(**{"parked": 0, "requeued": 0, state.value: 1})
    return change(record, state=state, resolved_at=at(DAWN + 60 * SECOND), resolution="a twin")


class TestNew:
    def test_a_parked_message_is_recorded_with_all_its_fields(self) -> None:
        before = datetime.now(UTC)
        record = first(body=b'{"n": 1}', type="charge", correlation_id="c", content_type="application/json",
                       timestamp=1_600_000_000, exchange="shop", routing_key="pay")  # fmt: skip

        told = (record.state, record.queue, record.parked_in, record.exchange, record.routing_key)
        assert told == ("parked", "payments", "payments.parked", "shop", "pay")
        assert (bytes(record.body), record.size, record.message_id, record.type) == (b'{"n": 1}', 8, "m-1", "charge")
        assert record.sha256 == hashlib.sha256(b'{"n": 1}').hexdigest()
        assert (record.reason, record.detail, record.error, record.error_text, record.attempts) == (
            "retries_exhausted", "after 5 attempts", "BankDown", "timeout", 5
        )  # fmt: skip
        assert (record.published_at, record.parked_at) == (at(1_600_000_000_000), at(DAWN))
        assert (record.cycle, record.copies, record.revision, record.handler) == (1, 1, 1, "payments.charge")
        # By the database's clock, as it was asked a moment ago.
        assert abs(record.recorded_at - before) < timedelta(seconds=30)

    def test_a_message_without_a_handler_has_zero_attempts(self) -> None:
        store(untaken())

        told = the_record()
        assert (told.reason, told.attempts, told.summary, told.failed_at) == ("no_handler", 0, "", None)
        assert told.parked_at == at(DAWN)

    def test_the_first_parked_message_creates_its_group(self) -> None:
        first()
        group = the_group()

        assert (group.title, group.reason, group.parked, group.arrived) == ("BankDown", "retries_exhausted", 1, 1)
        assert (group.first_seen, group.last_seen, group.regressed_at) == (at(DAWN), at(DAWN), None)

    def test_equal_errors_share_a_group_with_first_and_last_time(self) -> None:
        store(*(by_us(id=f"m-{n}", at=DAWN + n * SECOND) for n in (3, 1, 2)))
        group = the_group()

        assert (group.parked, group.arrived) == (3, 3)
        assert (group.first_seen, group.last_seen) == (at(DAWN + SECOND), at(DAWN + 3 * SECOND))

    def test_another_error_is_another_group(self) -> None:
        store(by_us(id="m-1"), by_us(id="m-2", error="CardExpired"))

        assert sorted(ErrorGroup.objects.values_list("title", "parked")) == [("BankDown", 1), ("CardExpired", 1)]

    def test_the_group_uses_the_fingerprint_of_the_worker(self) -> None:
        store(foreign(headers={"rmq-retry-reason": "x", "rmq-retry-fingerprint": "a" * 40, "rmq-retry-culprit": "b:p"}))

        assert (the_group().fingerprint, the_group().culprit) == ("a" * 40, "b:p")

    @pytest.mark.parametrize("forged", ["a" * 39, "A" * 40, "g" * 40, "a" * 41, "💥" * 40, ""])
    def test_an_invalid_fingerprint_header_is_ignored(self, forged: str) -> None:
        store(foreign(headers={"rmq-retry-reason": "x", "rmq-retry-fingerprint": forged}))

        assert len(the_group().fingerprint) == 40
        assert the_group().fingerprint != forged

    def test_impossible_times_are_not_stored(self) -> None:
        tomorrow = int(datetime.now(UTC).timestamp() * 1000) + 86_400_000
        record = first(at=tomorrow, timestamp=1_700_000_000_000)

        assert record.published_at is None
        assert record.parked_at <= datetime.now(UTC)

    def test_a_project_without_time_zones_stores_its_local_time(self, settings: Any) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Kyiv"
        store(by_us(timestamp=1_600_000_000))
        store(by_us(timestamp=1_600_000_000, at=DAWN + SECOND))

        assert the_record().published_at == datetime(2020, 9, 13, 15, 26, 40)  # noqa: DTZ001 - as it is stored
        assert (the_record().parked_at.tzinfo, the_record().copies) == (None, 2)


class TestCopies:
    def test_a_copy_delivered_twice_in_one_batch_changes_no_record(self) -> None:
        store(by_us(), by_us(), by_us(again=True))

        assert the_record().copies == 1

    def test_a_newer_failure_updates_an_open_record(self) -> None:
        record = first()
        store(by_us(at=DAWN + SECOND, error="CardExpired"))

        again = the_record()
        assert (again.copies, again.error, again.parked_at, again.state) == (
            2,
            "CardExpired",
            at(DAWN + SECOND),
            "parked",
        )
        assert (again.group.title, again.revision) == ("CardExpired", record.revision + 1)

    def test_the_first_body_of_a_record_is_never_replaced(self) -> None:
        record = first(body=b"first")
        second = hashlib.sha256(b"second").hexdigest()
        told = {"body": b"second", "properties": b"", "sha256": second, "by": "ann", "reason": "typo", "at": at(DAWN)}
        MessageVersion.objects.create(message=record, number=2, **told)
        record = requeued(record)
        store(by_us(body=b"second", ticket=(record.pk, 2), at=DAWN + 90 * SECOND))

        assert (bytes(the_record().body), the_record().state) == (b"first", "parked")


class TestRequeued:
    @pytest.mark.parametrize(
        ("reason", "before", "doubts"),
        [(Reason.CRASHED, False, 1), (Reason.CRASHED, True, 1), (Reason.EXHAUSTED, False, 0)],
    )
    def test_a_copy_that_was_parked_because_its_worker_died_may_have_been_handled(
        self, reason: Reason, before: bool, doubts: int
    ) -> None:
        """It was paid eight times, and was the one message of its run without a word of that."""
        record = change(requeued(first()), unacked=before)
        place = item(record, cycle=2)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND, verdict=park(reason, "died")))
        place.refresh_from_db()
        listed = Selection.of_filter({"perhaps_twice_of_run": place.run_id})

        assert (place.run.failed, place.run.perhaps_twice, listed.count) == (1, doubts, doubts)

    def test_a_requeued_copy_that_fails_reopens_its_record(self) -> None:
        record = requeued(first())
        place = item(record, cycle=2)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND, error="CardExpired"))

        again = the_record()
        assert (again.state, again.cycle, again.copies, again.error) == ("parked", 2, 2, "CardExpired")
        assert (again.revision, again.unconfirmed, again.parked_at) == (
            record.revision + 1,
            False,
            at(DAWN + 90 * SECOND),
        )
        place.refresh_from_db()
        assert (place.state, place.run.failed) == (ItemState.FAILED, 1)
        assert ErrorGroup.objects.get(title="BankDown").failed_again == 1

    def test_a_message_that_a_consumer_had_before_stays_in_doubt_after_a_requeue(self) -> None:
        record = requeued(first(redelivered=True))
        sent = requeued_message(copies.contents(record), queue="payments", ticket="")
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND))

        assert sent.headers["rmq-retry-unacked"] == 1
        assert "rmq-retry-unacked" not in decode_properties(bytes(record.properties)).headers
        assert (record.unacked, the_record().unacked, the_record().state) == (True, True, "parked")

    def test_a_requeued_copy_whose_worker_was_killed_is_in_doubt(self) -> None:
        record = requeued(first())
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND, redelivered=True))

        assert (record.unacked, the_record().unacked) == (False, True)

    def test_a_requeued_copy_without_an_id_reopens_its_record(self) -> None:
        record = requeued(first(**NO_ID))
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND, **NO_ID))

        assert (the_record().state, the_record().copies) == ("parked", 2)

    def test_a_copy_that_fails_before_its_confirm_is_stored_reopens_its_record(self) -> None:
        record = requeued(first(), state=State.REQUEUEING)
        place = item(record, cycle=2, state=ItemState.CLAIMED)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND))

        assert (the_record().state, the_record().claimed_until) == ("parked", None)
        place.refresh_from_db()
        assert place.state == ItemState.FAILED

    def test_an_unconfirmed_copy_that_fails_reopens_its_record(self) -> None:
        record = first()
        ErrorGroup.objects.update(arrived=1)
        record = change(record, cycle=2, unconfirmed=True)
        run = RequeueRun.objects.create(created_at=at(DAWN), by="ann", total=1, unconfirmed=1)
        item(record, run=run, cycle=2, state=ItemState.UNCONFIRMED)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND))

        run.refresh_from_db()
        assert (the_record().unconfirmed, run.sent, run.failed, run.unconfirmed) == (False, 1, 1, 0)

    def test_a_failed_copy_changes_only_items_of_its_own_cycle(self) -> None:
        record = requeued(first())
        older = item(record, cycle=1, state=ItemState.UNCONFIRMED)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND))

        older.refresh_from_db()
        assert (older.state, older.run.failed) == (ItemState.UNCONFIRMED, 0)

    def test_a_failed_copy_of_an_older_cycle_leaves_the_newer_one_in_flight(self) -> None:
        record = change(requeued(first()), cycle=3)
        place = item(record, cycle=3)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND))

        place.refresh_from_db()
        assert (the_record().state, the_record().cycle, the_record().copies, place.state) == ("requeued", 3, 2, "sent")

    def test_a_second_copy_of_the_same_cycle_is_counted_once_as_failed(self) -> None:
        record = requeued(first())
        item(record, cycle=2)
        store(by_us(ticket=(record.pk, 2), at=DAWN + 90 * SECOND))
        store(by_us(ticket=(record.pk, 2), at=DAWN + 91 * SECOND))

        assert (the_record().copies, RequeueRun.objects.get().failed, the_group().failed_again) == (3, 1, 1)

    @pytest.mark.parametrize("other", [{"body": b"another"}, {"id": "m-2"}, {"id": None}])
    def test_a_ticket_copied_to_another_message_is_ignored(self, other: dict[str, Any]) -> None:
        record = requeued(first(body=b"one"))
        copied = ticket_header(record.pk, 2, body=b"one")
        store(by_us(**{"headers": copied, "at": DAWN + 90 * SECOND, "body": b"one", **other}))

        assert list(ParkedMessage.objects.order_by("pk").values_list("state", flat=True)) == ["requeued", "parked"]

    @pytest.mark.parametrize("text", ["1.2", "1.2:forged", "", "x" * 300])
    def test_a_ticket_with_an_invalid_signature_is_ignored(self, text: str) -> None:
        requeued(first())
        store(by_us(headers={"rmq-retry-ticket": text}, at=DAWN + 90 * SECOND))

        # Found by its id, as a copy of unknown cycle.
        assert (the_record().state, the_record().unconfirmed) == ("parked", True)

    def test_a_deleted_record_is_recreated(self) -> None:
        store(by_us(ticket=(999_999, 2)))

        assert (the_record().state, the_record().cycle) == ("parked", 1)


class TestComingBack:
    @pytest.mark.parametrize("state", RESOLVED)
    def test_a_copy_parked_after_the_record_was_resolved_reopens_it(self, state: State) -> None:
        change(resolved(first(), state), succeeded_at=at(DAWN))
        store(by_us(at=DAWN + 61 * SECOND))

        again = the_record()
        assert (again.state, again.copies, again.cycle, again.resolved_at, again.resolution) == (
            "parked",
            2,
            1,
            None,
            "",
        )
        assert (again.succeeded_at, again.unconfirmed) == (at(DAWN), False)

    @pytest.mark.parametrize(("later", "state"), [(59, "processed"), (61, "parked")])
    def test_a_twin_of_a_successful_copy_reopens_the_record_only_if_it_failed_later(
        self, later: int, state: str
    ) -> None:
        record = change(resolved(first(), State.PROCESSED), cycle=2)
        store(by_us(ticket=(record.pk, 2), at=DAWN + later * SECOND))

        assert (the_record().state, the_record().copies) == (state, 2)

    def test_only_a_message_that_was_never_parked_is_a_new_failure_of_its_group(self) -> None:
        record = requeued(first())
        store(by_us(ticket=(record.pk, 2), at=DAWN + 61 * SECOND))
        again = the_group()
        store(by_us(at=DAWN + 90 * SECOND, id="m-2"))

        assert (again.last_new, again.last_seen) == (at(DAWN), at(DAWN + 61 * SECOND))
        assert the_group().last_new == at(DAWN + 90 * SECOND)

    def test_a_group_is_marked_regressed_when_it_fails_after_its_resolution(self) -> None:
        resolved(first())
        store(by_us(at=DAWN + 61 * SECOND, id="m-2"))

        assert the_group().regressed_at == at(DAWN + 61 * SECOND)

    def test_a_group_with_open_messages_is_not_marked_regressed(self) -> None:
        resolved(first())
        ErrorGroup.objects.update(discarded=0)
        store(by_us(id="m-0"))
        ErrorGroup.objects.update(regressed_at=None, discarded=1)
        store(by_us(at=DAWN + 61 * SECOND, id="m-2"))

        assert the_group().regressed_at is None


class TestWithoutId:
    def test_equal_messages_without_an_id_get_a_record_each(self) -> None:
        store(by_us(**NO_ID))
        store(by_us(**NO_ID))
        store(by_us(**NO_ID), by_us(**NO_ID))

        assert ParkedMessage.objects.count() == 4

    def test_a_redelivered_message_without_an_id_keeps_one_record(self) -> None:
        store(by_us(**NO_ID))
        store(by_us(**NO_ID, again=True))

        assert (the_record().copies, the_record().revision) == (1, 1)

    def test_two_redelivered_messages_without_an_id_in_one_batch_are_two_records(self) -> None:
        store(by_us(**NO_ID, again=True), by_us(**NO_ID, again=True))

        assert ParkedMessage.objects.count() == 2

    def test_a_redelivered_foreign_message_without_an_id_is_recorded_again(self) -> None:
        store(foreign(**NO_ID))
        store(foreign(**NO_ID, again=True))

        assert ParkedMessage.objects.count() == 2


def held_after_its_requeue() -> None:
    change(first(), cycle=2, unconfirmed=True, state=State.ON_HOLD)


def discarded_foreign() -> None:
    store(foreign())
    resolved(the_record())


def own(seconds: int, **told: Any) -> Callable[[], Delivery]:
    """A copy that this project parked, so many seconds after the first one."""
    return lambda: by_us(at=DAWN + seconds * SECOND, **told)


def with_ticket(seconds: int) -> Callable[[], Delivery]:
    return lambda: by_us(at=DAWN + seconds * SECOND, ticket=(the_record().pk, 2))


@pytest.mark.parametrize(
    ("before", "copy", "after"),
    [
        (first, own(0, again=True), ("parked", 1, False)),
        (first, own(-1, error="CardExpired"), ("parked", 2, False)),
        (lambda: change(first(), state=State.ON_HOLD), own(1), ("on_hold", 2, False)),
        (held_after_its_requeue, with_ticket(90), ("on_hold", 2, False)),
        (lambda: requeued(first()), own(59), ("requeued", 2, False)),
        (lambda: requeued(first()), own(61), ("parked", 2, True)),
        (lambda: requeued(first(), state=State.REQUEUEING), own(61), ("requeueing", 2, False)),
        (lambda: resolved(first(), State.PROCESSED), own(59), ("processed", 2, False)),
        (lambda: resolved(first(), State.DISCARDED), own(59), ("discarded", 2, False)),
        (discarded_foreign, foreign, ("parked", 2, False)),
        (discarded_foreign, lambda: foreign(again=True), ("discarded", 1, False)),
        (discarded_foreign, lambda: foreign(again=True, headers={"a": 1}), ("discarded", 2, False)),
    ],
    ids=(
        *("redelivered", "older failure", "on hold", "on hold since its requeue", "parked before the requeue"),
        *("parked after the requeue", "being requeued", "parked before its success", "parked before its discard"),
        *("foreign without a time", "foreign redelivered", "foreign redelivered with other headers"),
    ),
)
def test_another_copy_of_a_recorded_message(
    before: Callable[[], object], copy: Callable[[], Delivery], after: tuple[str, int, bool]
) -> None:
    before()
    known = the_record()
    store(copy())
    record = the_record()

    assert (record.state, record.copies, record.unconfirmed) == after
    # An older or redelivered copy brings neither its error nor another end of the record.
    if record.state == known.state:
        assert (record.error, record.resolution) == (known.error, known.resolution)
    assert (record.revision == known.revision) == (record.copies == 1)
