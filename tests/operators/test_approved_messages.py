"""What a second person approves are the messages that were asked for, and no others: also if a filter chose them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    ItemReason,
    OperatorAction,
    ParkedMessage,
    RequestMember,
    RequeueRun,
    State,
)
from django_rmq_retry.parked import listing, retention
from django_rmq_retry.parked.actions import discard, hold, restore
from django_rmq_retry.parked.approvals import approve, mark, reject
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.missed_discards import left_out_of
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.selection import Selection
from tests.operators.driving import Clock, Targets
from tests.operators.invariants import check_books
from tests.operators.made import again, driver_of, record
from tests.operators.second_person import asked, editing, payment

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.usefixtures("four_eyes")]
JOB = Actor.of_code("job")
PARKED = {"state": ["parked"]}
Act = Callable[[Selection, Actor], object]


def discarding(chosen: Selection, actor: Actor) -> object:
    return discard(chosen, actor, category="test")


def requeueing(chosen: Selection, actor: Actor) -> object:
    return start(chosen, actor, reason="the bank is back")


def listed(run: RequeueRun) -> dict[int, tuple[str, str]]:
    """The messages of a run, after its driver has listed them: the state of each, and why it is left out."""
    driver = driver_of(run, clock=Clock(), targets=Targets())
    run.refresh_from_db()
    while run.listing:
        driver.step()
        run.refresh_from_db()
    return {pk: (state, why) for pk, state, why in run.items.values_list("message_id", "state", "skip_code")}


class Swap:
    """Four messages that match a filter when an act is asked for; then two no longer do, and two others do."""

    def __init__(self) -> None:
        self.kept = [payment(), payment()]
        self.gone = [payment(), payment()]
        self.others = [payment(), payment()]
        discard(Selection.of_ids([one.pk for one in self.others]), JOB, category="test")
        self.chosen = Selection.of_filter(PARKED)

    def do(self) -> None:
        hold(Selection.of_ids([one.pk for one in self.gone]), JOB, until=timezone.now() + timedelta(hours=1))
        restore(Selection.of_ids([one.pk for one in self.others]), JOB)

        assert Selection.of_filter(PARKED).count == self.chosen.count

    @property
    def states(self) -> list[set[str]]:
        return [{again(one).state for one in some} for some in (self.kept, self.gone, self.others)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is listed by its driver, three messages at a time."""
    monkeypatch.setattr(listing, "LISTED_AT_ONCE", 1)
    monkeypatch.setattr(listing, "PART_ITEMS", 3)


def test_an_approved_discard_takes_no_other_messages_that_match_meanwhile(ann: Actor, bob: Actor) -> None:
    swap = Swap()
    request = asked(lambda actor: discarding(swap.chosen, actor), ann)
    swap.do()
    done = approve(request.pk, bob)

    assert (done.count, done.changed) == (4, 2)
    assert swap.states == [{State.DISCARDED}, {State.ON_HOLD}, {State.PARKED}]
    check_books()


def test_why_messages_were_left_out_needs_no_query_for_each(
    ann: Actor, bob: Actor, django_assert_max_num_queries: Callable[[int], AbstractContextManager[None]]
) -> None:
    swap = Swap()
    request = asked(lambda actor: discarding(swap.chosen, actor), ann)
    for one in (*swap.gone, *swap.kept):
        someone = Actor.of_code(f"job {one.pk}")
        hold(Selection.of_ids([one.pk]), someone, until=timezone.now() + timedelta(hours=1))
    approve(request.pk, bob)
    request.refresh_from_db()
    with django_assert_max_num_queries(3):
        left = left_out_of(request)

    assert len(left) == 4
    for message, why in left:
        assert f"Hold by job {message.pk}, " in why


@pytest.mark.parametrize("when", ["at once", "by its driver", "by its driver, swapped after the approval"])
def test_an_approved_requeue_sends_no_other_messages_that_match_meanwhile(
    when: str, ann: Actor, bob: Actor, request: pytest.FixtureRequest
) -> None:
    if when != "at once":
        request.getfixturevalue("small_parts")
    swap = Swap()
    asks = asked(lambda actor: requeueing(swap.chosen, actor), ann)
    if "after" in when:
        approve(asks.pk, bob)
        swap.do()
    else:
        swap.do()
        approve(asks.pk, bob)
    run = RequeueRun.objects.get()
    changed = ("skipped", ItemReason.CHANGED)

    assert listed(run) == {
        **{one.pk: ("pending", "") for one in swap.kept},
        **{one.pk: changed for one in swap.gone},
    }
    assert (run.total, run.skipped) == (4, 2)
    check_books()


@pytest.mark.usefixtures("small_parts")
def test_a_run_of_many_approved_messages_sends_the_oldest_first(ann: Actor, bob: Actor) -> None:
    newest_first = [record(parked_at=timezone.now() - timedelta(hours=number)) for number in range(1, 9)]
    request = asked(lambda actor: requeueing(Selection.of_filter(PARKED), actor), ann)
    approve(request.pk, bob)
    run = RequeueRun.objects.get()
    listed(run)

    assert list(run.items.order_by("place").values_list("message_id", flat=True)) == [
        one.pk for one in reversed(newest_first)
    ]
    assert run.items.values("place").distinct().count() == 8


