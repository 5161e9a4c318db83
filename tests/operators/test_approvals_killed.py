"""Who approves is killed at each step, or approves together with others: an act is done once, or not yet."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    RequestMember,
    RequeueRun,
)
from django_rmq_retry.models.parked import State
from django_rmq_retry.parked import actions, approvals
from django_rmq_retry.parked.actions import discard
from django_rmq_retry.parked.approvals import approve
from django_rmq_retry.parked.audit import acts_on
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.selection import Selection
from tests.admin.made import person
from tests.operators.dying import APPROVING_STEPS, PART, SLICE_STEPS
from tests.operators.invariants import check_books
from tests.operators.made import drive_run, record
from tests.operators.racing import copies, together
from tests.operators.second_person import (
    LIMITS,
    MAY,
    Scene,
    actor_of,
    asked,
    closing,
    editing,
    editing_many,
)
from tests.tooling import processes
from tests.tooling.filled import Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but
from tests.tooling.owned import all_routed
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.usefixtures("own", "four_eyes"), *NIGHTLY_ON_SQLITE]
MESSAGES = 8
Killed = Callable[..., None]
COMMITTED = ("after the commit", *SLICE_STEPS)


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    """Threads and processes of a test work on one database, which has the accounts too."""
    all_routed(settings)
    return own_database


def parked() -> Selection:
    for _ in range(MESSAGES):
        record()
    return Selection.of_filter({"state": ["parked"]})


def discarding() -> Scene:
    chosen = parked()
    gone = ParkedMessage.objects.filter(state=State.DISCARDED)
    return Scene(
        lambda actor: discard(chosen, actor, category="test"), lambda: gone.count() == MESSAGES, Action.DISCARD
    )


def requeueing() -> Scene:
    chosen = parked()
    runs = RequeueRun.objects.filter(total=MESSAGES)

    def do(actor: Actor) -> object:
        # A process that dies knows no handlers.
        return start(chosen, actor, RequeueOptions(rate=1000, include=["unhandled"]), reason="x")

    return Scene(do, lambda: runs.count() == 1, Action.REQUEUE)


@pytest.fixture
def killed(own: Own, broker_url: str) -> Killed:
    """Let bob approve a request in a process that is killed at a step."""

    def approve_and_die(request: ApprovalRequest, step: str, nth: int = 1) -> None:
        command = [sys.executable, "-m", "tests.operators.dying", str(request.pk), "approving", step, str(nth)]
        ended = processes.run(command, env={**os.environ, **own.environment, "RMQ_URL": broker_url})

        assert ended.returncode == -signal.SIGKILL

    return approve_and_die


@pytest.fixture
def queue(wired: BlockingChannel, settings: Any) -> BlockingChannel:
    """The broker has its queue, and the acts still need a second person."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": LIMITS}
    return wired


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MESSAGES_AT_ONCE", PART)


@pytest.mark.parametrize("step", APPROVING_STEPS)
@pytest.mark.parametrize(
    "made",
    [
        requeueing,
        pytest.param(editing, marks=pytest.mark.nightly),
        pytest.param(editing_many, marks=pytest.mark.nightly),
        pytest.param(closing, marks=pytest.mark.nightly),
    ],
)
def test_an_act_is_done_once_if_who_approves_it_is_killed(
    killed: Killed, step: str, made: Callable[[], Scene], ann: Actor, bob: Actor
) -> None:
    scene = made()
    request = asked(scene.do, ann)
    killed(request, step)
    done = bool(scene.done())
    logged = OperatorAction.objects.filter(action__in=[scene.action, Action.APPROVE]).count()
    if step in COMMITTED:
        with pytest.raises(Outdated, match="approved by bob already"):
            approve(request.pk, bob)
    else:
        approve(request.pk, bob)

    assert (done, logged) == ((True, 2) if step in COMMITTED else (False, 0))
    assert scene.done()
    assert ApprovalRequest.objects.get().state == "done"
    assert OperatorAction.objects.filter(action=Action.APPROVE).count() == 1
    check_books()


@pytest.mark.parametrize("step", APPROVING_STEPS)
def test_a_run_sends_each_message_once_if_who_approves_it_is_killed(
    killed: Killed, queue: BlockingChannel, step: str, ann: Actor, bob: Actor
) -> None:
    request = asked(requeueing().do, ann)
    killed(request, step)
    if step not in COMMITTED:
        approve(request.pk, bob)
    for run in RequeueRun.objects.all():
        drive_run(run)

    assert copies(queue) == dict.fromkeys(ParkedMessage.objects.values_list("pk", flat=True), 1)
    check_books()


