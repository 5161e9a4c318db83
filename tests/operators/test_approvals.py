"""Acts that need a second person: nothing is done before somebody else approves exactly what was asked for."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db.models import F
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.breakers.table import states
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    ItemReason,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    QueueControl,
    RequeueRun,
    State,
)
from django_rmq_retry.parked import approvals, queue_pauses
from django_rmq_retry.parked.actions import discard
from django_rmq_retry.parked.approvals import approve, reject
from django_rmq_retry.parked.audit import acts_on
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.erasure import erase
from django_rmq_retry.parked.operators import Actor, NotAllowed, NothingChosen, Outdated, Refused
from django_rmq_retry.parked.outcome_texts import outcome_of
from django_rmq_retry.parked.requeue import requeue, start
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.retention import purge_audit
from django_rmq_retry.parked.selection import Selection
from tests.admin.made import person
from tests.operators.driving import Clock, Targets
from tests.operators.invariants import check_audit_log, check_books
from tests.operators.made import QUEUE, again, drive_run, driver_of, group, record
from tests.operators.second_person import (
    LIMITS,
    MAY,
    Scene,
    actor_of,
    asked,
    closing,
    editing,
    editing_many,
    payment,
)

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.usefixtures("four_eyes")]


def account(actor: Actor) -> User:
    return User.objects.get(username=actor.name)


def discarding() -> Scene:
    chosen = Selection.of_ids([record().pk, record().pk])

    def do(actor: Actor) -> object:
        return discard(chosen, actor, category="duplicate", text="paid twice")

    return Scene(do, lambda: chosen.queryset().filter(state=State.DISCARDED).count() == 2, Action.DISCARD)


def requeueing() -> Scene:
    record(group=group("r"))
    chosen = Selection.of_filter({"group": record(group=group("r")).group_id, "state": ["parked"]})

    def do(actor: Actor) -> object:
        return start(chosen, actor, RequeueOptions(rate=7, canary=True), reason="the bank is back")

    return Scene(do, lambda: RequeueRun.objects.filter(total=2, rate=7, canary=True).count() == 1, Action.REQUEUE)


SCENES = [discarding, requeueing, editing, editing_many, closing]
each_act = pytest.mark.parametrize("made", SCENES)


@each_act
def test_an_act_is_done_when_a_second_person_approves_it(made: Callable[[], Scene], ann: Actor, bob: Actor) -> None:
    scene = made()
    request = asked(scene.do, ann)
    before = scene.done()
    done = approve(request.pk, bob, remark="seen the statement")
    acts = OperatorAction.objects.order_by("number").values_list("action", "actor_name", "reason")

    assert (before, scene.done()) == (False, True)
    assert (done.state, done.by, done.decided_by, done.remark) == ("done", "ann", "bob", "seen the statement")
    assert next((action, name) for action, name, _reason in acts) == ("ask", "ann")
    assert {(action, name) for action, name, _reason in acts} == {
        ("ask", "ann"),
        (scene.action, "ann"),
        ("approve", "bob"),
    }
    assert OperatorAction.objects.get(action=scene.action).who == "ann, approved by bob"
    assert bytes(done.body) == b""
    check_books()


@each_act
def test_a_rejected_act_is_never_done(made: Callable[[], Scene], ann: Actor, bob: Actor) -> None:
    scene = made()
    request = asked(scene.do, ann)
    rejected = reject(request.pk, bob, reason="the customer was paid already")
    with pytest.raises(Outdated, match="was rejected by bob"):
        approve(request.pk, bob)
    row = OperatorAction.objects.get(action=Action.REJECT)

    assert not scene.done()
    assert (rejected.state, rejected.remark) == ("rejected", "the customer was paid already")
    assert (row.actor_name, row.reason, row.facts["asked_by"]) == ("bob", "the customer was paid already", "ann")
    check_books()


@each_act
def test_an_expired_request_is_approved_by_nobody(made: Callable[[], Scene], ann: Actor, bob: Actor) -> None:
    scene = made()
    request = asked(scene.do, ann)
    in_time = approvals.open_requests().count()
    ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(Outdated, match="has expired"):
        approve(request.pk, bob)
    with pytest.raises(Outdated, match="has expired"):
        reject(request.pk, bob, reason="too late")

    assert not scene.done()
    assert (in_time, approvals.open_requests().count()) == (1, 0)
    assert request.state_at(request.expires_at) == "Expired"


@each_act
def test_a_request_is_carried_out_once(made: Callable[[], Scene], ann: Actor, bob: Actor) -> None:
    scene, cid = made(), actor_of(person("cid", *MAY))
    request = asked(scene.do, ann)
    approve(request.pk, bob)
    rows = OperatorAction.objects.count()
    for another in (bob, cid):
        with pytest.raises(Outdated, match="was approved by bob already"):
            approve(request.pk, another)
    with pytest.raises(Outdated, match="was approved by bob already"):
        reject(request.pk, cid, reason="no")

    assert scene.done()
    assert OperatorAction.objects.count() == rows


@each_act
def test_nobody_approves_an_own_request(made: Callable[[], Scene], ann: Actor) -> None:
    scene = made()
    request = asked(scene.do, ann)
    leads = Group.objects.create(name="leads")
    leads.permissions.set(Permission.objects.filter(codename__in=MAY))
    for power in ({}, {"is_superuser": True}):
        User.objects.filter(username="ann").update(**power)
        account(ann).groups.add(leads)
        for actor in (ann, Actor(name="another name", user_id=ann.user_id, source="cli", behalf="root@ops-1")):
            with pytest.raises(NotAllowed, match="You asked for this yourself"):
                approve(request.pk, actor)

    assert not scene.done()
    assert ApprovalRequest.objects.get().state == "waiting"


def test_a_superuser_needs_a_second_person_too() -> None:
    scene = discarding()
    root = actor_of(person("root", superuser=True))
    request = asked(scene.do, root)
    with pytest.raises(NotAllowed):
        approve(request.pk, root)

    assert not scene.done()


@pytest.mark.parametrize(
    ("name", "behalf"), [("ann", "root@ops-1"), ("ANN", ""), ("bob", "ann@ops-2"), ("bob", "Ann@ops-2")]
)
def test_who_asked_by_a_command_does_not_approve_under_the_same_name(name: str, behalf: str) -> None:
    scene = discarding()
    shell = Actor(name="ann", behalf="ann@ops-1", source="cli")
    request = asked(scene.do, shell)
    second = person(name, *MAY)
    with pytest.raises(NotAllowed, match="under the same name"):
        approve(request.pk, Actor(name=name, user_id=second.pk, behalf=behalf, source="cli" if behalf else "admin"))

    assert not scene.done()
    assert approve(request.pk, actor_of(person("cid", *MAY))).changed == 2


def test_a_shell_without_an_account_approves_nothing(ann: Actor) -> None:
    request = asked(discarding().do, ann)
    with pytest.raises(NotAllowed, match="Only a person with an account"):
        approve(request.pk, Actor(name="root", behalf="root@ops-1", source="cli"))


@each_act
def test_the_author_may_withdraw_a_request(made: Callable[[], Scene], ann: Actor) -> None:
    scene = made()
    request = asked(scene.do, ann)
    with pytest.raises(Refused, match="Enter a reason"):
        reject(request.pk, ann, reason="  ")
    withdrawn = reject(request.pk, ann, reason="wrong messages")

    assert (withdrawn.state, withdrawn.decided_by, scene.done()) == ("rejected", "ann", False)


LACKING = {
    "discarding": "discard",
    "requeueing": "requeue",
    "editing": "edit_requeue",
    "editing_many": "bulk_edit",
    "closing": "pause_queue",
}


@each_act
@pytest.mark.parametrize("who", ["author", "second"])
def test_both_persons_need_the_permissions_of_the_act_when_it_is_approved(
    made: Callable[[], Scene], who: str, ann: Actor, bob: Actor
) -> None:
    scene = made()
    request = asked(scene.do, ann)
    lost = Permission.objects.get(codename=LACKING[made.__name__], content_type__app_label="rmq_retry")
    account(ann if who == "author" else bob).user_permissions.remove(lost)
    with pytest.raises(NotAllowed, match="ann, who asked for this" if who == "author" else "^You need the permission"):
        approve(request.pk, bob)

    assert not scene.done()
    assert ApprovalRequest.objects.get().state == "waiting"


def test_approving_needs_a_permission_of_its_own(ann: Actor) -> None:
    scene = discarding()
    request = asked(scene.do, ann)
    with pytest.raises(NotAllowed, match="Can approve and reject"):
        approve(request.pk, actor_of(person("dan", "discard")))

    assert not scene.done()


@pytest.mark.parametrize("loss", ["deleted", "inactive"])
def test_nothing_is_done_for_an_author_who_has_left(loss: str, ann: Actor, bob: Actor) -> None:
    scene = discarding()
    request = asked(scene.do, ann)
    if loss == "deleted":
        account(ann).delete()
    else:
        User.objects.filter(username="ann").update(is_active=False)
    with pytest.raises(NotAllowed, match="ann"):
        approve(request.pk, bob)

    assert not scene.done()


@pytest.mark.parametrize("forbidden_to", ["ann", "bob"])
def test_the_rules_of_the_project_are_asked_for_both_persons(
    forbidden_to: str, ann: Actor, bob: Actor, settings: Any
) -> None:
    north, south = payment(type="north"), payment(type="south")
    chosen = Selection.of_ids([north.pk, south.pk])
    request = asked(lambda actor: discard(chosen, actor, category="test"), ann)
    edit = asked(lambda actor: store(south.pk, actor, propose(south, text="{}"), version=1, reason="empty"), ann)

    def permit(user: Any, _verb: str, message: Any) -> bool:
        return bool(user.username != forbidden_to or message.type == "north")

    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}, "PERMIT": permit}}
    with pytest.raises(NotAllowed):
        approve(edit.pk, bob)
    done = approve(request.pk, bob)

    assert (done.count, done.changed) == (2, 1)
    assert (again(north).state, again(south).state) == (State.DISCARDED, State.PARKED)


def test_messages_that_changed_since_they_were_asked_for_are_left_out(ann: Actor, bob: Actor) -> None:
    kept, gone, edited, returned = (payment(group=group("g")) for _ in range(4))
    by_filter = Selection.of_filter({"group": kept.group_id, "state": ["parked"]})
    by_hand = Selection.of_ids([kept.pk, gone.pk, edited.pk, returned.pk])
    asks = [
        asked(lambda actor, chosen=chosen: discard(chosen, actor, category="test"), ann)  # type: ignore[misc]
        for chosen in (by_filter, by_hand)
    ]
    discard(Selection.of_ids([gone.pk]), bob, category="test")
    store(edited.pk, Actor.of_code("fix"), propose(edited, text="{}"), version=1, reason="empty")
    later = timezone.now() + timedelta(seconds=5)
    ParkedMessage.objects.filter(pk=returned.pk).update(parked_at=later, revision=F("revision") + 1)
    new = payment(group=group("g"))
    done = [approve(request.pk, bob).changed for request in asks]

    assert done == [1, 0]
    assert {one.pk: again(one).state for one in (kept, edited, returned, new)} == {
        kept.pk: State.DISCARDED,
        edited.pk: State.PARKED,
        returned.pk: State.PARKED,
        new.pk: State.PARKED,
    }
    check_books()


def test_a_run_leaves_out_what_changed_since_it_was_asked_for(ann: Actor, bob: Actor) -> None:
    kept, edited = payment(), payment()
    request = asked(lambda actor: start(Selection.of_ids([kept.pk, edited.pk]), actor, reason="x"), ann)
    store(edited.pk, Actor.of_code("fix"), propose(edited, text="{}"), version=1, reason="empty")
    approve(request.pk, bob)
    items = RequeueRun.objects.get().items.order_by("place").values_list("message_id", "state", "skip_code")

    assert [*map(tuple, items)] == [(kept.pk, "pending", ""), (edited.pk, "skipped", ItemReason.CHANGED)]


def test_an_edit_of_a_message_that_changed_is_refused(ann: Actor, bob: Actor) -> None:
    scene = editing()
    request = asked(scene.do, ann)
    ParkedMessage.objects.update(revision=F("revision") + 1)
    with pytest.raises(Outdated, match="has changed since this was asked for"):
        approve(request.pk, bob)

    assert not scene.done()
    assert ApprovalRequest.objects.get().state == "waiting"


@pytest.mark.parametrize("made", [discarding, requeueing, editing, editing_many])
def test_an_act_on_messages_that_another_operator_discarded_is_refused(
    made: Callable[[], Scene], ann: Actor, bob: Actor
) -> None:
    request = asked(made().do, ann)
    discard(Selection.of_ids(ParkedMessage.objects.values_list("pk", flat=True)), Actor.of_code("job"), category="test")
    if made is discarding:
        assert approve(request.pk, bob).changed == 0
    else:
        with pytest.raises((NothingChosen, Outdated)):
            approve(request.pk, bob)

    assert not RequeueRun.objects.exists()
    assert not MessageVersion.objects.exists()
    assert OperatorAction.objects.filter(action=Action.DISCARD).count() == 1


@pytest.mark.parametrize("since", ["opened again", "paused", "closed"])
def test_only_the_breaker_that_was_seen_is_closed(since: str, ann: Actor, bob: Actor) -> None:
    request = asked(closing().do, ann)
    if since == "paused":
        queue_pauses.pause_queue(QUEUE, bob, reason="the bank is closed")
    else:
        QueueControl.objects.update(opened=False)
        if since == "opened again":
            QueueControl.objects.update(opened=True, opened_at=timezone.now() + timedelta(seconds=5))
    with pytest.raises(Outdated):
        approve(request.pk, bob)

    assert states([QUEUE])[QUEUE].circuit.opened == (since != "closed")


def test_the_audit_log_names_what_was_approved_and_counts_messages_only_where_it_is_about_messages(
    ann: Actor, bob: Actor
) -> None:
    for scene in (closing(), discarding()):
        approve(asked(scene.do, ann).pk, bob)
    rows = OperatorAction.objects.filter(action__in=(Action.ASK, Action.APPROVE)).order_by("number")

    assert [(one.get_action_display(), one.queue, one.messages) for one in rows] == [
        ("Ask for approval: Close a breaker", QUEUE, None),
        ("Approve: Close a breaker", QUEUE, None),
        ("Ask for approval: Discard", "", 2),
        ("Approve: Discard", "", 2),
    ]


@pytest.mark.parametrize("most", [10_000, 1])
def test_the_audit_log_finds_the_request_and_the_approval_by_a_message_of_a_filter(
    ann: Actor, bob: Actor, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(approvals, "MOST_LOGGED", most)
    one, _other = record(), record()
    approve(asked(lambda by: discard(Selection.of_filter({"state": ["parked"]}), by, category="test"), ann).pk, bob)
    acts = OperatorAction.objects.filter(acts_on([one.pk])).order_by("number").values_list("action", flat=True)

    assert list(acts) == (["ask", "approve", "discard"] if most > 1 else ["discard"])


def test_a_pause_is_ended_without_a_second_person(ann: Actor) -> None:
    queue_pauses.pause_queue(QUEUE, ann, reason="the bank is closed")
    queue_pauses.resume_queue(QUEUE, ann)

    assert not ApprovalRequest.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"wish": '{"selection":{"count":0,"max_id":0,"as_of":"1970-01-01T00:00:00+00:00"},"terms":{}}'},
        {"act": "requeue"},
        {"count": 1},
        {"by": "cid"},
        {"reason": "another one"},
        {"source": "cli"},
        {"by_user": "bob"},
        {"expires_at": timezone.now() + timedelta(days=30)},
    ],
)
def test_a_request_that_was_changed_in_the_database_is_refused(change: dict[str, Any], ann: Actor, bob: Actor) -> None:
    scene = discarding()
    request = asked(scene.do, ann)
    others = {"by_user": account(bob)} if "by_user" in change else {}
    ApprovalRequest.objects.update(**{**change, **others})
    with pytest.raises(Outdated, match="by the audit log"):
        approve(request.pk, bob)

    assert not scene.done()


def test_an_edited_body_that_was_changed_in_the_database_is_refused(ann: Actor, bob: Actor) -> None:
    scene = editing()
    request = asked(scene.do, ann)
    ApprovalRequest.objects.update(body=b'{"amount": 850}')
    with pytest.raises(Outdated, match="by the audit log"):
        approve(request.pk, bob)

    assert not MessageVersion.objects.exists()


def test_fewer_messages_need_no_second_person(ann: Actor) -> None:
    one, other = record(), record()
    discard(Selection.of_ids([one.pk]), ann, category="test")
    start(Selection.of_ids([other.pk]), ann)

    assert again(one).state == State.DISCARDED
    assert not ApprovalRequest.objects.exists()


@pytest.mark.parametrize("made", SCENES)
def test_without_the_setting_no_act_needs_a_second_person(made: Callable[[], Scene], ann: Actor, settings: Any) -> None:
    settings.RMQ_RETRY = {name: value for name, value in settings.RMQ_RETRY.items() if name != "FOUR_EYES"}
    scene = made()
    scene.do(ann)

    assert scene.done()
    assert OperatorAction.objects.get().who == "ann"


def test_code_of_the_project_asks_nobody() -> None:
    run = requeue([record(), record()], by="nightly job", reason="the bank is back")

    assert run.total == 2
    assert not ApprovalRequest.objects.exists()


def test_pressing_twice_asks_once(ann: Actor, bob: Actor) -> None:
    for made in SCENES:
        scene = made()
        first, second, other = asked(scene.do, ann), asked(scene.do, ann), asked(scene.do, bob)

        assert first == second
        assert first != other


def test_a_choice_of_many_messages_by_hand_covers_all_of_them(ann: Actor, bob: Actor) -> None:
    some = [record() for _ in range(250)]
    request = asked(lambda actor: discard(Selection.of_ids([one.pk for one in some]), actor, category="test"), ann)
    ask_row = OperatorAction.objects.get(action=Action.ASK)
    done = approve(request.pk, bob)

    assert (done.changed, ParkedMessage.objects.filter(state=State.DISCARDED).count()) == (250, 250)
    assert ask_row in OperatorAction.objects.filter(acts_on([some[-1].pk]))


def test_a_message_tells_who_asked_and_who_approved(ann: Actor, bob: Actor) -> None:
    one = record()
    request = asked(lambda actor: discard(Selection.of_ids([one.pk, record().pk]), actor, category="test"), ann)
    approve(request.pk, bob)

    assert "by ann, approved by bob" in outcome_of(again(one))
    check_audit_log()


@pytest.mark.django_db(transaction=True)
def test_a_run_sends_nothing_after_who_approved_it_has_lost_the_permission(
    wired: BlockingChannel, ann: Actor, bob: Actor, settings: Any
) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": LIMITS}
    clock = Clock()
    chosen = Selection.of_ids([record().pk for _ in range(3)])
    request = asked(lambda actor: start(chosen, actor, RequeueOptions(rate=1), reason="x"), ann)
    approve(request.pk, bob)
    run = RequeueRun.objects.get()
    one = driver_of(run, clock=clock, targets=Targets())
    one.step()
    account(bob).user_permissions.clear()
    for _ in range(4):
        clock.now += 60
        one.step()

    assert run.who == "ann, approved by bob"
    assert list(run.items.order_by("place").values_list("state", "skip_code")) == [
        ("sent", ""),
        ("skipped", "refused"),
        ("skipped", "refused"),
    ]
    assert int(wired.queue_declare(QUEUE, passive=True).method.message_count) == 1


@pytest.mark.django_db(transaction=True)
def test_an_approved_run_sends_each_message_once(wired: BlockingChannel, ann: Actor, bob: Actor, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": LIMITS}
    request = asked(lambda actor: start(Selection.of_ids([record().pk, record().pk]), actor, reason="x"), ann)
    approve(request.pk, bob)
    drive_run(RequeueRun.objects.get())

    assert int(wired.queue_declare(QUEUE, passive=True).method.message_count) == 2


def test_an_erasure_deletes_what_requests_hold_of_a_customer(ann: Actor, bob: Actor) -> None:
    one = payment(key="PAY-7")
    edit = asked(lambda actor: store(one.pk, actor, propose(one, text='{"iban": "DE89"}'), version=1, reason="x"), ann)
    chosen = Selection.of_filter({"key": "PAY-7", "state": ["parked"]})
    named = asked(lambda actor: start(replace(chosen, count=2), actor, reason="x"), ann)
    discard(Selection.of_ids([one.pk]), ann, category="test")
    with pytest.raises(Refused, match=f"Request {edit.pk} names one of these keys, or is about these messages alone"):
        erase(["PAY-7"], bob, reason="their demand of today")
    for request in (edit, named):
        reject(request.pk, bob, reason="they asked to be forgotten")
    erase(["PAY-7"], bob, reason="their demand of today")

    assert not ApprovalRequest.objects.exists()
    check_audit_log()


def test_decided_requests_are_deleted_with_the_audit_log(ann: Actor, bob: Actor) -> None:
    requests = [asked(made().do, ann) for made in (discarding, requeueing)]
    reject(requests[0].pk, bob, reason="no")
    ApprovalRequest.objects.filter(pk=requests[0].pk).update(expires_at=timezone.now())
    purge_audit(Actor.of_shell(), older_than=timedelta(0), dry=False)

    assert list(ApprovalRequest.objects.all()) == [requests[1]]
