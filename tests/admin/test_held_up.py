"""A requeue run whose messages wait in a stopped queue says so wherever its state is shown, before anything else."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.look import Health
from django_rmq_retry.management.broker_status import BrokerStatus, totals
from django_rmq_retry.models import ItemState, QueueControl, RequeueItem, RequeueRun, RunState, RunWait
from tests.admin import made
from tests.admin.looking import Page
from tests.admin.stopped import trip
from tests.admin.test_runs import RUNS, killed, run_of, shown
from tests.commands.running import run as command

pytestmark = pytest.mark.django_db
WAITS = "payments.main: paused by bob: what was sent there waits"


def paused(queue: str = "payments.main", **fields: Any) -> None:
    QueueControl.objects.create(queue=queue, paused=True, by="bob", since=timezone.now(), **fields)


def waiting(*queues: str, **fields: Any) -> RequeueRun:
    """A run that waits for the outcome of a message in each of these queues."""
    now = timezone.now()
    counts = {"sent": len(queues), "total": len(queues)}
    run = run_of(**{"state": RunState.WAITING, "started_at": now, "beat_at": now, **counts, **fields})
    for place, queue in enumerate(queues):
        item = {"message": made.message(queue=queue), "place": place, "revision": 1}
        RequeueItem.objects.create(run=run, **item, state=ItemState.SENT, sent_at=now)
    return run


def status() -> str:
    """The line of rmq_status with the totals."""
    return next(totals(BrokerStatus.of(Health(survey=survey())), terminal=False))


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        (["payments.main"], "payments.main is paused"),
        (["payments.main", "mail"], "payments.main is paused"),
        (["payments.card"], "the breaker of payments.card is open"),
        (["payments.main", "payments.card"], "2 queues are stopped"),
        (["mail"], ""),
    ],
)
def test_a_run_that_waits_for_a_stopped_queue_says_so_wherever_its_state_is(
    page: Client, queues: list[str], words: str
) -> None:
    """Only its page told that, below another cause: elsewhere it was "Waiting for outcomes"."""
    made.consumer()
    paused()
    trip("payments.card")
    run = waiting(*queues)
    itself = ("rmq_parked", "requeue-run", str(run.pk), "--wait", "0")
    told, listed, data = command(*itself), command("rmq_parked", "requeue-runs"), command(*itself, "--json")
    because, waits = (f" · {words}", f"{run.pk} waits: {words}") if words else ("", " waits: ")

    for text in (
        shown(page, run),
        *(Page(page.get(f"/admin/rmq_retry/{name}")).text for name in ("requeuerun/", "livestatus/", "")),
    ):
        assert f"… Waiting for outcomes{because} " in text
        assert ("Waiting for outcomes ·" in text) == bool(words)
    assert f"Requeue run {run.pk} (waiting for outcomes{because}): " in told.out
    assert (f"Requeue run {waits}." in listed.err) == bool(words)
    assert status().endswith(f"requeue runs 1 active ({waits})" if words else "requeue runs 1 active")
    assert data.data["run"]["stopped_queues"] == [one for one in sorted(queues) if one != "mail"]


def test_the_command_says_who_paused_it_and_asks_for_no_consumer() -> None:
    """ "No consumer reads it: start rmq_consume" stood two lines below "paused by bob"."""
    paused(until=timezone.now() + timedelta(hours=1))
    told = command("rmq_parked", "requeue-run", str(waiting("payments.main").pk), "--wait", "0")

    assert "What was sent to payments.main waits. Paused by bob since " in told.err
    assert "It resumes automatically at " in told.err
    assert "No consumer reads" not in told.err


@pytest.mark.parametrize(
    ("queues", "said"),
    [(["payments.main"], False), (["payments.main", "mail"], True)],
    ids=["all wait", "one does not"],
)
def test_a_crash_loop_by_messages_of_others_is_no_reason_while_the_queue_is_stopped(
    page: Client, queues: list[str], *, said: bool
) -> None:
    """It stood first and red, above the pause that was the reason."""
    last = killed(ended=30, queues=["payments.card", "payments.main", "mail"])
    made.consumer(queues=["payments.card", "payments.main", "mail"], started_at=last + timedelta(seconds=9))
    paused()
    text = shown(page, waiting(*queues))

    assert WAITS in text
    assert ("Consumers of payments.card die again and again" in text) is said
    assert ("They also read mail." in text) is said
    assert not said or text.index(WAITS) < text.index("die again")


def test_the_crash_loop_of_its_own_messages_is_told_below_the_pause(page: Client) -> None:
    last = killed(ended=30)
    made.consumer(queues=["payments.card", "payments.main"], started_at=last + timedelta(seconds=9))
    paused("payments.card")
    text = shown(page, waiting("payments.card"))

    assert 0 < text.index("payments.card: paused by bob") < text.index("Consumers of payments.card die again")


def test_a_queue_that_is_paused_is_not_to_be_paused(page: Client) -> None:
    paused()
    counts = {"sent": 80, "total": 80, "failed": 5, "stop_at": 20}
    both = waiting("payments.main", "mail", **counts)
    one = waiting("payments.main", **counts)
    links = [Page(page.get(f"{RUNS}{run.pk}/change/")) for run in (both, one)]

    assert "To keep it waiting, pause the queue: mail" in links[0].text
    assert "pause the queue" not in links[1].text


def test_a_run_that_holds_the_rest_back_names_the_stopped_queue(page: Client) -> None:
    made.consumer()
    paused()
    run = waiting("payments.main", state=RunState.RUNNING, wait=RunWait.OUTCOMES_WAIT, total=40, stop_at=20)
    sends = waiting("payments.main", state=RunState.RUNNING, total=40)

    assert "◔ Sends nothing now · payments.main is paused The rest waits for the first outcomes" in shown(page, run)
    assert "● Sending 1 of 40" in shown(page, sends).replace("  ", " ")
    assert Page(page.get(RUNS)).text.count("payments.main is paused") == 1


def test_a_canary_that_a_pause_holds_is_not_sending(page: Client) -> None:
    """ "Requeue run 1 by lead is sending 24 of them; nobody sends the other 15." It had sent one, and none for 40 s."""
    made.consumer()
    paused()
    cause = made.group()
    run = waiting("payments.main", state=RunState.RUNNING, wait=RunWait.CANARY_WAITS, canary=True, total=3)
    for place in (1, 2):
        message = made.message(cause)
        facts = {"place": place, "revision": message.revision, "state": ItemState.PENDING}
        RequeueItem.objects.create(run=run, message=message, **facts)
    made.message(made.group(title="UnknownAccount"))
    live = Page(page.get("/admin/rmq_retry/livestatus/")).text
    card = Page(page.get("/admin/rmq_retry/")).text
    known = Health(survey=survey())
    QueueControl.objects.update(paused=False)
    free = Page(page.get("/admin/rmq_retry/livestatus/")).text
    listed = command("rmq_parked", "requeue-runs")

    waits = f" Requeue run {run.pk} waits with 2 of them: payments.main is paused."
    assert [text.count(waits) for text in (live, card)] == [1, 1]
    assert [waits in one.text for one in known.needs if "parked" in one.text] == [True]
    assert "sending" not in live + card
    assert f"Requeue run {run.pk} waits with 2 of them: One message was sent. The others follow when it has" in free
    assert (listed.lines[1][1], "sends nothing now" in listed.err) == ("waits", True)