def discards_finished() -> bool:
    approvals.finish_left_discards()
    return ApprovalRequest.objects.get().state == "done"


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("goes_on", nightly_but(["a consumer"], ["a consumer", "a second person"]))
@pytest.mark.parametrize("step", [*APPROVING_STEPS, *SLICE_STEPS])
def test_a_discard_goes_on_where_who_approved_it_was_killed(
    killed: Killed, step: str, goes_on: str, ann: Actor, bob: Actor
) -> None:
    scene = discarding()
    request = asked(scene.do, ann)
    killed(request, step, 2 if step in SLICE_STEPS else 1)
    before = ParkedMessage.objects.filter(state=State.DISCARDED).count()
    restored = ParkedMessage.objects.filter(state=State.DISCARDED).first()
    if restored is not None:
        actions.restore(Selection.of_ids([restored.pk]), ann)
    if goes_on == "a consumer" and step in COMMITTED:
        ApprovalRequest.objects.update(decided_at=timezone.now() - timedelta(minutes=1))
        wait_until(discards_finished, what="a consumer goes on, a moment at a time")
    else:
        approve(request.pk, bob)
    told = Counter(
        pk
        for pk in ParkedMessage.objects.values_list("pk", flat=True)
        for _row in OperatorAction.objects.filter(acts_on([pk]), action=Action.DISCARD)
    )

    assert before == {"in a slice, before its commit": PART, "after a slice": 2 * PART}.get(step, 0)
    assert told == dict.fromkeys(ParkedMessage.objects.values_list("pk", flat=True), 1)
    assert ParkedMessage.objects.filter(state=State.DISCARDED).count() == MESSAGES - (restored is not None)
    assert (ApprovalRequest.objects.get().state, ApprovalRequest.objects.get().changed) == ("done", MESSAGES)
    check_books()


@pytest.mark.usefixtures("own", "small_slices", "bob")
def test_a_discard_goes_on_although_acts_need_no_second_person_any_more(
    killed: Killed, settings: Any, ann: Actor
) -> None:
    request = asked(discarding().do, ann)
    killed(request, "after a slice", 2)
    settings.RMQ_RETRY = {key: value for key, value in settings.RMQ_RETRY.items() if key != "FOUR_EYES"}
    ApprovalRequest.objects.update(decided_at=timezone.now() - timedelta(minutes=1))
    wait_until(discards_finished, what="a consumer goes on, a moment at a time")

    assert ParkedMessage.objects.filter(state=State.DISCARDED).count() == MESSAGES
    check_books()


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("step", SLICE_STEPS)
def test_a_discard_that_goes_on_takes_no_message_that_was_not_asked_for(
    killed: Killed, step: str, ann: Actor, bob: Actor
) -> None:
    parked()
    other = ParkedMessage.objects.order_by("pk").last()
    assert other is not None
    actions.hold(Selection.of_ids([other.pk]), ann, until=timezone.now() + timedelta(hours=1))
    chosen = Selection.of_filter({"state": ["parked"]})
    request = asked(lambda actor: discard(chosen, actor, category="test"), ann)
    killed(request, step, 2)
    actions.unhold(Selection.of_ids([other.pk]), ann)
    done = approve(request.pk, bob)
    left = ParkedMessage.objects.filter(state=State.PARKED)

    assert (done.changed, [one.pk for one in left]) == (MESSAGES - 1, [other.pk])
    assert not RequestMember.objects.exists()
    check_books()


def test_several_persons_who_approve_at_once_make_one_run(ann: Actor) -> None:
    seconds = [actor_of(person(f"second {number}", *MAY)) for number in range(4)]
    request = asked(requeueing().do, ann)

    def act(number: int) -> object:
        try:
            return approve(request.pk, seconds[number])
        except Outdated:
            return None

    approved = [one for one in together(act, len(seconds)) if one is not None]

    assert len(approved) == 1
    assert RequeueRun.objects.count() == 1
    check_books()


def test_a_message_is_either_discarded_by_the_request_or_requeued_by_another(ann: Actor, bob: Actor) -> None:
    chosen = parked()
    request = asked(lambda actor: discard(chosen, actor, category="test"), ann)

    def act(number: int) -> object:
        try:
            return approve(request.pk, bob) if number else start(chosen, Actor.of_code("job"), reason="x")
        except NothingChosen:
            # The other one had them all before.
            return None

    together(act, 2)

    assert ApprovalRequest.objects.get().changed == ParkedMessage.objects.filter(state=State.DISCARDED).count()
    assert not MessageVersion.objects.exists()
    check_books()
