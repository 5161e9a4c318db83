"""Selections: chosen, frozen and counted before an action."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.core import signing
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.models import BusinessKey, MessageVersion, ParkedMessage, State
from django_rmq_retry.parked import same_keys, selection
from django_rmq_retry.parked.findings import RequeueReport, RequeueTerms, report
from django_rmq_retry.parked.operators import NothingChosen, Outdated, Refused
from django_rmq_retry.parked.selection import Selection, beginning
from tests.operators.made import discard_messages, group, record, requeue_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
PARKED = {"state": ["parked"]}
OPEN = {"state": ["parked", "on_hold"]}
HOUR = timedelta(hours=1)
TABLE = ParkedMessage._meta.db_table


def counts(found: RequeueReport) -> dict[str, int]:
    return {one.name: one.count for one in found.findings}


class TestSelection:
    def test_a_token_restores_the_frozen_selection(self) -> None:
        one = record()
        frozen = Selection.of_filter(PARKED)
        read = Selection.read(frozen.token())

        assert read == frozen
        assert [row.pk for row in read.queryset()] == [one.pk]

    def test_messages_parked_after_the_freeze_are_not_selected(self) -> None:
        one, two = record(), record(state=State.REQUEUED)
        frozen = Selection.of_filter(PARKED)
        record()
        ParkedMessage.objects.filter(pk=two.pk).update(state=State.PARKED, parked_at=timezone.now() + HOUR)

        assert [row.pk for row in frozen.queryset()] == [one.pk]

    def test_a_worker_clock_that_is_ahead_hides_no_message(self) -> None:
        record(parked_at=timezone.now() + HOUR)

        assert Selection.of_filter(PARKED).queryset().count() == 1

    def test_a_forged_or_old_token_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        token = Selection.of_filter(PARKED).token()
        with pytest.raises(Outdated, match="this site did not sign it"):
            Selection.read(token + "x")
        with pytest.raises(Outdated, match="this site did not sign it"):
            Selection.read(signing.dumps({"filter": PARKED}, salt="other"))
        monkeypatch.setattr(selection, "TOKEN_SECONDS", -1)

        with pytest.raises(Outdated, match="older than an hour"):
            Selection.read(token)

    def test_a_selection_of_more_than_200_ids_has_no_token(self) -> None:
        many = Selection(revisions=dict.fromkeys(range(201), 1), as_of=timezone.now(), count=201)

        with pytest.raises(Refused, match="At most 200"):
            many.token()

    @pytest.mark.parametrize(
        "wrong",
        [{"colour": "red"}, {"state": ["lost"]}, {"group": "x"}, {"parked_after": "yesterday"}, {"without": ["x"]}],
    )
    def test_an_invalid_filter_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(Refused, match="The filter cannot be used"):
            Selection.of_filter(wrong)

    @pytest.mark.parametrize("text", ["payment:7", "m-id", "c-id"])
    def test_a_search_finds_a_message_by_each_of_its_ids(self, text: str) -> None:
        one = record(key="payment:7", message_id="m-id", correlation_id="c-id")
        record()

        assert Selection.of_filter({"search": text}).queryset().get() == one
        assert Selection.of_filter({"search": f"#{one.pk}"}).queryset().get() == one
        assert Selection.of_filter({"search": "9" * 40}).count == 0

    @pytest.mark.parametrize("most", [1, 1000])
    def test_a_search_finds_all_messages_with_an_id(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(selection, "MOST_SEARCHED_IDS", most)
        alike = [record(key="order:1").pk, record(correlation_id="order:1").pk, record(message_id="order:1").pk]
        record(key="order:2")
        found = Selection.of_filter({"search": "order:1", "state": ["parked"]})

        assert sorted(row.pk for row in found.queryset()) == alike
        assert requeue_run(found, reason="x").total == 3

    def test_a_search_whose_messages_were_deleted_starts_no_run(self) -> None:
        record(key="order:1")
        found = Selection.of_filter({"search": "order:1"})
        ParkedMessage.objects.all().delete()

        with pytest.raises(NothingChosen):
            requeue_run(found, reason="x")

    def test_all_filters_apply_together(self) -> None:
        one = record(type="card", group=group("g"), cycle=3)
        record(type="card", cycle=1)
        words = {
            "type": ["card", "cash"],
            "group": one.group_id,
            "cycle_min": 2,
            "parked_after": "2020-01-01T00:00:00Z",
        }

        assert Selection.of_filter(words).queryset().get() == one
        assert Selection.of_filter({**words, "without": [one.pk]}).count == 0


@pytest.mark.parametrize("rows", [BusinessKey.objects, ParkedMessage.objects])
def test_a_beginning_is_found_by_an_index(rows: Any) -> None:
    field, index = ("folded", "rmq_key_folded") if rows.model is BusinessKey else ("message_id", "rmq_msg_id")
    record(keys=[f"key-{number}" for number in range(300)])
    begun = rows.order_by().filter(beginning(field, "key-29")).values("pk")
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # It reads a small table as a whole unless that is forbidden.
            cursor.execute("SET LOCAL enable_seqscan = off")
        plan = begun.explain()

    assert index in plan
    assert "SCAN" not in plan.upper().replace("INDEX SCAN", "").replace("INDEX ONLY SCAN", "").replace("HEAP SCAN", "")


def test_a_beginning_ignores_case_in_keys_only() -> None:
    one, two = record(key="PAY-80007", message_id="Id-1"), record(key="pay-80008", message_id="id-2")
    record(key="PAY-9", message_id="x-3")

    found = {
        text: set(Selection.of_filter({"begins": text}).queryset()) for text in ("Pay-8", "Id-", "PAY-80007x", "%")
    }

    assert found["Pay-8"] == {one, two}
    assert one in found["Id-"]
    assert found["PAY-80007x"] == found["%"] == set()


def test_a_beginning_that_very_many_have_is_not_listed_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_SEARCHED_IDS", 2)
    for number in range(3):
        record(key=f"PAY-{number}")
    record(key="X")

    assert Selection.of_filter({"begins": "pay-"}).count == 3


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_beginning_chooses_no_message(text: str) -> None:
    """A variable of the shell that is not set must not choose all messages."""
    record(key="PAY-1")

    assert Selection.of_filter({"begins": text}).count == 0


class TestReport:
    def test_the_report_counts_each_finding_with_examples(self, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"REQUEUE_MAX_AGE": 3600}}
        fine = record(key="payment:1")
        record(succeeded_at=timezone.now())
        record(unconfirmed=True)
        record(reason="permanent")
        record(published_at=timezone.now() - 2 * HOUR)
        record(queue="")
        record(queue="others")
        record(key="payment:1", version=2)
        record(state=State.ON_HOLD)
        found = report(Selection.of_filter({"state": ["parked", "on_hold"]}))

        assert counts(found) == {
            "succeeded": 1, "unconfirmed": 1, "permanent": 1, "late": 1, "no_queue": 1, "unhandled": 1,
            "edited": 1, "on_hold": 1, "duplicates": 2, "twins": 2,
        }  # fmt: skip
        assert (found.total, found.sendable, found.left_out) == (9, 2, 7)
        assert {one.name for one in found.findings if not one.left_out} == {"edited", "twins", "duplicates"}
        assert (fine.pk, "payment:1") in found.findings[-1].examples
        assert found.queues == (("payments.charge", 2),)

    def test_a_preview_asks_each_condition_once_and_reads_no_text_before_it(self) -> None:
        """A preview of 200,000 messages evaluated each condition twice, behind 40 columns of texts."""
        record()
        with CaptureQueriesContext(connection) as queries:
            report(Selection.of_filter(PARKED))
        asked = [one["sql"].replace("`", '"') for one in queries.captured_queries]
        totals = next(sql for sql in asked if '"held"' in sql)
        with connection.cursor() as cursor:
            columns = [one.name for one in connection.introspection.get_table_description(cursor, TABLE)]
        texts = columns[columns.index("identity") :]

        assert totals.count('"succeeded_at" IS NOT NULL') == 1
        # Of what came back from workers, and of permanent errors.
        assert totals.count('"reason" IN') == 2
        assert [name for name in texts if f'"{TABLE}"."{name}"' in totals] == []

    @pytest.mark.parametrize(("sorted_at_most", "shared_at_most"), [(10, 10), (0, 10), (0, 1)])
    def test_a_large_selection_counts_the_same_shared_keys(
        self, sorted_at_most: int, shared_at_most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(same_keys, "MOST_SORTED", sorted_at_most)
        monkeypatch.setattr(same_keys, "MOST_SHARED", shared_at_most)
        monkeypatch.setattr(same_keys, "KEYS_AT_ONCE", 1)
        here = group()
        for key in ("PAY-1", "PAY-1", "PAY-1", "PAY-2", "PAY-2", "PAY-3", "PAY-4", "", ""):
            record(group=here, key=key)
        record(group=here, key="PAY-3", unconfirmed=True)
        record(group=group("other"), key="PAY-4")
        found = report(Selection.of_filter({"group": here.pk, "state": ["parked"]}))

        told = {name: count for name, count in counts(found).items() if name != "twins"}

        assert told == {"duplicates": 5, "unconfirmed": 1}
        assert counts(found).get("twins") == (None if shared_at_most == 1 else 5)
        assert {name for _pk, name in found.findings[-1].examples} == {"PAY-1", "PAY-2"}

    @pytest.mark.parametrize("name", ["on_hold", "succeeded", "unconfirmed", "permanent", "unhandled"])
    def test_a_message_with_a_finding_is_sent_only_if_it_is_included(self, name: str) -> None:
        wrong: dict[str, Any] = {"succeeded_at": timezone.now(), "unconfirmed": True, "reason": "permanent"}
        record(state=State.ON_HOLD, queue="others", **wrong)
        others = {"on_hold", "succeeded", "unconfirmed", "unhandled"}
        without = RequeueTerms(include=others - {name}, confirmed_permanent=name != "permanent")

        assert report(Selection.of_filter(OPEN), without).sendable == 0
        assert report(Selection.of_filter(OPEN), RequeueTerms(include=others, confirmed_permanent=True)).sendable == 1

    def test_a_hold_whose_time_is_over_leaves_no_message_out(self) -> None:
        record(state=State.ON_HOLD, held_until=timezone.now() - HOUR)
        record(state=State.ON_HOLD, held_until=timezone.now() + HOUR)

        assert counts(report(Selection.of_filter(OPEN))) == {"on_hold": 1}
        assert report(Selection.of_filter(OPEN)).sendable == 1

    @pytest.mark.parametrize("lacking", ["published_at", "failed_at", "parked_at"])
    def test_the_age_counts_from_the_publish_time_or_else_failure_or_parking(self, settings: Any, lacking: str) -> None:
        settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"REQUEUE_MAX_AGE": 3600}}
        known = ["published_at", "failed_at", "parked_at"]
        old, young = timezone.now() - 2 * HOUR, timezone.now() - HOUR / 2
        before, after = known[: known.index(lacking)], known[known.index(lacking) + 1 :]
        times: dict[str, Any] = {**dict.fromkeys(before), lacking: old, **dict.fromkeys(after, young)}
        record(**times)
        times[lacking] = young
        record(**times)

        assert counts(report(Selection.of_filter(PARKED)))["late"] == 1

    def test_a_message_without_a_queue_can_go_to_another_target(self) -> None:
        record(queue="")

        assert report(Selection.of_filter(PARKED), RequeueTerms(target="payments.charge")).sendable == 1

    def test_the_report_counts_messages_changed_since_the_freeze(self) -> None:
        one, two = record(), record()
        named, filtered = Selection.of_ids([one.pk, two.pk]), Selection.of_filter(PARKED)
        ParkedMessage.objects.filter(pk=one.pk).update(revision=2)
        MessageVersion.objects.create(
            message=two, number=2, body=b"", properties=b"", sha256="", at=timezone.now() + HOUR, by="bob", reason=""
        )

        assert counts(report(named)) == {"changed": 1}
        assert counts(report(filtered)) == {"changed": 1}

    @pytest.mark.parametrize("include", [(), ("discarded",)])
    def test_a_message_that_was_discarded_meanwhile_did_not_arrive_again(self, include: tuple[str, ...]) -> None:
        here = [record(key=f"PAY-{number}") for number in range(3)]
        chosen = Selection.of_ids([one.pk for one in here])
        requeue_run([here[0].pk])
        discard_messages([one.pk for one in here[:2]])
        found = report(chosen, RequeueTerms(include=include))

        assert "discarded" not in counts(found)
        assert [one.includable for one in found.findings] == [False] * len(found.findings)
        assert sum(counts(found).values()) == found.left_out == 2

    def test_each_message_is_counted_under_the_reason_for_which_a_run_leaves_it_out(self) -> None:
        long_ago = timezone.now() - HOUR
        record(succeeded_at=long_ago, reason="permanent", queue="others", version=2)
        again = record(discarded_at=long_ago, unconfirmed=True)
        record(reason="permanent", queue="others")
        record(queue="others", version=2)
        chosen = Selection.of_filter(PARKED)
        found, run = report(chosen), requeue_run(chosen)
        skipped = Counter(run.items.values_list("skip_code", flat=True))

        assert counts(found) == {"succeeded": 1, "discarded": 1, "permanent": 1, "unhandled": 1} == skipped
        assert {one.name: len(one.examples) for one in found.findings} == counts(found)
        assert found.findings[1].examples[0][0] == again.pk

    def test_what_was_included_can_be_left_out_again_beside_another_reason(self) -> None:
        record(state=State.ON_HOLD, unconfirmed=True)
        included = report(Selection.of_filter(OPEN), RequeueTerms(include=["on_hold"]))

        assert [(one.name, one.left_out) for one in included.findings] == [("on_hold", False), ("unconfirmed", True)]

    def test_the_report_and_the_run_have_the_same_numbers(self) -> None:
        record(succeeded_at=timezone.now())
        record()
        frozen = Selection.of_filter(PARKED)
        before = report(frozen)
        run = requeue_run(frozen)

        assert (run.total, run.total - run.skipped) == (before.total, before.sendable)

    def test_a_report_takes_11_queries_and_a_start_25_at_most(self, django_assert_max_num_queries: Any) -> None:
        for number in range(300):
            record(key=f"payment:{number % 250}")
        frozen = Selection.of_filter(PARKED)
        with django_assert_max_num_queries(11):
            report(frozen)

        with django_assert_max_num_queries(25):
            requeue_run(frozen, reason="x")

    def test_items_are_in_the_order_of_parking(self) -> None:
        late, early = record(), record(parked_at=timezone.now() - HOUR)
        run = requeue_run([late.pk, early.pk])

        assert [(one.message_id, one.place) for one in run.items.order_by("place")] == [(early.pk, 1), (late.pk, 2)]


def test_the_audit_log_names_a_group_by_its_cause() -> None:
    """T14 of the commands: `group 1 · state parked` says nothing to who reads the log later."""
    bank, card = record(), record(group=group("c", title="CardExpired", culprit="cards.gateway:charge"))
    numbers = [bank.group_id, card.group_id]

    assert Selection.of_filter({"group": numbers[0], **PARKED}).description == "BankDown"
    assert Selection.of_filter({"group": numbers, **PARKED}).description == (
        "BankDown, CardExpired · cards.gateway:charge"
    )
    assert Selection.of_filter({"group": [*numbers, 999]}).description.endswith(", #999")
    assert Selection.of_filter({"queue": "payments", **OPEN}).description == "queue payments · parked or on hold"
    assert Selection.of_filter(PARKED).description == "parked"
    listed = {"keys": {"list": 2, "count": 31}, "except_keys": {"list": 3, "count": 1}}
    chosen = Selection(as_of=timezone.now(), count=30, filter={**listed, **PARKED})
    assert chosen.description == "list of 31 keys · without 1 key"
