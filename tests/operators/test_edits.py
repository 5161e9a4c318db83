"""Edits: exact text in, exact bytes out, a difference to look at, and never another handler."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry import Delivery, handler
from django_rmq_retry.messages import Reason, decode_properties
from django_rmq_retry.models import OperatorAction, ParkedMessage, State
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.difference import DiffLine, Sign
from django_rmq_retry.parked.edit import HeaderKind, Proposal, editable, editable_text, propose, rows, store
from django_rmq_retry.parked.findings import report
from django_rmq_retry.parked.operators import Refused
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.selection import Selection
from tests.operators.made import ANN, again, record

pytestmark = pytest.mark.django_db
BODY = b'{"amount": 100.00, "id": 12345678901234567890}'


@pytest.fixture(autouse=True)
def editing_allowed(settings: Any) -> None:
    settings.RMQ_RETRY = {
        "URL": "amqp://127.0.0.1/",
        "OPERATORS": {"EDITABLE": {"payment.*": True, "payment.final": False}},
    }


def payment(**fields: Any) -> ParkedMessage:
    return record(**{"type": "payment.card", "body": BODY, "content_type": "application/json", **fields})


def edited(message: ParkedMessage, text: str = '{"amount": 7}', **more: Any) -> Proposal:
    return propose(message, text=text, **more)


def test_an_edit_is_stored_as_a_new_version_beside_the_original() -> None:
    one = payment()
    made = store(one.pk, ANN, edited(one, '{"amount": 11.00}'), version=1, reason="wrong amount")
    now = again(one)

    assert (made.number, bytes(made.body), made.by) == (2, b'{"amount": 11.00}', "ann")
    assert (now.version, bytes(now.body), now.state) == (2, BODY, State.PARKED)
    assert contents(now).body == b'{"amount": 11.00}'
    assert now.revision > one.revision


def test_an_edit_keeps_numbers_digit_by_digit() -> None:
    one = payment()
    made = edited(one, BODY.decode().replace("100.00", "1.10"))

    assert made.body == b'{"amount": 1.10, "id": 12345678901234567890}'
    assert made.problems == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,}', "Line 1, column "),
        ('{"a": NaN}', "NaN is not valid JSON"),
        ('{"a": -Infinity}', "-Infinity is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        (BODY.decode(), "Nothing was changed"),
    ],
)
def test_an_invalid_edit_is_not_stored(text: str, said: str) -> None:
    one = payment()
    made = edited(one, text)

    assert said in made.problems[0]
    with pytest.raises(Refused):
        store(one.pk, ANN, made, version=1, reason="x")


def test_a_duplicate_json_name_is_a_warning() -> None:
    made = edited(payment(), '{"a": 1, "a": 2}')

    assert (made.problems, made.warnings) == ((), ("These names occur twice in one object: a.",))


def test_an_edit_keeps_the_line_endings_of_the_original() -> None:
    one = payment(body=b'{\n"a": 1\n}')

    assert edited(one, '{\r\n"a": 2\r\n}').body == b'{\n"a": 2\n}'
    assert edited(payment(body=b"{\r\n}"), '{"a":\r\n1}').body == b'{"a":\r\n1}'


def test_the_difference_is_reported_line_by_line() -> None:
    made = edited(payment(body=b'{\n"a": 1,\n"b": 2\n}'), '{\n"a": 5,\n"b": 2\n}')
    signs = {"{": Sign.SAME, '  "a": 1,': Sign.GONE, '  "a": 5,': Sign.NEW, '  "b": 2': Sign.SAME, "}": Sign.SAME}

    assert made.difference == tuple(DiffLine(sign=sign, text=text) for text, sign in signs.items())
    assert made.difference[1].parts == (('  "a": ', False), ("1", True), (",", False))
    assert [(one.path, one.before, one.after) for one in made.paths] == [("a", "1", "5")]


def test_an_edited_message_is_no_longer_permanent_until_it_is_sent() -> None:
    one = payment(reason=Reason.PERMANENT)

    def sendable() -> tuple[int, int]:
        chosen = Selection.of_ids([one.pk]), Selection.of_filter({"state": [State.PARKED]})
        return report(chosen[0]).sendable, report(chosen[1]).sendable

    before = sendable()
    store(one.pk, ANN, edited(one), version=1, reason="x")
    after = sendable()
    run = start(Selection.of_ids([one.pk]), ANN)
    ParkedMessage.objects.update(requeued_at=timezone.now() + timedelta(seconds=5))

    assert (before, after, sendable()) == ((0, 0), (1, 1), (0, 0))
    assert (run.total, run.skipped) == (1, 0)


def test_sender_headers_can_be_edited_and_other_headers_keep_their_bytes() -> None:
    one = payment(headers={"tenant": "acme", "tries": 3, "flag": True, "deep": {"a": 1}})
    made = edited(one, headers={"tenant": "other", "tries": "4", "flag": None, "new": "x", "deep": "a = 1"})
    now = decode_properties(made.properties).headers

    assert made.problems == ()
    assert dict(now) == {"deep": {"a": 1}, "tenant": "other", "tries": 4, "new": "x"}
    assert made.headers == {"tenant": ("acme", "other"), "tries": ("3", "4"), "flag": ("true", ""), "new": ("", "x")}


@pytest.mark.parametrize("name", ["x-death", "rmq-retry-attempts", "CC", "kind", ""])
def test_headers_that_select_the_handler_cannot_be_edited(name: str) -> None:
    @handler("others", headers={"kind": "card"})
    def card(message: Delivery) -> None:
        """Nothing."""

    one = payment(headers={"kind": "card"})
    made = edited(one, headers={name: "cash"})

    assert made.problems == (f"The header {name!r} cannot be changed.",)
    assert {row.name: row.kind for row in rows(decode_properties(bytes(one.properties)).headers)} == {
        "kind": HeaderKind.ROUTING
    }


def test_an_edit_keeps_the_message_id_unless_a_new_one_is_given() -> None:
    one = payment()
    kept, new = edited(one), edited(one, new_id="fresh")

    assert decode_properties(kept.properties).message_id == one.message_id
    assert decode_properties(new.properties).message_id == "fresh"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "payment.final"}, "does not allow messages of “"),
        ({"type": "refund"}, "does not allow messages of “"),
        ({"state": State.REQUEUED}, "open message"),
        ({"body": b"\xff\xfe"}, "is not text"),
        ({"body": b"a\0b"}, "is not text"),
        ({"content_encoding": "gzip"}, "is not text"),
    ],
)
def test_only_open_text_messages_of_allowed_types_can_be_edited(fields: dict[str, Any], said: str) -> None:
    one = payment(**fields)

    assert said in editable(one)
    assert editable(payment()) == ""
    with pytest.raises(Refused):
        store(one.pk, ANN, edited(payment()), version=1, reason="x")


def test_an_edit_needs_a_reason_and_its_audit_row_is_masked() -> None:
    one = payment(body=b'{"pan": "4111222233334444", "amount": 1}')
    made = edited(one, '{"pan": "4222", "amount": 2}')
    with pytest.raises(Refused, match="Enter the reason for the edit"):
        store(one.pk, ANN, made, version=1, reason=" ")
    store(one.pk, ANN, made, version=1, reason="wrong amount")
    facts: Any = OperatorAction.objects.get().facts

    assert facts["difference"] == ['-{"pan": "•••", "amount": 1}', '+{"pan": "•••", "amount": 2}']
    assert "4111222233334444" not in str(facts)


def test_the_text_of_an_edited_message_is_its_latest_version() -> None:
    one = payment()
    store(one.pk, ANN, edited(one, '{"a": 1}'), version=1, reason="x")

    assert editable_text(again(one)) == '{"a": 1}'