@pytest.mark.parametrize("act", [discarding, requeueing])
def test_a_message_that_was_edited_meanwhile_is_left_out(act: Act, ann: Actor, bob: Actor) -> None:
    kept, edited = payment(), payment()
    request = asked(lambda actor: act(Selection.of_filter(PARKED), actor), ann)
    store(edited.pk, JOB, propose(edited, text='{"amount": 850}'), version=1, reason="comma")
    approve(request.pk, bob)
    if act is discarding:
        assert (again(kept).state, again(edited).state) == (State.DISCARDED, State.PARKED)
    else:
        assert listed(RequeueRun.objects.get()) == {
            kept.pk: ("pending", ""),
            edited.pk: ("skipped", ItemReason.CHANGED),
        }


@pytest.mark.parametrize("act", [discarding, requeueing])
@pytest.mark.parametrize("what", ["another message", "a later revision", "one message less", "no message"])
def test_members_that_were_changed_in_the_database_are_refused(what: str, act: Act, ann: Actor, bob: Actor) -> None:
    some = [payment(), payment()]
    other = payment(type="other")
    other_chosen = Selection.of_filter({**PARKED, "type": ""})
    request = asked(lambda actor: act(other_chosen, actor), ann)
    members = RequestMember.objects.filter(request=request.pk)
    first = members.filter(message=some[0].pk)
    if what == "another message":
        first.update(message=other.pk)
    elif what == "a later revision":
        first.update(revision=F("revision") + 1)
    else:
        (first if what == "one message less" else members).delete()
    with pytest.raises(Outdated, match="by the audit log"):
        approve(request.pk, bob)

    assert {again(one).state for one in [*some, other]} == {State.PARKED}
    assert not RequeueRun.objects.exists()


def test_only_the_request_that_was_shown_is_approved(ann: Actor, bob: Actor) -> None:
    chosen = Selection.of_ids([payment().pk, payment().pk])
    first = asked(lambda actor: discarding(chosen, actor), ann)
    second = asked(lambda actor: requeueing(chosen, actor), ann)
    with pytest.raises(Outdated, match="not the request that was shown"):
        approve(first.pk, bob, seen=mark(second))
    done = approve(first.pk, bob, seen=mark(first))

    assert (done.state, done.changed) == ("done", 2)


@pytest.mark.parametrize("act", [discarding, requeueing])
def test_nothing_is_done_if_all_messages_were_purged_meanwhile(act: Act, ann: Actor, bob: Actor) -> None:
    payment(), payment()
    request = asked(lambda actor: act(Selection.of_filter(PARKED), actor), ann)
    ParkedMessage.objects.all().delete()
    payment(), payment()
    with pytest.raises(NothingChosen):
        approve(request.pk, bob)

    assert ParkedMessage.objects.filter(state=State.PARKED).count() == 2
    assert not RequeueRun.objects.exists()


@pytest.mark.parametrize("ended", ["discarded", "requeued", "rejected", "expired"])
def test_the_members_of_a_request_are_deleted_when_it_ends(ended: str, ann: Actor, bob: Actor) -> None:
    payment(), payment()
    act = requeueing if ended == "requeued" else discarding
    request = asked(lambda actor: act(Selection.of_filter(PARKED), actor), ann)
    before = RequestMember.objects.count()
    retention.delete_old()
    waiting = RequestMember.objects.count()
    if ended == "rejected":
        reject(request.pk, bob, reason="no")
    elif ended == "expired":
        ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        retention.delete_old()
    else:
        approve(request.pk, bob)

    assert (before, waiting, RequestMember.objects.count()) == (2, 2, 0)


@pytest.mark.usefixtures("small_parts")
def test_members_are_kept_until_the_run_has_listed_them(ann: Actor, bob: Actor) -> None:
    some = [payment() for _ in range(4)]
    request = asked(lambda actor: requeueing(Selection.of_filter(PARKED), actor), ann)
    approve(request.pk, bob)
    retention.delete_old()
    found = listed(RequeueRun.objects.get())
    retention.delete_old()

    assert found == {one.pk: ("pending", "") for one in some}
    assert not RequestMember.objects.exists()


def test_the_contents_of_an_edit_that_nobody_approved_in_time_are_deleted(ann: Actor) -> None:
    request = asked(editing().do, ann)
    retention.delete_old()
    request.refresh_from_db()
    kept = bytes(request.body)
    ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    retention.delete_old()
    request.refresh_from_db()

    assert (kept, bytes(request.body), bytes(request.properties)) == (b'{"amount": 8.50}', b"", b"")


def test_a_second_press_after_a_swap_leads_to_the_request_that_waits(ann: Actor, bob: Actor) -> None:
    swap = Swap()
    first = asked(lambda actor: discarding(swap.chosen, actor), ann)
    swap.do()
    second = asked(lambda actor: discarding(swap.chosen, actor), ann)
    approve(second.pk, bob)

    assert first == second
    assert swap.states == [{State.DISCARDED}, {State.ON_HOLD}, {State.PARKED}]
    assert OperatorAction.objects.filter(action=Action.ASK).count() == 1
