"""Lists of keys: read as they are pasted, matched letter for letter, frozen, and left out by key."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.models import (
    Attempt,
    AttemptName,
    BusinessKey,
    FormerName,
    KeyList,
    ListedKey,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked.elsewhere import elsewhere, places_of
from django_rmq_retry.parked.found import Room
from django_rmq_retry.parked.key_lists import alike, excluded, keys_of, list_filter, look_up, matches_of_list, store
from django_rmq_retry.parked.key_text import MOST_TEXT, parse, text_of_keys
from django_rmq_retry.parked.operators import Outdated, Refused
from django_rmq_retry.parked.retention import purge_audit
from django_rmq_retry.parked.selection import LISTED, Selection
from django_rmq_retry.parked.transfer import COLUMNS, csv_lines
from tests.operators.made import ANN, again, discard_messages, driver_of, record, requeue_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def named(*keys: str) -> KeyList:
    return store(keys, ANN, look_up(keys))


def only(*keys: str, **words: object) -> Selection:
    return Selection.of_filter({LISTED: list_filter(named(*keys)), "state": ["parked"], **words})


def keys_in(run: RequeueRun) -> list[str]:
    return sorted(item.message.business_key for item in RequeueItem.objects.filter(run=run))


class TestReading:
    @pytest.mark.parametrize(
        ("text", "keys"),
        [
            ("PAY-1\nPAY-2\r\nPAY-3\n", ["PAY-1", "PAY-2", "PAY-3"]),
            ("PAY-1,PAY-2;PAY-3\tPAY-4", ["PAY-1", "PAY-2", "PAY-3", "PAY-4"]),
            ("PAY-1, PAY-2 ,\n\n ;PAY-3", ["PAY-1", "PAY-2", "PAY-3"]),
            ("PAY-1 PAY-2  PAY-3", ["PAY-1", "PAY-2", "PAY-3"]),
            ("ACC 7\nACC 8", ["ACC 7", "ACC 8"]),
            ('"ACC 7"', ["ACC 7"]),
            ('"a,b";"say ""x""" , " c "', ["a,b", 'say "x"', " c "]),
            ('"two\nlines",PAY-1', ["two\nlines", "PAY-1"]),
            ('5" pipe\n"open\nPAY-1', ['5" pipe', '"open', "PAY-1"]),
            ("PAY-2\nPAY-1\nPAY-2", ["PAY-2", "PAY-1"]),
            ("\ufeffPAY-1\u200b\n\u00a0PAY-2", ["PAY-1", "PAY-2"]),
            ("支付-1\uff0c支付-2\uff1bZahlung-ä", ["支付-1", "支付-2", "Zahlung-ä"]),
            ("PAY-1\x00x", ["PAY-1\\x00x"]),
            ("", []),
            (" ,;\n\t ", []),
        ],
    )
    def test_pasted_keys_are_split_at_any_usual_separator(self, text: str, keys: list[str]) -> None:
        assert parse(text) == keys

    def test_spaces_separate_keys_on_request(self) -> None:
        assert parse('PAY-1 PAY-2\nPAY-3 "ACC 7"\n"ACC 8"', spaces=True) == [
            "PAY-1",
            "PAY-2",
            "PAY-3",
            '"ACC',
            '7"',
            "ACC 8",
        ]

    @pytest.mark.parametrize(
        "keys",
        [
            ["PAY-1"],
            ["PAY-1", "PAY-2"],
            ["ACC 7"],
            ["ACC 7", "x"],
            ["a,b", 'say "x"', '"', " c ", "two\nlines", "支\uff0c付"],
        ],
    )
    def test_a_written_list_of_keys_is_read_back_unchanged(self, keys: list[str]) -> None:
        assert parse(text_of_keys(keys)) == keys

    @pytest.mark.parametrize(
        ("text", "columns"),
        [
            ("payment,customer,amount\nPAY-1,Smith,100\nPAY-2,Jones,7\n", 3),
            ("payment;amount\r\nPAY-1;100,50\r\nPAY-2;7,00\r\n", 2),
            ('"Payment"\t"Paid at"\n"PAY-1"\t"3 May, 10:00"\n\n"PAY-2"\t""\n', 2),
            (",key,amount\n0,PAY-1,x\n1,PAY-2,\n", 3),
            ("payment;amount\r\nPAY-1;100,50\r\n;\r\nPAY-2;7,00\r\n;\r\n", 2),
            (';;\npayment;amount;paid\nPAY-1;100,50;x\n" ";;;\n', 3),
            ("".join(csv_lines(COLUMNS, [(7, "parked", *[""] * (len(COLUMNS) - 2))])), len(COLUMNS)),
        ],
    )
    def test_a_pasted_table_with_a_header_is_refused(self, text: str, columns: int) -> None:
        with pytest.raises(Refused) as caught:
            parse(text)

        assert str(caught.value).startswith(f"The text is a table of {columns} columns with the header “")
        assert str(caught.value).endswith("Give only the column of the keys, one key per line. Nothing was looked up.")

    @pytest.mark.parametrize(
        "text",
        [
            "a,b,c",
            "a, b\nc, d",
            "alpha,beta\ngamma,delta",
            "PAY-1,PAY-2\nPAY-3,PAY-4",
            '"PAY-1";"PAY-2"\n"PAY-3";"PAY-4"',
            "cash,card\nPAY-1\nPAY-2,PAY-3",
            "PAY-A,\nPAY-2,",
            "payment,amount",
            "payment\nPAY-1",
            '"payment,amount"\n"PAY-1,100"',
        ],
    )
    def test_a_list_of_keys_is_never_taken_for_a_table(self, text: str) -> None:
        assert parse(text)

    def test_a_text_of_four_million_separators_is_parsed_fast(self) -> None:
        assert parse("a," * (MOST_TEXT // 2)) == ["a"]

    def test_a_list_holds_at_most_ten_thousand_keys(self) -> None:
        keys = [f"PAY-{number}" for number in range(10_000)]

        assert parse("\n".join(keys)) == keys
        with pytest.raises(Refused, match="The list has 10001 keys; at most 10000 are allowed"):
            parse("\n".join([*keys, "one more"]))

    def test_a_key_of_four_million_characters_is_parsed_fast(self) -> None:
        assert [len(key) for key in parse('"' + "x," * 5000)] == [2, 1]
        assert len(parse("K" * MOST_TEXT)[0].encode()) <= 255


class TestLookingUp:
    def test_the_look_up_finds_business_keys_and_message_ids(self) -> None:
        one, two = record(key="PAY-1"), record(message_id="9f3c-2")
        BusinessKey.objects.create(message=one, value="CUST-7")

        assert look_up(["PAY-1", "CUST-7", "9f3c-2", "PAY-9"]) == {
            "PAY-1": [one.pk],
            "CUST-7": [one.pk],
            "9f3c-2": [two.pk],
        }

    def test_keys_are_matched_exactly_and_near_matches_are_suggested(self) -> None:
        record(key="PAY-1")
        record(key="pay-2")

        assert look_up(["pay-1", "PAY-1 ", "PÄY-1", "PAY-2"]) == {}
        assert alike(["pay-1", "PAY-2", "PAY-3"]) == {"pay-1": ["PAY-1"], "PAY-2": ["pay-2"]}

    def test_keys_of_any_characters_are_matched_exactly(self) -> None:
        keys = ['say "x"', '"', "\\", '\\"', "a,b", "{a}", "{", "NULL", "it's", "%s", " a", "a\nb", "付款-ä"]
        known = {key: [record(key=key).pk] for key in keys}
        record(key="a")

        assert look_up(keys) == known

    def test_a_key_longer_than_the_column_is_found_by_its_shortened_form(self) -> None:
        long = "K" * 5000
        one = record(key=parse(long)[0])

        assert look_up(parse(long)) == {parse(long)[0]: [one.pk]}

    def test_ten_thousand_keys_are_looked_up_in_40_queries_or_in_two_of_postgresql(
        self, django_assert_num_queries: Any
    ) -> None:
        one = record(key="PAY-7777")

        with django_assert_num_queries(2 if connection.vendor == "postgresql" else 40):
            assert look_up([f"PAY-{number}" for number in range(10_000)]) == {"PAY-7777": [one.pk]}

    def test_the_queries_for_the_messages_of_a_list_do_not_grow_with_it_on_postgresql(
        self, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        monkeypatch.setattr("django_rmq_retry.statements.KEYS_AT_ONCE", 1)
        for number in range(3):
            record(key=f"PAY-{number}")
        known = named("PAY-0", "PAY-1", "PAY-2")

        with django_assert_num_queries(10 if connection.vendor == "postgresql" else 14):
            assert matches_of_list(known).complete

    def test_keys_that_match_too_many_messages_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_rmq_retry.parked.key_lists.MOST_FOUND", 2)
        for _ in range(3):
            record(key="CUST-7")

        with pytest.raises(Refused, match="These keys match more than 2 messages"):
            look_up(["CUST-7"])


def test_the_look_up_reports_the_state_of_each_key() -> None:
    twice = [record(key="CUST-7"), record(key="CUST-7", state=State.PROCESSED)]
    one, waits = record(key="PAY-1"), record(key="PAY-2")
    for state in (State.ON_HOLD, State.REQUEUED, State.PROCESSED, State.DISCARDED):
        record(key=f"PAY-{state.value}", state=state)
    run = requeue_run([waits.pk])
    keys = ["PAY-1", "PAY-2", "PAY-3", "CUST-7", "PAY-on_hold", "PAY-requeued", "PAY-processed", "PAY-discarded"]
    told = matches_of_list(named(*keys))

    assert told.found == ["PAY-1", "PAY-2"]
    assert told.missing == ["PAY-3"]
    assert told.several == ["CUST-7"]
    assert told.held == ["PAY-on_hold"]
    assert told.closed == ["PAY-requeued", "PAY-processed", "PAY-discarded"]
    assert [one.run for one in told.matches["PAY-2"]] == [run.pk]
    assert [one.record for one in told.matches["CUST-7"]] == [one.pk for one in twice]
    assert told.records("parked") == {one.pk, waits.pk, twice[0].pk}
    assert not told.complete


class TestOnlyThese:
    def test_a_message_parked_after_the_look_up_is_not_discarded(self) -> None:
        one = record(key="PAY-1")
        chosen = only("PAY-1")
        late = record(key="PAY-1")

        assert list(chosen.queryset()) == [one]
        assert discard_messages(chosen).changed == 1
        assert again(late).state == State.PARKED

    def test_a_listed_message_requeued_meanwhile_is_not_discarded(self) -> None:
        one, two = record(key="PAY-1"), record(key="PAY-2")
        chosen = only("PAY-1", "PAY-2")
        ParkedMessage.objects.filter(pk=one.pk).update(state=State.REQUEUED, revision=2)

        assert discard_messages(chosen).changed == 1
        assert [again(row).state for row in (one, two)] == ["requeued", "discarded"]

    def test_a_requeue_run_by_key_has_exactly_the_listed_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_rmq_retry.parked.listing.LISTED_AT_ONCE", 1)
        wanted = [record(key=f"PAY-{number}").pk for number in range(3)]
        record(key="PAY-9")
        run = requeue_run(only("PAY-0", "PAY-1", "PAY-2"), reason="r")
        driver_of(run).step()

        assert sorted(RequeueItem.objects.filter(run=run).values_list("message_id", flat=True)) == wanted


class TestAllButThese:
    def test_a_message_id_or_any_business_key_excludes_a_message(self) -> None:
        one, two, three = record(key="PAY-1"), record(message_id="9f3c-2"), record(key="PAY-3")
        BusinessKey.objects.create(message=one, value="CUST-7")
        rest = Selection.of_filter({}).leaving_out(list_filter(store(["CUST-7", "9f3c-2"], ANN)))

        assert list(rest.queryset()) == [three]
        assert two.pk not in rest.queryset().values_list("pk", flat=True)

    def test_a_key_excludes_only_exact_matches(self) -> None:
        record(key="PAY-1")
        record(message_id="9F3C-2")
        rest = Selection.of_filter({}).leaving_out(list_filter(store(["pay-1", "PAY-1 ", "9f3c-2"], ANN)))

        assert rest.count == 2

    def test_a_late_message_with_an_excluded_key_is_excluded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its row may have been numbered and dated before the preview, and committed after it."""
        monkeypatch.setattr("django_rmq_retry.parked.listing.LISTED_AT_ONCE", 1)
        for number in range(3):
            record(key=f"PAY-{number}")
        chosen = Selection.of_filter({"state": ["parked"]})
        rest = chosen.leaving_out(list_filter(store(["PAY-0"], ANN)))
        run = requeue_run(rest, reason="r")
        early = record(key="PAY-0", parked_at=chosen.as_of - timedelta(minutes=9))
        RequeueRun.objects.filter(pk=run.pk).update(selection={**run.selection, "max_id": early.pk})
        driver_of(run).step()

        assert keys_in(run) == ["PAY-1", "PAY-2"]

    def test_the_effect_of_an_exclusion_takes_three_queries_for_any_number_of_keys(
        self, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        monkeypatch.setattr("django_rmq_retry.statements.KEYS_AT_ONCE", 1)
        one = record(key="PAY-1", message_id="9f3c-1")
        record(key="PAY-2")
        record(key="PAY-2")
        listed = store(["PAY-2", "PAY-1", "9f3c-1"], ANN)
        chosen = Selection.of_filter({"state": ["parked"]}).leaving_out(list_filter(listed))
        with django_assert_num_queries(3):
            effect = excluded(listed.pk, chosen.undiminished())

        assert (effect.keys, effect.messages, effect.several) == (["PAY-2", "PAY-1", "9f3c-1"], 3, {"PAY-2": 2})
        assert (effect.missing, effect.elsewhere, chosen.count) == ([], {}, 0)

        ParkedMessage.objects.filter(pk=one.pk).update(state=State.DISCARDED)
        effect = excluded(listed.pk, chosen.undiminished())

        assert (effect.messages, {key: [one.state for one in some] for key, some in effect.elsewhere.items()}) == (
            2,
            {"PAY-1": ["discarded"], "9f3c-1": ["discarded"]},
        )

    def test_an_exclusion_that_matches_too_many_messages_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_rmq_retry.parked.key_lists.MOST_FOUND", 2)
        for number in range(3):
            record(key="CUST-7", message_id=f"9f3c-{number}")
        listed = store(["CUST-7"], ANN)

        with pytest.raises(Refused, match="match more than 2 messages"):
            excluded(listed.pk, ParkedMessage.objects.all())

    def test_a_page_reads_what_a_list_leaves_out_once(self) -> None:
        """Each of the queries of a preview matched all keys again: half of its time for 10,000 of them."""
        one, two, three = record(key="PAY-1"), record(message_id="9f3c-2"), record(key="PAY-3")
        listed = store(["PAY-1", "9f3c-2", "PAY-8"], ANN)
        rest = Selection.of_filter({"state": ["parked"]}).leaving_out(list_filter(listed))
        effect = excluded(listed.pk, rest.undiminished())
        shown = rest.looked_at(effect.records)
        with CaptureQueriesContext(connection) as queries:
            found = list(shown.queryset())

        assert (set(effect.records), found) == ({one.pk, two.pk}, [three])
        assert shown.facts() == rest.facts()
        assert (shown.undiminished().count(), shown.leaving_out(None).count) == (3, 3)
        matched = "rmq_retry_listedkey" in "".join(query["sql"] for query in queries)
        assert matched == (connection.vendor != "postgresql")

    def test_an_exclusion_applies_after_the_group_has_grown(self) -> None:
        record(key="PAY-1")
        record(key="PAY-2")
        rest = Selection.of_filter({"state": ["parked"]}).leaving_out(list_filter(store(["PAY-1"], ANN)))
        for key in ("PAY-1", "PAY-3"):
            record(key=key, parked_at=timezone.now() + timedelta(seconds=1))

        assert requeue_run(rest).total == 1
        refreshed = Selection.of_filter(rest.filter)
        assert sorted(refreshed.queryset().values_list("business_key", flat=True)) == ["PAY-2", "PAY-3"]

    def test_an_excluded_message_that_is_parked_again_stays_excluded(self) -> None:
        one, two = record(key="PAY-1"), record(key="PAY-2")
        rest = Selection.of_filter({"state": ["parked"]}).leaving_out(list_filter(store(["PAY-1"], ANN)))
        ParkedMessage.objects.filter(pk=one.pk).update(parked_at=timezone.now(), cycle=2, revision=3)
        run = requeue_run(rest)

        assert list(RequeueItem.objects.filter(run=run).values_list("message_id", flat=True)) == [two.pk]
        assert list(Selection.of_filter(rest.filter).queryset()) == [two]


class TestKeeping:
    def test_an_unused_key_list_expires_after_a_day_and_is_deleted_after_two(self) -> None:
        record(key="PAY-1")
        unused, used = named("PAY-1"), named("PAY-1")
        rest = Selection.of_filter({}).leaving_out(list_filter(unused))
        discard_messages(Selection.of_filter({LISTED: list_filter(used), "state": ["parked"]}))
        KeyList.objects.update(created_at=timezone.now() - timedelta(hours=25))

        for use in (rest.queryset, lambda: rest.looked_at(frozenset())):
            with pytest.raises(Outdated, match="The list of keys is older than a day"):
                use()
        assert Selection.of_filter({LISTED: list_filter(used)}).count == 1
        KeyList.objects.update(created_at=timezone.now() - timedelta(hours=49))
        new = named("PAY-2")
        assert set(KeyList.objects.values_list("pk", flat=True)) == {used.pk, new.pk}
        assert set(ListedKey.objects.values_list("list", flat=True)) == {used.pk, new.pk}

    def test_an_exclusion_whose_key_list_was_deleted_is_refused(self) -> None:
        record(key="PAY-1")
        record(key="PAY-2")
        rest = Selection.of_filter({}).leaving_out(list_filter(named("PAY-1")))
        ListedKey.objects.all().delete()
        KeyList.objects.all().delete()

        with pytest.raises(Outdated):
            requeue_run(rest)

    def test_purging_an_action_deletes_its_key_list(self) -> None:
        record(key="PAY-1")
        discard_messages(only("PAY-1"))
        KeyList.objects.update(created_at=timezone.now() - timedelta(days=400))
        purge_audit(ANN, older_than=timedelta(0), dry=False)

        assert not KeyList.objects.exists()
        assert not ListedKey.objects.exists()

    def test_a_key_list_keeps_its_order(self) -> None:
        keys = ["b", "a", "c"]

        assert keys_of(store(keys, ANN).pk) == keys
        places = ListedKey.objects.order_by("pk").values_list("place", flat=True)
        assert all(one < other for one, other in pairwise(places))


def test_each_key_of_a_long_list_is_looked_for_elsewhere_although_one_names_thousands() -> None:
    """PostgreSQL was asked for all keys at once, and for 1,000 names: of 1,500 payments it found 1,000."""
    now, keys = timezone.now(), [f"PAY-{number}" for number in range(1500)]
    gone = {"folded": folded("CUST-1"), "value": "CUST-1", "deleted_at": now}
    FormerName.objects.bulk_create(
        [FormerName(**gone) for _ in range(9000)]
        + [FormerName(folded=folded(key), value=key, deleted_at=now) for key in keys]
    )
    AttemptName.objects.bulk_create(
        AttemptName(identity=f"message:{key}", folded=folded(key), value=key, at=now) for key in keys
    )
    facts: dict[str, Any] = {"queue": "work", "number": 2, "seconds": 1, "pid": 7, "started_at": now, "verdict": "ack"}
    Attempt.objects.bulk_create(Attempt(identity=f"message:{key}", message_id=key, **facts) for key in keys)
    known = places_of(["CUST-1", *keys], [Room.GONE, Room.RETRIES])

    rooms = {key: sorted(one.room.name for one in known.found.get(key, ())) for key in keys}
    assert rooms == {key: ["GONE", "RETRIES"] for key in keys}
    assert known.found["CUST-1"]
    assert known.cut


def test_a_search_whose_beginning_too_many_names_have_says_that_there_are_more() -> None:
    values = [f"PAY-{number}" for number in range(1001)]
    FormerName.objects.bulk_create(
        FormerName(folded=folded(one), value=one, deleted_at=timezone.now()) for one in values
    )

    assert elsewhere("pay-", [Room.GONE]).cut
    assert not elsewhere("pay-1000", [Room.GONE]).cut
