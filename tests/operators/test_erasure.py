"""What an erasure empties, what it keeps, and what it refuses: the audit log stays provable."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core import serializers
from django.db import connection
from django.utils import timezone

from django_rmq_retry.attempts.history import attempts_of
from django_rmq_retry.models import (
    Action,
    Attempt,
    AttemptName,
    BlockedKey,
    BusinessKey,
    EarlyRetry,
    FormerName,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    RequeueRun,
    State,
)
from django_rmq_retry.parked import erasure
from django_rmq_retry.parked.actions import discard, restore
from django_rmq_retry.parked.audit import audit_head, verify
from django_rmq_retry.parked.edit import editable, propose, store
from django_rmq_retry.parked.erasure import erase, traces
from django_rmq_retry.parked.key_lists import list_filter, look_up
from django_rmq_retry.parked.key_lists import store as store_keys
from django_rmq_retry.parked.operators import Actor, NothingChosen, Refused
from django_rmq_retry.parked.retention import delete_resolved
from django_rmq_retry.parked.selection import LISTED, Selection
from django_rmq_retry.parked.transfer import Payload, export
from tests.admin.made import attempt, properties
from tests.operators.invariants import check_books
from tests.operators.made import ANN, again, logged, record, requeue_run
from tests.parked.arrivals import DAWN, by_us
from tests.parked.arrivals import store as arrived

pytestmark = [pytest.mark.django_db, pytest.mark.database]
SECRET = "Zita Maier"
ERA = timedelta(days=1)
CUSTOMER, PAYMENT = "CUST-0211", "PAY-81"


@pytest.fixture(autouse=True)
def editing_allowed(settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"EDITABLE": {"*": True}}}


def payment(*keys: str, **fields: Any) -> ParkedMessage:
    """A parked payment of the customer, whose name is everywhere."""
    return record(
        **{
            "keys": keys or (PAYMENT, CUSTOMER),
            "business_key": (keys or (PAYMENT,))[0],
            "body": json.dumps({"name": SECRET, "customer": CUSTOMER}).encode(),
            "content_type": "application/json",
            "properties": properties({"customer": SECRET}),
            "error_text": f"no account of {SECRET}",
            "detail": f"Gave up: {SECRET}",
            "summary": f"1: {SECRET}",
            **fields,
        }
    )


def everything() -> str:
    """All that is stored, with the bytes of bodies and headers as text."""
    models: list[Any] = [*apps.get_app_config("rmq_retry").get_models(), LogEntry]
    rows = [row for model in models if model._meta.managed for row in model.objects.all()]
    stored: str = serializers.serialize("json", rows)
    bodies: list[Any] = [*ParkedMessage.objects.all(), *MessageVersion.objects.all()]
    return stored + "".join(f"{bytes(one.body)!r}{bytes(one.properties)!r}" for one in bodies)


def an_account() -> Actor:
    return Actor(name="ann", user_id=User.objects.create(username="ann").pk, source="admin")


def worked_on(one: ParkedMessage) -> None:
    """Whatever operators do with a message before it is resolved."""
    ann = an_account()
    attempt(one, 1, chain=[{"error": "X", "text": SECRET, "frames": []}], logs=SECRET, error_text=SECRET)
    edited = propose(one, text=json.dumps({"name": SECRET, "n": 1}), headers={"customer": f"{SECRET} 2"})
    store(one.pk, ann, edited, version=1, reason=f"as {SECRET} wrote")
    list(export(Selection.of_filter({"key": CUSTOMER}), ann, form="jsonl", payload=Payload.NONE))
    known = store_keys([PAYMENT], ann, look_up([PAYMENT]))
    chosen = Selection.of_filter({"state": ["parked"], LISTED: list_filter(known)})
    discard(chosen, ann, category="other", text=f"{SECRET} called")


def test_nothing_that_is_stored_names_the_customer_afterwards_and_the_log_verifies() -> None:
    one = payment()
    worked_on(one)
    head = audit_head()
    assert all(word in everything() for word in (SECRET, CUSTOMER, PAYMENT))
    done = erase([CUSTOMER], ANN, reason="request 12")

    assert [word for word in (SECRET, CUSTOMER, PAYMENT) if word in everything()] == []
    assert (done.messages, done.versions, done.attempts, done.actions, done.listed) == (1, 1, 1, 3, 1)
    assert list(verify(head)) == []
    check_books()


def test_ids_times_the_group_and_who_did_what_stay() -> None:
    one = payment(message_id="9f3c", correlation_id="c-1")
    worked_on(one)
    kept = ("pk", "message_id", "correlation_id", "group_id", "type", "queue", "handler", "error", "parked_at", "state")
    before = {name: getattr(again(one), name) for name in kept}
    erase([CUSTOMER], ANN, reason="request 12")
    after = again(one)

    assert {name: getattr(after, name) for name in kept} == before
    assert (after.erased_by, after.size, after.resolution) == ("ann", 0, "other")
    assert [one.number for one in attempts_of(after)] == [1]
    assert list(OperatorAction.objects.order_by("number").values_list("action", "actor_name", "message")) == [
        ("edit", "ann", one.pk), ("export", "ann", one.pk), ("discard", "ann", one.pk), ("erase", "ann", one.pk),
    ]  # fmt: skip
    last = OperatorAction.objects.get(action=Action.ERASE)
    assert (last.reason, last.facts) == ("request 12", {"keys": 2, "rows": "1-3"})


def test_a_message_that_was_never_parked_is_erased_by_any_of_its_keys() -> None:
    """It failed, and its retry handled it: only its attempts are left."""
    unparked: dict[str, Any] = {"identity": "message:9", "message_id": "9f3c", "error_text": SECRET, "logs": SECRET}
    attempt(payment(keys=("PAY-9",)), 1, **unparked)
    AttemptName.objects.create(identity="message:9", value=CUSTOMER, folded=CUSTOMER.lower(), at=timezone.now())
    done = erase([CUSTOMER], ANN, reason="request 12")

    assert done.attempts == 1
    assert [(row.error_text, row.message_id) for row in Attempt.objects.filter(identity="message:9")] == [("", "")]
    assert not AttemptName.objects.exists()


def test_the_texts_of_others_stay() -> None:
    branch = "BRANCH-7"
    one = payment(PAYMENT, CUSTOMER, branch, state=State.DISCARDED, resolved_at=timezone.now())
    other = record(keys=("PAY-99", branch), business_key="PAY-99", body=b"theirs")
    ann = an_account()
    discard(Selection.of_ids([other.pk]), ann, category="other", text=f"{branch} is closed")
    erase([CUSTOMER], ANN, reason="request 12")

    assert (bytes(again(one).body), bytes(again(other).body)) == (b"", b"theirs")
    assert set(other.keys.values_list("value", flat=True)) == {"PAY-99", branch}
    assert OperatorAction.objects.get(number=1).reason == f"other: {branch} is closed"


@pytest.mark.parametrize("state", [State.PARKED, State.ON_HOLD, State.REQUEUED, State.REQUEUEING])
def test_a_message_that_may_still_be_handled_is_not_erased(state: State) -> None:
    done = payment(state=State.PROCESSED, resolved_at=timezone.now())
    one = payment(state=state)
    with pytest.raises(Refused, match=f"1 message is open or requeued: #{one.pk}. Discard it, or wait"):
        erase([CUSTOMER], ANN, reason="request 12")

    assert SECRET.encode() in bytes(again(done).body)
    assert not OperatorAction.objects.exists()


def test_a_message_that_waits_behind_a_blocked_key_is_not_erased() -> None:
    payment(state=State.DISCARDED, resolved_at=timezone.now())
    BlockedKey.objects.create(
        handler="transfer", key=CUSTOMER, digest="d" * 64, queue="q", blocker="x", name="n", since=timezone.now()
    )
    with pytest.raises(Refused, match="An ordering key of transfer is blocked, and messages wait behind it"):
        erase([CUSTOMER], ANN, reason="request 12")


def test_a_reason_that_names_the_customer_is_refused() -> None:
    payment(state=State.DISCARDED, resolved_at=timezone.now())
    with pytest.raises(Refused, match="it must not contain what is erased"):
        erase([CUSTOMER], ANN, reason="cust-0211 asked for it")
    with pytest.raises(Refused, match="Enter the reason"):
        erase([CUSTOMER], ANN, reason=" ")


def test_nothing_under_a_key_is_said() -> None:
    with pytest.raises(NothingChosen, match="Nothing is stored about these keys"):
        erase(["CUST-9"], ANN, reason="request 12")

    assert not OperatorAction.objects.exists()


def test_an_erased_message_is_not_restored_edited_requeued_or_exported() -> None:
    one = payment(state=State.DISCARDED, resolved_at=timezone.now())
    erase([CUSTOMER], ANN, reason="request 12")
    left_out = requeue_run([one.pk]).items.get()
    assert (left_out.state, left_out.skip_code) == ("skipped", "resolved")
    assert editable(again(one)) == "Only an open message can be edited."
    done = restore(Selection.of_ids([one.pk]), ANN)
    with pytest.raises(Refused, match="The contents of these messages were erased"):
        list(export(Selection.of_ids([one.pk]), ANN, form="jsonl", payload=Payload.WHOLE))

    assert (done.changed, done.left, again(one).state) == (0, 1, State.DISCARDED)


def test_names_of_a_message_that_retention_has_deleted_are_erased() -> None:
    one = payment(message_id="9f3c")
    discard(Selection.of_ids([one.pk]), ANN, category="duplicate")
    delete_resolved(timezone.now() + ERA)
    erase([CUSTOMER], ANN, reason="request 12")

    assert set(FormerName.objects.values_list("value", "message")) >= {("", one.pk)}
    assert [word for word in (CUSTOMER,) if word in everything()] == []
    assert list(verify()) == []


def test_a_requeue_run_that_names_the_customer_forgets_it_when_it_has_ended() -> None:
    one = payment()
    run = requeue_run([one.pk], reason=f"for {CUSTOMER}")
    ParkedMessage.objects.filter(pk=one.pk).update(state=State.PROCESSED, resolved_at=timezone.now())
    with pytest.raises(Refused, match=f"Requeue run {run.pk} names one of these keys and has not ended"):
        erase([CUSTOMER], ANN, reason="request 12")
    RequeueRun.objects.update(state="finished")
    erase([CUSTOMER], ANN, reason="request 12")

    assert CUSTOMER not in everything()
    assert list(verify()) == []


def test_an_act_that_names_several_messages_by_their_keys_is_forgotten() -> None:
    """Of more keys than a column holds, none is cut where an erasure could not find it."""
    rows = [record(key=f"{PAYMENT}-{'x' * 15}-{number}", state=State.DISCARDED) for number in range(9)]
    restore(Selection.of_ids([row.pk for row in rows]), ANN)
    discard(Selection.of_ids([row.pk for row in rows]), ANN, category="duplicate")
    assert OperatorAction.objects.filter(subject__endswith="-6, …").count() == 2
    erase([rows[6].business_key], ANN, reason="request 5")

    assert [act.subject for act in OperatorAction.objects.order_by("number")] == ["", "", ""]
    assert list(verify()) == []


def test_an_unblocked_ordering_key_of_the_customer_is_forgotten() -> None:
    payment(state=State.DISCARDED, resolved_at=timezone.now())
    for key in (CUSTOMER, "CUST-1"):
        logged(Action.UNBLOCK, ANN, subject=f"transfer {key}", reason="booked", facts={"key": key})
    erase([CUSTOMER], ANN, reason="request 12")

    assert list(OperatorAction.objects.order_by("number").values_list("subject", flat=True)[:2]) == [
        "", "transfer CUST-1",
    ]  # fmt: skip
    assert list(verify()) == []


@pytest.mark.parametrize("ticketed", [False, True])
def test_a_copy_that_comes_later_is_another_message(*, ticketed: bool) -> None:
    arrived(by_us())
    one = ParkedMessage.objects.get()
    BusinessKey.objects.create(message=one, value=CUSTOMER)
    discard(Selection.of_ids([one.pk]), ANN, category="duplicate")
    erase([CUSTOMER], ANN, reason="request 12")
    arrived(by_us(at=DAWN + 10**9, ticket=(one.pk, 1) if ticketed else None))

    assert (again(one).state, bytes(again(one).body)) == (State.DISCARDED, b"")
    later = ParkedMessage.objects.exclude(pk=one.pk).get()
    assert (later.state, later.body != b"") == (State.PARKED, True)


def test_the_name_of_a_retry_that_was_sent_early_is_forgotten() -> None:
    one = payment(state=State.DISCARDED, resolved_at=timezone.now())
    run = requeue_run([record().pk])
    for identity in (one.identity, "message:other"):
        EarlyRetry.objects.create(run=run, identity=identity, shown=PAYMENT, sent_at=timezone.now())
    done = erase([CUSTOMER], ANN, reason="request 12")

    assert (done.early, set(EarlyRetry.objects.values_list("shown", flat=True))) == (2, {""})


def test_a_dry_run_counts_the_same_and_changes_nothing() -> None:
    worked_on(payment())
    before = everything()
    counted = traces([CUSTOMER])

    assert everything() == before
    assert counted == erase([CUSTOMER], ANN, reason="request 12")


def test_more_messages_than_one_transaction_takes_are_erased_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "ERASED_AT_ONCE", 2)
    for number in range(5):
        one = payment(f"PAY-{number}", CUSTOMER)
        discard(Selection.of_ids([one.pk]), ANN, category="duplicate", text=SECRET)
    done = erase([CUSTOMER], ANN, reason="request 12")

    assert (done.messages, done.actions) == (5, 5)
    assert [word for word in (SECRET, CUSTOMER, "PAY-") if word in everything()] == []
    assert OperatorAction.objects.filter(action=Action.ERASE).count() == 3
    check_books()


def test_an_erasure_that_fails_at_its_last_step_has_erased_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_on(payment())
    before = everything()

    def fails(*_: object, **_facts: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(erasure, "log_action", fails)
    with pytest.raises(InterruptedError):
        erase([CUSTOMER], ANN, reason="request 12")

    assert everything() == before


def test_texts_that_were_deleted_by_hand_are_reported() -> None:
    worked_on(payment())
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE rmq_retry_operatoraction SET subject = '', reason = '', facts = '{}', salt = '' WHERE number = 1"
        )
    assert list(verify()) == ["The texts of row 1 were deleted, and no erasure in the log names it."]


def test_texts_that_are_written_into_an_erased_row_are_reported() -> None:
    worked_on(payment())
    erase([CUSTOMER], ANN, reason="request 12")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE rmq_retry_operatoraction SET reason = 'forged' WHERE number = 1")

    assert list(verify()) == ["Row 1 was changed after it was written."]


def test_the_id_of_a_message_that_was_discarded_from_the_outbox_with_others_goes_too() -> None:
    kept, gone, numbers = (
        logged(Action.DISCARD, count=2, facts={"messages": names}) for names in (["9f3c-8", "9f3c-9"], ["Z-1"], "1-3")
    )
    erase(["Z-1"], ANN, reason="request 12")

    left = {row.pk: row.details for row in OperatorAction.objects.filter(pk__in=[kept.pk, gone.pk, numbers.pk])}
    assert left[gone.pk] == {}
    assert left[kept.pk]["messages"] == ["9f3c-8", "9f3c-9"]
    with pytest.raises(NothingChosen):
        erase(["1"], ANN, reason="request 13")


def test_a_key_that_is_a_number_is_not_that_of_an_error_group() -> None:
    logged(Action.DISCARD, count=2, facts={"groups": {"77": 1, "78": 1}})

    with pytest.raises(NothingChosen):
        erase(["77"], ANN, reason="request 12")
