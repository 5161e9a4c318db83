"""The broker's x-death header, and the few of its values that are trusted."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.messages import Headers, Reason
from django_rmq_retry.messages.deaths import (
    MOST_DEATHS_BYTES,
    Death,
    deaths,
    deaths_as_text,
    reason_of,
    rejections,
    returns,
    well_formed,
)
from django_rmq_retry.policies.carriers import dead_letter

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["queue", "reason", "count", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def with_death(*entries: Any) -> Headers:
    return Headers.of({"x-death": list(entries)})


def death(queue: str, reason: str, count: int = 1) -> dict[str, object]:
    return {"count": count, "reason": reason, "queue": queue, "exchange": "main", "routing-keys": ["pay", "cash"]}


def test_an_x_death_entry_is_read_with_all_its_fields() -> None:
    assert deaths(with_death(death("payments", "rejected", 3))) == (
        Death(queue="payments", reason="rejected", count=3, exchange="main", keys=("pay", "cash")),
    )


def test_only_rejections_of_the_queue_asked_for_count() -> None:
    headers = with_death(
        death("payments.wait", "expired", 3), death("payments", "rejected", 2), death("ledger", "rejected", 9)
    )

    assert rejections(headers, "payments") == 2
    assert rejections(headers, "payments.wait") == 0
    assert rejections(headers, "other") == 0


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("expired", Reason.EXPIRED),
        ("delivery_limit", Reason.DELIVERY_LIMIT),
        ("maxlen", Reason.OVERFLOWN),
        ("rejected", Reason.REJECTED),
        ("something new", Reason.REJECTED),
    ],
)
def test_the_first_x_death_entry_gives_the_reason(reason: str, expected: Reason) -> None:
    assert reason_of(with_death(death("payments", reason), death("payments.wait", "expired"))) is expected


def test_without_x_death_there_is_no_reason() -> None:
    assert reason_of(Headers()) is None
    assert well_formed(Headers())
    assert deaths(Headers()) == ()


@given(JUNK)
def test_a_malformed_x_death_raises_nothing_and_counts_nothing(value: object) -> None:
    headers = Headers.of({"x-death": value})

    assert rejections(headers, "payments") >= 0
    if not well_formed(headers):
        assert deaths(headers) == ()


@pytest.mark.parametrize("name", ["queue", "reason", "count"])
def test_names_may_be_those_of_the_fields_of_an_x_death_entry(name: str) -> None:
    headers = with_death(death(name, "rejected", 3), {**death(name, "expired"), "routing-keys": [name]})

    assert rejections(headers, name) == 3


@pytest.mark.parametrize("field", ["queue", "reason", "count"])
def test_a_field_that_an_x_death_entry_has_twice_makes_it_malformed(field: str) -> None:
    entry = death("payments", "rejected")
    table = Headers.of(entry).raw + Headers.of({field: entry[field]}).raw
    array = b"F" + len(table).to_bytes(4) + table

    assert not well_formed(Headers(b"\7x-deathA" + len(array).to_bytes(4) + array))


def test_one_malformed_x_death_entry_invalidates_all() -> None:
    headers = with_death(death("payments", "rejected"), {"queue": "payments"})

    assert not well_formed(headers)
    assert rejections(headers, "payments") == 0


@pytest.mark.parametrize(
    ("headers", "redelivered", "count"),
    [
        ({}, True, 0),
        ({"x-delivery-count": 3}, True, 3),
        ({"x-delivery-count": 50}, False, 0),
        ({"x-delivery-count": 3, "x-acquired-count": 9}, True, 3),
        ({"x-delivery-count": 9, "x-acquired-count": 3}, True, 3),
        ({"x-acquired-count": 4}, True, 4),
        ({"x-delivery-count": "3"}, True, 0),
    ],
)
def test_delivery_counts_are_trusted_only_on_a_redelivery(
    headers: dict[str, object], redelivered: bool, count: int
) -> None:
    assert returns(Headers.of(headers), redelivered=redelivered) == count


def test_safe_dead_lettering_sets_at_least_once_and_reject_publish() -> None:
    assert dead_letter("retry") == {"x-dead-letter-exchange": "retry"}
    assert dead_letter("", "payments", safe=True) == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def test_deaths_as_text_is_json_for_people() -> None:
    at = datetime(2026, 11, 26, 12, tzinfo=UTC)
    headers = with_death({**death("payments", "rejected", 3), "exchange": "bank", "routing-keys": ["cash"], "time": at})

    assert json.loads(deaths_as_text(headers)) == [
        {
            "queue": "payments",
            "reason": "rejected",
            "count": 3,
            "exchange": "bank",
            "routing-keys": ["cash"],
            "time": "2026-11-26T12:00:00+00:00",
        }
    ]


@pytest.mark.parametrize("entry", ["text", {"queue": 7}, {"queue": "q", "reason": "rejected", "count": -1}])
def test_a_death_that_no_broker_writes_has_no_text(entry: object) -> None:
    assert deaths_as_text(Headers.of({"x-death": [entry]})) == ""
    assert deaths_as_text(Headers()) == ""


TEXT = st.builds(
    lambda text, times: text * times,
    st.text(max_size=4) | st.sampled_from(["work", "\0", "\x01", '"', "\\", "\u2028", "ä", "💶"]),
    st.sampled_from([1, 1, 3, 60, 300, 5000]),
)
DEATH = st.fixed_dictionaries(
    {"queue": TEXT, "reason": TEXT, "count": st.integers(0, 2**63 - 1)},
    optional={
        "exchange": TEXT,
        "routing-keys": st.lists(TEXT, max_size=3) | st.just(["cash"] * 500),
        "time": st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - it takes a naive one
        "original-expiration": TEXT,
    },
)


@given(st.lists(DEATH, min_size=1, max_size=12))
def test_the_text_of_deaths_is_json_and_never_too_long(entries: list[dict[str, Any]]) -> None:
    headers = with_death(*entries)
    text = deaths_as_text(headers)
    rows = json.loads(text)

    assert len(text.encode("ascii")) <= MOST_DEATHS_BYTES
    assert 1 <= len(rows) <= len(entries)
    assert [row["count"] for row in rows] == [entry["count"] for entry in entries[: len(rows)]]
    # All but a newest one that is cut are whole.
    assert [row["queue"] for row in rows[1:]] == [one.queue for one in deaths(headers)[1 : len(rows)]]


@pytest.mark.parametrize("count", range(1, 2 * MOST_DEATHS_BYTES, 397))
def test_the_separators_between_deaths_count_towards_the_limit(count: int) -> None:
    entries = [death("q", "expired", 10**9 + number) for number in range(99)]
    first = {**death("q", "expired"), "exchange": "x" * count}
    text = deaths_as_text(with_death(first, *entries))

    assert len(text) <= MOST_DEATHS_BYTES
    rows = json.loads(text)
    following = deaths_as_text(with_death(entries[len(rows) - 1]))[1:]
    assert len(f"{text[:-1]}, {following}") > MOST_DEATHS_BYTES


@pytest.mark.parametrize(
    ("newest", "shown"),
    [
        ({"exchange": "x" * 9000}, {"exchange": f"{'x' * 252}…"}),
        ({"routing-keys": ["cash"] * 999}, {"routing-keys": [*["cash"] * 20, "…"]}),
        ({"routing-keys": ["\x01" * 200] * 9}, {"routing-keys": ["\x01" * 97 + "…", "…"]}),
    ],
    ids=["text", "keys", "escaped"],
)
def test_a_newest_death_that_is_too_long_is_cut(newest: dict[str, object], shown: dict[str, object]) -> None:
    [row, *_] = json.loads(deaths_as_text(with_death({**death("payments", "rejected"), **newest})))

    assert {name: row[name] for name in shown} == shown
    assert (row["queue"], row["reason"], row["count"]) == ("payments", "rejected", 1)
