"""Edits of JSON that a form shows laid out: what is not edited keeps every byte."""

import re
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from django_rmq_retry import CeleryTask, Delivery, handler
from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.messages.json_fields import differing, path_of, path_text, rejoined
from django_rmq_retry.messages.masking import tokens
from django_rmq_retry.parked.edit import laid_out, propose, typed_text
from tests.operators.json_texts import SEEDS, body
from tests.operators.made import record


def test_a_body_that_is_shown_and_sent_back_keeps_every_character() -> None:
    for seed in SEEDS:
        text = body(Random(seed))
        # A browser has its own line ends.
        assert rejoined(text, (laid_out(text) or "").replace("\n", "\r\n")) == text


def test_one_changed_value_changes_only_its_characters() -> None:
    for seed in SEEDS:
        text = body(Random(seed))
        values = [one for one in tokens(text) if one[0] not in "{}[],:" and text[one[2] :].lstrip()[:1] != ":"]
        for _word, start, stop in values:
            wanted = f"{text[:start]}123.4500{text[stop:]}"
            assert rejoined(text, laid_out(wanted) or "") == wanted


def test_any_other_text_arrives_with_all_its_tokens() -> None:
    for seed in SEEDS:
        other = body(Random(-seed - 1))
        made = rejoined(body(Random(seed)), other)
        assert [word for word, *_rest in tokens(made)] == [word for word, *_rest in tokens(other)]


@pytest.mark.parametrize(
    ("before", "typed", "after"),
    [
        ('{"a":1, "b":2}', '{\n  "b": 2\n}', '{"b":2}'),
        ('{"a":1, "b":2}', '{"a": 1, "c": {"x": 1.10}, "b": 2}', '{"a":1, "c":{"x":1.10}, "b":2}'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', '{"a":1,"b":2,"c":3}', '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}\n'),
        ("[1,  2,3]", "[1,2]", "[1,  2]"),
        ("{}", '{"a": 1}', '{"a":1}'),
    ],
)
def test_an_inserted_or_removed_value_leaves_the_others_as_they_are(before: str, typed: str, after: str) -> None:
    assert rejoined(before, typed) == after


@pytest.mark.parametrize("path", ["amount", "items[0].price", '"a.b".c', "[0]", "a[0][1]"])
def test_a_path_is_read_as_it_is_written(path: str) -> None:
    assert path_text(path_of(path)) == path


@pytest.mark.parametrize("path", ['a["x"]', "a..b", ".a", "a b", "a.[0]", "a[x]"])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=re.escape(path)):
        path_of(path)


def test_differences_are_listed_by_path() -> None:
    before = '{"amount": "8,50", "items": [{"price": 1.0}, 2], "gone": {}, "x": 1, "x": 2}'
    after = '{"amount": 8.50, "items": [{"price": 1.00}, 2], "x": 1, "x": 3, "new": null}'

    assert differing(before, after) == [
        ("amount", '"8,50"', "8.50"),
        ("items[0].price", "1.0", "1.00"),
        ("gone", "{}", None),
        ("x", "2", "3"),
        ("new", None, "null"),
    ]


@pytest.fixture
def allowed(settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"EDITABLE": {"*": True}}}


@pytest.mark.django_db
@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    "body",
    [b"plain", b"[" * 10_000 + b"]" * 10_000, b'{"a": NaN}', b'{"a": "x\ny"}', b'\xef\xbb\xbf{"a": 1}', b"", b'"x"'],
    ids=["text", "deep", "nan", "line end", "bom", "empty", "scalar"],
)
def test_what_cannot_be_laid_out_is_edited_as_it_is(body: bytes) -> None:
    one = record(body=body)

    assert laid_out(body.decode()) is None
    assert typed_text(one, "other\r\ntext") == "other\r\ntext"


@pytest.mark.django_db
@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("rows", [4_000, 100_000], ids=["laid out", "3 MB"])
def test_a_large_body_comes_back_as_it_was(rows: int) -> None:
    body = '{"rows":[' + ",".join(f'{{"id":{number},"amount":{number}.10}}' for number in range(rows)) + "]}"
    one = record(body=body.encode())
    shown = laid_out(body) or body
    changed = shown.replace("3777.10", "1e5")

    assert (shown == body) is (rows == 100_000)
    assert propose(one, text=typed_text(one, shown)).problems == ("Nothing was changed.",)
    made = propose(one, text=typed_text(one, changed))
    assert made.body == body.replace("3777.10", "1e5").encode()
    found = [(one.path, one.before, one.after) for one in made.paths]
    assert found == ([("rows[3777].amount", "3777.10", "1e5")] if rows == 4_000 else [])


@dataclass
class Amount:
    amount: Decimal


@pytest.mark.django_db
@pytest.mark.usefixtures("allowed")
def test_an_edit_that_does_not_fit_the_handlers_type_is_said_with_its_path() -> None:
    @handler("typed.amounts")
    def book(message: Delivery[Amount]) -> None:
        """Nothing."""

    one = record(body=b'{"amount": null}', queue="typed.amounts", handler="")
    wrong, right = propose(one, text='{"amount": "8,50"}'), propose(one, text='{"amount": "8.50"}')

    assert "does not fit Amount: $.amount: Invalid decimal string" in wrong.unread
    assert [(one.path, one.problem) for one in wrong.paths] == [("amount", "Invalid decimal string")]
    assert (right.unread, [one.problem for one in right.paths]) == ("", [""])


@pytest.mark.django_db
@pytest.mark.usefixtures("allowed")
def test_a_body_that_the_handler_cannot_read_is_said() -> None:
    class Amounts:
        content_type = "application/json"

        def encode(self, data: object) -> bytes:
            return b""

        def decode(self, body: bytes, properties: object = None) -> object:
            if b'"' in body.partition(b":")[2]:
                raise UndecodableBody("amount is no number", size=len(body))
            return None

    @handler("typed.amounts", codec=Amounts())
    def book(message: object) -> None:
        """Nothing."""

    one = record(body=b'{"amount": "8,50"}', queue="typed.amounts", handler="")
    wrong, right = propose(one, text='{"amount": "8.50"}'), propose(one, text='{"amount": 8.50}')

    assert "amount is no number" in wrong.unread
    assert right.unread == ""


@pytest.mark.django_db
@pytest.mark.usefixtures("allowed")
def test_edited_arguments_of_a_celery_task_are_read_as_its_handler_reads_them() -> None:
    @handler("celery", codec=CeleryTask())
    def charge(message: object) -> None:
        """Nothing."""

    task = Properties(headers=Headers.of({"task": "bank.charge", "id": "task-1"}), content_encoding="utf-8")
    one = record(body=b"[[7], {}, {}]", queue="celery", handler="", properties=encode_properties(task))
    wrong, right = propose(one, text="[7, {}, {}]"), propose(one, text="[[8], {}, {}]")

    assert "the 'args' of the Celery message is int, not list" in wrong.unread
    assert (right.unread, right.body) == ("", b"[[8], {}, {}]")
