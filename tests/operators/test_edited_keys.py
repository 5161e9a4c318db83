"""Edits that change a business key: no payment is made twice by them unnoticed, and both keys find the message."""

import json
from typing import Any

import pytest

from django_rmq_retry import Delivery, handler
from django_rmq_retry.models import OperatorAction, ParkedMessage, State
from django_rmq_retry.parked.approvals import approve
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.edit_many import Act, PathChange, others_of, results_of, store_many
from django_rmq_retry.parked.edited_keys import KeyTaken, key_change_in, others_with
from django_rmq_retry.parked.selection import Selection
from tests.admin.made import person
from tests.operators.made import ANN, again, discard_messages, record
from tests.operators.second_person import MAY, actor_of, asked, needing_second_person

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def booking(settings: Any) -> None:
    """Its payments have a reference and a customer."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}

    @handler("payments.book", keys=lambda message: [message.data["reference"], *message.data.get("customer", ())])
    def book(message: Delivery) -> None:
        """Nothing."""


def payment(reference: str, customer: str = "", **fields: Any) -> ParkedMessage:
    keys = [reference, *[customer] * bool(customer)]
    body = text(reference, customer).encode()
    return record(queue="payments.book", content_type="application/json", body=body, key=reference, keys=keys, **fields)


def text(reference: str, customer: str = "") -> str:
    return json.dumps({"reference": reference, **({"customer": [customer]} if customer else {})})


def found(word: str) -> list[int]:
    return sorted(Selection.of_filter({"search": word}).queryset().values_list("pk", flat=True))


def test_an_edit_to_the_key_of_another_message_is_stored_only_if_the_operator_knows_that_message() -> None:
    paid, one = payment("PAY-1", state=State.PROCESSED), payment("PAY-2")
    edit = propose(one, text=text("PAY-1"))
    taken = others_with({one.pk: edit.keys})

    with pytest.raises(KeyTaken, match="another message has the new business key already"):
        store(one.pk, ANN, edit, version=1, reason="typing error")
    assert again(one).version == 1
    store(one.pk, ANN, edit, version=1, reason="typing error", known=taken.mark)

    assert (str(edit.keys), taken.keys, taken.states) == ("PAY-2 → PAY-1", {paid.pk: ["PAY-1"]}, {paid.pk: "processed"})
    assert again(one).version == 2


def test_other_messages_of_the_same_customer_are_no_messages_to_know() -> None:
    """Only the first key names a payment: who has to tick at every repair no longer reads what is ticked."""
    payment("PAY-1", "C-7", state=State.PROCESSED)
    one = record(queue="payments.book", content_type="application/json", body=b"{}")
    edit = propose(one, text=text("PAY-2", "C-7"))
    store(one.pk, ANN, edit, version=1, reason="unreadable")

    assert str(edit.keys) == "- → PAY-2, C-7"
    assert len(others_with({one.pk: edit.keys})) == 0
    assert again(one).version == 2


def test_what_an_operator_knows_of_another_message_is_void_when_that_changes() -> None:
    other, one = payment("PAY-1"), payment("PAY-2")
    edit = propose(one, text=text("PAY-1"))
    known = others_with({one.pk: edit.keys}).mark
    discard_messages([other.pk])

    with pytest.raises(KeyTaken):
        store(one.pk, ANN, edit, version=1, reason="typing error", known=known)


def test_a_message_is_found_by_its_key_before_and_after_an_edit_and_shown_by_the_new_one() -> None:
    one = payment("PAY-2", "C-7")
    store(one.pk, ANN, propose(one, text=text("PAY-3", "C-7")), version=1, reason="typing error")
    act = OperatorAction.objects.get()

    assert (found("PAY-2"), found("PAY-3"), found("C-7")) == ([one.pk],) * 3
    assert str(again(one)) == "PAY-3"
    assert [*one.keys.order_by("pk").values_list("value", flat=True)] == ["PAY-3", "C-7", "PAY-2"]
    assert str(key_change_in(act.details, one.pk)) == "PAY-2, C-7 → PAY-3, C-7"
    assert key_change_in(act.details, one.pk + 1) is None


def test_a_message_that_an_edit_leaves_without_a_key_keeps_its_name() -> None:
    one = payment("PAY-2")
    edit = propose(one, text='{"amount": 1}')
    store(one.pk, ANN, edit, version=1, reason="x")

    assert str(edit.keys) == "PAY-2 → -"
    assert (str(again(one)), found("PAY-2")) == ("PAY-2", [one.pk])


def test_an_edit_back_to_the_first_key_is_no_edit_to_the_key_of_another_message() -> None:
    one = payment("PAY-2")
    store(one.pk, ANN, propose(one, text=text("PAY-3")), version=1, reason="x")
    edit = propose(again(one), text=text("PAY-2"))
    store(one.pk, ANN, edit, version=2, reason="x")

    assert str(again(one)) == "PAY-2"


def test_one_change_gives_no_two_messages_the_same_first_key() -> None:
    some = [payment(f"PAY-{number}") for number in (1, 2, 3)]
    some.append(payment("PAY-4", "C-1"))
    change = PathChange(path="reference", act=Act.SET, value='"PAY-9"')
    shown = results_of(Selection.of_ids([one.pk for one in some]), change)
    alone = results_of(Selection.of_ids([some[0].pk]), change)

    assert {one.why for one in shown} == {"Several of these messages would get the business key PAY-9."}
    assert [one.why for one in alone] == [""]


def test_one_change_may_give_several_messages_the_same_customer() -> None:
    some = [payment(f"PAY-{number}", f"C-{number}") for number in (1, 2)]
    change = PathChange(path="customer[0]", act=Act.SET, value='"C-9"')
    revisions = {one.pk: one.revision for one in some}
    store_many(change, ANN, revisions=revisions, reason="merged accounts")

    assert found("C-9") == sorted(revisions)
    assert {key_change_in(OperatorAction.objects.get().details, one.pk) for one in some} != {None}


def test_one_change_to_keys_of_other_messages_is_stored_only_if_the_operator_knows_them() -> None:
    paid, some = payment("A-1", state=State.PROCESSED), [payment("B-1"), payment("B-2")]
    change = PathChange(path="reference", act=Act.REPLACE, find="B", value="A")
    revisions = {one.pk: one.revision for one in some}
    taken = others_of(results_of(Selection.of_ids(revisions), change))

    with pytest.raises(KeyTaken):
        store_many(change, ANN, revisions=revisions, reason="x")
    done = store_many(change, ANN, revisions=revisions, reason="x", known=taken.mark)

    assert (taken.keys, done.edited) == ({paid.pk: ["A-1"]}, 2)
    assert [str(again(one)) for one in some] == ["A-1", "A-2"]


def test_a_second_person_approves_an_edit_to_a_known_key(settings: Any) -> None:
    needing_second_person(settings)
    ann, bob = (actor_of(person(name, *MAY)) for name in ("ann", "bob"))
    payment("PAY-1", state=State.PROCESSED)
    one = payment("PAY-2")
    edit = propose(one, text=text("PAY-1"))
    known = others_with({one.pk: edit.keys}).mark
    request = asked(lambda actor: store(one.pk, actor, edit, version=1, reason="x", known=known), ann)

    assert (approve(request.pk, bob).state, again(one).version) == ("done", 2)
