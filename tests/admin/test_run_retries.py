"""The page of a run that sends waiting retries: what failed again and what comes of it, and what was done twice."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.models import Attempt, AttemptName, EarlyRetry, ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked import early_runs
from django_rmq_retry.parked.early_outcomes import note
from django_rmq_retry.parked.run_steps import send_run
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of, operating
from tests.admin.looking import Page
from tests.commands.running import run as command

pytestmark = [pytest.mark.django_db, pytest.mark.database]
RUNS = "/admin/rmq_retry/requeuerun/"
STATUS = "/admin/rmq_retry/livestatus/"


def run_of(*names: str, state: str = RunState.FINISHED, **fields: Any) -> RequeueRun:
    """A run that has sent these retries a minute ago."""
    at = timezone.now() - timedelta(minutes=1)
    times = {"created_at": at, "started_at": at, "finished_at": at if state == RunState.FINISHED else None}
    counts = {"total": len(names), "sent": len(names)}
    values = {"selection": {"filter": {"queue": QUEUE}, "delayed": 0}, **times, **counts, **fields}
    run = RequeueRun.objects.create(by="ann", retries_of=QUEUE, state=state, **values)
    for name in names:
        EarlyRetry.objects.create(run=run, identity=f"message:{name}", shown=name, state=ItemState.SENT, sent_at=at)
    return run


def attempts(verdict: str, *names: str, number: int = 2, **fields: Any) -> None:
    """Attempts of retries that were sent early, as their consumers note them."""
    started = timezone.now() - timedelta(seconds=50 - number)
    facts = {"queue": QUEUE, "handler": "transfer", "host": "worker-4", "pid": 12, "seconds": 0.5, "thread": "t"}
    for name in names:
        made_of = {"identity": f"message:{name}", "message_id": name, "number": number, "started_at": started}
        Attempt.objects.create(**facts, **made_of, verdict=verdict, **fields)
    note([f"message:{name}" for name in names])


def shown(client: Client, run: RequeueRun) -> Page:
    return Page(client.get(f"{RUNS}{run.pk}/change/"))


def test_the_page_and_the_list_of_a_run_of_retries_tell_what_was_perhaps_done_twice(page: Client) -> None:
    """Eight of 25 payments were made twice after a kill, and the page, the list and the status were green."""
    run = run_of("PAY-1", "PAY-2", "PAY-3")
    attempts("ack", "PAY-1", "PAY-2", redelivered=True)
    attempts("ack", "PAY-3")
    made.consumer(seconds=55)
    seen = shown(page, run)
    listed = Page(page.get(seen.links["Show Perhaps handled twice"]))

    assert "2 perhaps handled twice" in seen.text
    assert "3 processed · 2 perhaps twice" in Page(page.get(RUNS)).text
    assert [name for name in ("PAY-1", "PAY-2", "PAY-3") if name in listed.links] == ["PAY-1", "PAY-2"]
    assert listed.text.count("by worker-4:12, delivered before to a consumer that did not acknowledge it") == 2


def test_live_status_leads_to_the_messages_that_a_run_of_retries_perhaps_did_twice(page: Client) -> None:
    run = run_of("PAY-1", state=RunState.RUNNING)
    attempts("ack", "PAY-1", redelivered=True)
    RequeueRun.objects.filter(pk=run.pk).update(state="finished", finished_at=timezone.now())
    RequeueRun.objects.filter(pk=run.pk).update(started_at=timezone.now() - timedelta(minutes=20))
    made.consumer(seconds=400)
    seen = Page(page.get(STATUS))

    assert f"Requeue run {run.pk}: 1 message was perhaps handled twice: PAY-1." in seen.text
    assert f"{RUNS}{run.pk}/outcomes/?of=perhaps_twice" in seen.links.values()
    assert f"manage.py rmq_parked checked RUN_PERHAPS_TWICE --run {run.pk}" in command("rmq_status").out


def test_the_command_names_what_a_run_of_retries_perhaps_did_twice() -> None:
    run = run_of("PAY-1", "PAY-2", "PAY-3")
    attempts("ack", "PAY-1", redelivered=True)
    attempts("ack", "PAY-2")
    attempts("ack", "PAY-2", number=3)
    made.consumer(seconds=55)
    told, listed = command("rmq_parked", "requeue-run", str(run.pk)), command("rmq_parked", "requeue-runs")
    lines = command("rmq_parked", "requeue-run", str(run.pk), "--export").out.splitlines()

    assert "at least 1 handled twice, 1 perhaps handled twice" in told.out
    assert "These may have been handled twice: PAY-1." in told.err
    assert "These were handled twice: PAY-2." in told.err
    assert ("HANDLED TWICE" in listed.out, "PERHAPS TWICE" in listed.out) == (True, True)
    assert [line.rsplit(",", 2)[1:] for line in lines[1:]] == [["1", "True"], ["2", "False"], ["0", "False"]]


def test_the_page_tells_why_retries_failed_again_and_what_comes_of_them(page: Client) -> None:
    """They "wait for their next attempt, or are parked if this was the last one": which, it did not tell."""
    due = timezone.now() + timedelta(minutes=10)
    run = run_of("PAY-1", "PAY-2", "PAY-3", "PAY-4", "PAY-5")
    attempts("retry", "PAY-1", "PAY-2", "PAY-3", error="GatewayTimeout", next_at=due)
    attempts("park", "PAY-4", error="NoFunds")
    attempts("ack", "PAY-3", number=3)
    made.message(identity="message:PAY-4", business_key="PAY-4", error="NoFunds")
    seen = shown(page, run)
    preview = Page(page.get(seen.links["Requeue the 1 that failed again…"], follow=True))
    parked = page.get(seen.links["Parked"]).context["cl"].result_list
    listed = Page(page.get(seen.links["Show GatewayTimeout"]))

    assert f"2 wait for their next attempts, the first due at {timezone.localtime(due):%Y-%m-%d %H:%M:%S}" in seen.text
    assert "· 1 Parked · 1 processed since" in seen.text
    assert "3 GatewayTimeout Show GatewayTimeout PAY-1 PAY-2 PAY-3 1 NoFunds" in seen.text
    assert "Requeue 1 message" in preview.text
    assert [one.business_key for one in parked] == ["PAY-4"]
    assert listed.text.count("and the next one is due at") == 2
    assert "PAY-4" not in listed.text


def test_each_outcome_of_a_run_of_retries_has_a_list_in_pages(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.admin.run_lists.PER_PAGE", 2)
    names = [f"PAY-{number}" for number in range(5)]
    run = run_of(*names)
    attempts("ack", *names[:3])
    seen = shown(page, run)
    first = Page(page.get(seen.links["Show Processed"]))
    second = Page(page.get(f"{RUNS}{run.pk}/outcomes/{first.links['Next']}"))
    waiting = Page(page.get(seen.links["Show Waiting for outcome"]))

    assert "3 messages of payments.main" in first.text
    assert [[name for name in names if name in one.links] for one in (first, second, waiting)] == [
        ["PAY-0", "PAY-1"],
        ["PAY-2"],
        ["PAY-3", "PAY-4"],
    ]


def test_a_stopped_run_of_retries_says_that_the_others_wait_until_they_are_due(page: Client) -> None:
    """ "They became due before it was their turn, or failed again", it said of those that it had not sent."""
    run = run_of("PAY-1", state=RunState.STOPPED, total=9, skipped=8, finished_at=timezone.now())
    text = shown(page, run).text

    assert "+ ○ 8 not sent" in text
    assert "RabbitMQ delivers each when it is due" in text
    assert "left out" not in text


def test_a_stopped_run_of_retries_waits_for_the_outcomes_of_what_it_has_sent(page: Client) -> None:
    run = run_of("PAY-1", state=RunState.STOPPED, finished_at=timezone.now())
    before = shown(page, run).text
    attempts("ack", "PAY-1")

    assert "1 waiting for outcome" in before
    assert "1 processed" in shown(page, run).text


def test_the_rules_of_a_project_hide_which_retries_a_run_has_sent(settings: Any) -> None:
    operating(settings, PERMIT=lambda _user, _verb, _message: True)
    run = run_of("PAY-1")
    attempts("retry", "PAY-1", error="GatewayTimeout")
    client = client_of(made.person("support", "view_requeuerun", "view_parkedmessage"))

    assert "PAY-1" not in shown(client, run).text
    assert "1 GatewayTimeout" in shown(client, run).text
    assert client.get(f"{RUNS}{run.pk}/outcomes/?of=failed").status_code == 403


def test_a_list_that_a_run_does_not_have_leads_to_its_page(page: Client) -> None:
    run = run_of("PAY-1")

    assert page.get(f"{RUNS}{run.pk}/outcomes/?of=made-up")["Location"] == f"{RUNS}{run.pk}/change/"


def failed_test(count: int, **fields: Any) -> RequeueRun:
    """A run that its test message has paused, with the retries that wait beside it: ``REF-1`` and so on."""
    run = run_of("REF-0", state=RunState.PAUSED, wait=RunWait.CANARY_FAILED, canary=True, **fields)
    RequeueRun.objects.filter(pk=run.pk).update(total=count + 1)
    attempts("park", "REF-0")
    made.waiting_retries(QUEUE, count, began=timedelta(minutes=9))
    for row in Attempt.objects.filter(verdict="retry"):
        key = f"REF-{int(row.message_id) + 1}"
        AttemptName.objects.create(identity=row.identity, value=key, folded=folded(key), at=row.started_at)
    return run


def due(*keys: str) -> None:
    """These retries became due, and RabbitMQ has delivered them."""
    named = AttemptName.objects.filter(value__in=keys).values("identity")
    assert Attempt.objects.filter(identity__in=named).update(next_at=timezone.now()) == len(keys)


def test_what_became_due_by_itself_is_not_called_unsent_while_its_run_is_paused(page: Client) -> None:
    """Nineteen refunds were paid when they were due, and four pages went on saying that they were not sent yet."""
    made.consumer(seconds=1)
    run = failed_test(19)
    early_runs.leave_out_due()
    assert "19 not sent yet" in shown(page, run).text

    due(*(f"REF-{number}" for number in range(1, 15)))
    early_runs.leave_out_due()
    seen = shown(page, run)
    assert "14 left out + 5 not sent yet" in Page(page.get(RUNS)).text
    assert "Left out They became due before it was their turn, or failed again meanwhile." in seen.text
    assert "Send one again, the other 4 after it was processed…" in seen.text
    assert "5 messages not sent yet" in Page(page.get(STATUS)).text
    assert "5 not sent" in command("rmq_parked", "requeue-run", str(run.pk)).out


def test_a_paused_run_whose_retries_all_became_due_ends_by_itself(page: Client) -> None:
    made.consumer(seconds=1)
    run = failed_test(19)
    due(*(f"REF-{number}" for number in range(1, 20)))
    early_runs.leave_out_due()
    run = send_run(run.pk, "test", for_seconds=5)
    seen = shown(page, run)

    assert (run.state, run.failed, run.skipped, run.unsent) == (RunState.FINISHED, 1, 19, 0)
    assert "They became due before it was their turn" in seen.text
    assert not any(text in seen.text for text in ("not sent", "Send one again", "the test message failed", "Resume"))
    assert "not sent" not in Page(page.get(STATUS)).text


@pytest.mark.parametrize(
    ("conditions", "total", "left"),
    [
        ({"key": ["REF-1", "REF-2", "REF-3"]}, 3, 1),
        ({"error": ["GatewayTimeout"]}, 9, 7),
        ({"error": ["CardDeclined"]}, 2, 0),
        ({"handler": [QUEUE]}, 9, 7),
    ],
)
def test_of_chosen_retries_only_these_keep_their_run_paused(
    conditions: dict[str, list[str]], total: int, left: int
) -> None:
    run = failed_test(9, selection={"filter": {"queue": QUEUE, **conditions}})
    RequeueRun.objects.update(total=total + 1)
    due("REF-1", "REF-2")
    early_runs.leave_out_due()
    run.refresh_from_db()

    assert run.unsent == left
    assert run.active


def test_without_recorded_attempts_no_retry_of_a_paused_run_counts_as_gone(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "RECORDS": False}
    run = failed_test(3)
    due("REF-1", "REF-2", "REF-3")
    early_runs.leave_out_due()
    run.refresh_from_db()

    assert (run.state, run.unsent) == (RunState.PAUSED, 3)
