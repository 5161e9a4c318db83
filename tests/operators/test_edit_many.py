"""One change for many messages: each result is exact, what does not fit is named, and nothing is half done."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC
from random import Random
from typing import Any

import pytest

from django_rmq_retry import handler
from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.messages import decode_properties
from django_rmq_retry.messages.json_fields import Path, path_text
from django_rmq_retry.models import MessageVersion, OperatorAction, ParkedMessage, State
from django_rmq_retry.parked import edit_many
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.edit_many import Act, EditResult, PathChange, results_of, store_many
from django_rmq_retry.parked.operators import NothingChosen, Refused
from django_rmq_retry.parked.selection import Selection
from tests.operators.json_texts import SEEDS, body
from tests.operators.made import ANN, again, record

pytestmark = pytest.mark.django_db
COMMA = PathChange(path="amount", act=Act.REPLACE, find=",", value=".", number=True)


@pytest.fixture(autouse=True)
def editing_allowed(settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"EDITABLE": {"payment.*": True}}}


def payment(body: str = '{"amount": "8,50"}', **fields: Any) -> ParkedMessage:
    return record(**{"type": "payment.card", "body": body.encode(), "content_type": "application/json", **fields})


def result(one: ParkedMessage, change: PathChange) -> EditResult:
    return results_of(Selection.of_ids([one.pk]), change)[0]


def stored(some: Sequence[ParkedMessage], change: PathChange = COMMA, **more: Any) -> edit_many.EditsStored:
    return store_many(change, ANN, revisions={one.pk: one.revision for one in some}, **{"reason": "comma", **more})


@pytest.mark.parametrize(
    ("body", "change", "after"),
    [
        ('{"amount":"8,50" ,"id":1e40}', COMMA, '{"amount":8.50 ,"id":1e40}'),
        ('{"a": [1, {"p": 2.0}]}', PathChange(path="a[1].p", act=Act.SET, value="2.00"), '{"a": [1, {"p": 2.00}]}'),
        ('{"a": 1, "b": 2}', PathChange(path="b", act=Act.REMOVE), '{"a": 1}'),
        ('{"a": 1, "b": 2}', PathChange(path="a", act=Act.REMOVE), '{"b": 2}'),
        ('{"a": {"b": []}}', PathChange(path="a.b", act=Act.REMOVE), '{"a": {}}'),
        ("[1, 2, 3]", PathChange(path="[1]", act=Act.REMOVE), "[1, 3]"),
        ('{"a": "x y"}', PathChange(path="a", act=Act.REPLACE, find="x", value='"é'), '{"a": "\\"é y"}'),
        ('{"a": "8.50"}', PathChange(path="a", act=Act.REPLACE, number=True), '{"a": 8.50}'),
    ],
)  # fmt: skip
def test_a_change_keeps_all_other_characters(body: str, change: PathChange, after: str) -> None:
    proposal = result(payment(body), change).proposal

    assert proposal is not None
    assert proposal.body.decode() == after


Tree = tuple[str, Any]
"""A kind, and its literal or its entries."""


def tree(text: str) -> Tree:
    """Return a JSON text as Python's own parser reads it, with names that occur twice and numbers digit by digit."""

    def number(literal: str) -> Tree:
        return "number", literal

    def value(one: Any) -> Tree:
        if isinstance(one, list):
            return "array", [(place, value(each)) for place, each in enumerate(one)]
        return one if isinstance(one, tuple) else ("scalar", one)

    def pairs(some: list[tuple[str, Any]]) -> Tree:
        return "object", [(name, value(one)) for name, one in some]

    return value(json.loads(text, object_pairs_hook=pairs, parse_int=number, parse_float=number))


def paths(one: Tree, path: Path = ()) -> Iterator[Path]:
    if one[0] in ("object", "array"):
        for step, inner in one[1]:
            yield (*path, step)
            yield from paths(inner, (*path, step))


