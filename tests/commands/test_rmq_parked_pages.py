"""A list of a million is walked a page at a time."""

import json
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.models import ParkedMessage
from tests.commands.running import Terminal, run
from tests.operators.made import record

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def seven() -> list[int]:
    """Their numbers, the latest first; four of them were parked in one moment."""
    moment = timezone.now() - timedelta(minutes=5)
    times: list[datetime] = [moment + timedelta(seconds=place) for place in (0, 1, 1, 1, 1, 2, 3)]
    return [record(parked_at=at).pk for at in times][::-1]


def walked(*words: str) -> list[list[int]]:
    """The pages as a script walks them."""
    found: list[list[int]] = []
    place: tuple[str, ...] = ()
    while True:
        told = run("rmq_parked", "list", "--json", *words, *place).data
        found.append([one["id"] for one in told["items"]])
        if told["next"] is None:
            return found
        place = ("--after", told["next"])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_each_message_is_on_exactly_one_page(size: int, seven: list[int]) -> None:
    assert walked("--limit", str(size)) == [seven[start : start + size] for start in range(0, 7, size)]


def test_deleted_or_newly_parked_messages_do_not_shift_the_pages(seven: list[int]) -> None:
    first = run("rmq_parked", "list", "--json", "--limit", "3").data
    ParkedMessage.objects.get(pk=seven[2]).delete()
    ParkedMessage.objects.filter(pk=seven[3]).update(parked_at=timezone.now())
    record(parked_at=timezone.now())
    second = run("rmq_parked", "list", "--json", "--limit", "3", "--after", first["next"]).data

    assert [one["id"] for one in second["items"]] == seven[4:7]


def test_a_limited_list_names_the_option_for_its_next_page(seven: list[int]) -> None:
    told = run("rmq_parked", "list", "--limit", "2", out=Terminal())
    place = told.err.split("--after ")[1].strip()

    assert told.err.startswith(f"2 of 7 messages. For more, raise --limit or pass --after {seven[1]}@")
    assert [line[0] for line in run("rmq_parked", "list", "--after", place).lines[1:]] == [
        str(one) for one in seven[2:]
    ]
    assert run("rmq_parked", "list", "--after", f"#{seven[1]}", "--jsonl").out.count("\n") == 5


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--after 999999", 6),
        ("--after x", 2),
        ("--after 5@yesterday", 2),
        ("--after 5@2026-11-21T03:00", 2),
        ("--after 5@2000-01-01T00:00Z", 6),
    ],
)
def test_an_invalid_page_position_is_refused(words: str, code: int, seven: list[int]) -> None:  # noqa: ARG001
    assert run("rmq_parked", "list", *words.split()).code == code


@pytest.mark.parametrize("words", ["list", "groups", "requeue-runs"])
def test_a_limit_below_1_is_refused(words: str) -> None:
    for limit in ("0", "-1", "x"):
        assert run("rmq_parked", words, f"--limit={limit}").code != 0


def test_json_lines_are_read_by_page_and_without_bodies(seven: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.parked.selection.PAGE_MESSAGES", 2)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        told = run("rmq_parked", "list", "--jsonl")
    read = [one["sql"] for one in asked.captured_queries if "error_text" in one["sql"]]

    assert [json.loads(line)["id"] for line in told.out.splitlines()] == seven
    assert (len(read), [sql for sql in read if "LIMIT 2" not in sql or "body" in sql]) == (4, [])


def test_json_lines_can_be_limited(seven: list[int]) -> None:
    told = run("rmq_parked", "list", "--jsonl", "--limit", "3")

    assert [json.loads(line)["id"] for line in told.out.splitlines()] == seven[:3]