def with_changed(one: Tree, path: Path, to: Tree | None) -> Tree:
    """Return the tree with another value at a path that occurs once, or without it."""
    step, *rest = path
    entries: list[tuple[str | int, Tree | None]] = [
        (name, (with_changed(inner, tuple(rest), to) if rest else to) if name == step else inner)
        for name, inner in one[1]
    ]
    left = [(name, inner) for name, inner in entries if inner is not None]
    if one[0] == "array":
        left = [(place, inner) for place, (_name, inner) in enumerate(left)]
    return one[0], left


@pytest.mark.parametrize("act", [Act.SET, Act.REMOVE, Act.REPLACE])
def test_a_change_of_any_json_changes_its_path_and_keeps_every_other_byte(act: Act) -> None:
    tried = 0
    for seed in SEEDS:
        chance = Random(seed)
        text = body(chance)
        known = Counter(paths(tree(text)))
        if not known:
            continue
        path = chance.choice([*known])
        value = "07" if act == Act.REPLACE else chance.choice(("-0.10", '"\\u0041"', '{"x":[1.50]}'))
        fit = result(payment(text), PathChange(path=path_text(path), act=act, find="0", value=value))
        if known[path] > 1:
            assert "several times" in fit.why, seed
        if fit.proposal is None:
            assert fit.why, seed
            continue
        after, tried = fit.proposal.body.decode(), tried + 1
        assert fit.after == {Act.SET: value, Act.REMOVE: None}.get(act, fit.after), seed
        assert tree(after) == with_changed(tree(text), path, None if fit.after is None else tree(fit.after)), seed
        # One stretch is another one, or is gone with its name and a comma.
        old, new = (fit.before, fit.after) if fit.after else (" " * (len(text) - len(after)), "")
        places = [at for at in range(len(text)) if fit.after is None or text.startswith(old, at)]
        assert after in [text[:at] + new + text[at + len(old) :] for at in places], seed
    assert tried > 20


@pytest.mark.parametrize(
    ("fields", "change", "why"),
    [
        ({"body": b'{"sum": 1}'}, COMMA, "no such path"),
        ({"body": b'{"amount": "1,5", "amount": 2}'}, COMMA, "several times"),
        ({"body": b"amount=8,50", "content_type": ""}, COMMA, "not JSON"),
        ({"body": b"\xff"}, COMMA, "not text"),
        ({"body": b'{"amount": "eight,5"}'}, COMMA, "“eight.5” is not a number"),
        ({"body": b'{"amount": 8.50}'}, COMMA, "does not contain “,”"),
        ({"body": b'{"amount": null}'}, COMMA, "neither a text nor a number"),
        ({"body": b'{"amount": ' + b"[" * 200 + b"]" * 200 + b"}"}, COMMA, "nested too deeply"),
        ({"type": "refund"}, COMMA, "does not allow"),
        ({"state": State.DISCARDED}, COMMA, "open message"),
        ({"body": b'{"amount": 1}'}, PathChange(path="amount", act=Act.SET, value="1"), "Nothing was changed"),
        ({}, PathChange(path="headers.none", act=Act.REMOVE), "no such header"),
        ({"headers": {"x-a": "1"}}, PathChange(path="headers.x-a", act=Act.REMOVE), "cannot be changed"),
    ],
)
def test_a_message_that_does_not_fit_is_left_out_with_the_reason(
    fields: dict[str, Any], change: PathChange, why: str
) -> None:
    one = result(payment(**fields) if "body" not in fields else record(**{"type": "payment.card", **fields}), change)

    assert why in one.why
    assert one.proposal is None


@pytest.mark.parametrize(
    "change",
    [
        PathChange(path="", act=Act.SET, value="1"),
        PathChange(path="a..b", act=Act.SET, value="1"),
        PathChange(path="a", act="other"),
        PathChange(path="a", act=Act.REPLACE),
        PathChange(path="a", act=Act.SET, value="8,50"),
        PathChange(path="a", act=Act.SET, value="text"),
    ],
)
def test_a_change_that_means_nothing_is_refused(change: PathChange) -> None:
    one = payment()
    with pytest.raises(Refused):
        results_of(Selection.of_ids([one.pk]), change)
    with pytest.raises(Refused):
        stored([one], change)


def test_a_header_is_set_replaced_and_removed() -> None:
    one = payment(headers={"tenant": "north", "tries": 3})
    changes = (
        PathChange(path="headers.tenant", act=Act.REPLACE, find="nor", value="sou"),
        PathChange(path="headers.tries", act=Act.SET, value="4"),
    )
    for change in changes:
        stored([again(one)], change)
    headers = decode_properties(contents(again(one)).raw).headers
    stored([again(one)], PathChange(path="headers.tenant", act=Act.REMOVE))

    assert dict(headers) == {"tenant": "south", "tries": 4}
    assert dict(decode_properties(contents(again(one)).raw).headers) == {"tries": 4}


def test_all_are_stored_with_one_act_that_names_each() -> None:
    some = [payment(f'{{"amount": "{number},50"}}') for number in range(12)]
    done = stored(some)
    act = OperatorAction.objects.get()

    assert [contents(again(one)).body for one in some] == [f'{{"amount": {n}.50}}'.encode() for n in range(12)]
    assert (done.edited, act.count, act.reason) == (12, 12, "comma")
    assert act.facts["change"] == {"path": "amount", "act": "replace", "find": ",", "value": ".", "number": True}
    assert {one.number for one in MessageVersion.objects.all()} == {2}
    found = Selection.of_filter({"edited_at": done.at.isoformat()})
    assert set(found.queryset().values_list("pk", flat=True)) == {one.pk for one in some}
    assert found.subject == f"edited at {done.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def test_a_message_that_somebody_else_edited_meanwhile_is_left_out_and_named() -> None:
    mine, other = payment(), payment()
    store(other.pk, ANN, propose(other, text='{"amount": 1}'), version=1, reason="x")
    done = stored([mine, other])

    assert (done.edited, [(one.message.pk, one.why) for one in done.left]) == (
        1,
        [(other.pk, "It has changed meanwhile.")],
    )
    assert contents(again(other)).body == b'{"amount": 1}'
    with pytest.raises(NothingChosen):
        stored([other])


def test_results_are_sorted_by_name_and_one_that_is_edited_and_left_out_is_not_sent_with_the_others() -> None:
    """BAD-5 came before BAD-4; of an edited one the preview said only that it has no comma."""
    some = [payment(business_key=f"BAD-{number}") for number in (10, 5, 4)]
    store(some[1].pk, ANN, propose(some[1], text='{"amount": 8.50}'), version=1, reason="comma")
    shown = results_of(Selection.of_ids([one.pk for one in some]), COMMA)

    assert [str(one.message) for one in shown] == ["BAD-4", "BAD-5", "BAD-10"]
    assert "does not contain “,”. It is edited already, but not sent; the requeue after this edit" in shown[1].why


def test_a_kill_in_the_middle_edits_none_and_the_same_can_be_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [payment(), payment()]

    def killed(*_args: object, **_words: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(edit_many, "log_action", killed)
        with pytest.raises(KeyboardInterrupt):
            stored(some)
    left = [again(one).version for one in some], MessageVersion.objects.count()

    assert left == ([1, 1], 0)
    assert stored(some).edited == 2


def test_what_the_handler_cannot_read_is_left_out() -> None:
    class Amounts:
        content_type = "application/json"

        def encode(self, data: object) -> bytes:
            return b""

        def decode(self, body: bytes, properties: object = None) -> object:
            raise UndecodableBody("amount is no number", size=len(body))

    @handler("typed.many", codec=Amounts())
    def book(message: object) -> None:
        """Nothing."""

    assert "amount is no number" in result(payment(queue="typed.many", handler=""), COMMA).why


def test_more_than_the_most_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_many, "MOST_EDITED", 1)
    some = [payment(), payment()]
    with pytest.raises(Refused, match="At most 1 messages"):
        results_of(Selection.of_ids([one.pk for one in some]), COMMA)


def test_an_edit_of_many_needs_a_reason_and_hides_confidential_values_in_the_audit_log() -> None:
    one = payment('{"pan": "4111"}')
    change = PathChange(path="pan", act=Act.SET, value='"4222"')
    with pytest.raises(Refused, match="Enter the reason"):
        stored([one], change, reason=" ")
    stored([one], change)

    assert "4222" not in str(OperatorAction.objects.get().facts)
