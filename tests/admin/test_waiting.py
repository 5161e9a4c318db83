"""The page from which waiting retries are sent before they are due, and the run that it starts."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, InPlace, Queue, RetryThenPark, handler
from django_rmq_retry.admin import early_form
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import Attempt, EarlyRetry, ItemState, OperatorAction, RequeueRun
from django_rmq_retry.parked import early_runs
from django_rmq_retry.parked.audit import acts_on
from django_rmq_retry.parked.early_choice import RetryFilter
from django_rmq_retry.parked.early_retries import DueRetry, LeftOutRetries, RetryCause, WaitingReport
from django_rmq_retry.parked.queue_pauses import pause_queue
from django_rmq_retry.parked.released import Waiting
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of
from tests.admin.looking import Page, press
from tests.operators.made import ANN

pytestmark = pytest.mark.django_db
QUEUES = "/admin/rmq_retry/queuecontrol/"
STATUS = "/admin/rmq_retry/livestatus/"
WAITING = "/admin/rmq_retry/requeuerun/waiting/"
EVIL = "<script>alert(1)</script>\u202e"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[RetryFilter]:
    """The broker has 40 waiting retries; what the page asks for is kept."""
    asked: list[RetryFilter] = []
    now = timezone.now()
    causes = tuple(
        RetryCause(error=error, count=count, first=now + timedelta(minutes=1), last=now + timedelta(minutes=9))
        for error, count in (("GatewayTimeout", 30), (EVIL, 10))
    )

    def looked(form: Any) -> tuple[WaitingReport, str, str]:
        asked.append(form.wanted)
        found = 1 if form.wanted.key else 40
        return WaitingReport(queue=QUEUE, count=found, causes=causes), "", ""

    monkeypatch.setattr(early_form, "_ask_broker", looked)
    return asked


def seen(monkeypatch: pytest.MonkeyPatch, *, waiting: int, retries: int, **began: timedelta) -> None:
    made.waiting_retries(QUEUE, retries, **began)
    levels = [Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=1)]
    rungs = [name for name, one in registry.topology().queues.items() if one.role is Role.WAITING]
    levels += [Level(queue=name, role=Role.WAITING, ready=waiting if name == rungs[0] else 0) for name in rungs]
    made.broker_seen(monkeypatch, *levels)


@pytest.mark.usefixtures("waits")
def test_what_waits_is_sent_in_two_clicks_and_the_audit_log_has_it(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, waiting=40, retries=40)
    link = Page(page.get(QUEUES)).links["Send the 40 waiting retries now…"]
    preview = page.get(link)
    run_page = press(page, preview, "Send 40 retries now", reason="the bank is back", rate="5")

    run = RequeueRun.objects.get()
    assert run_page.redirect_chain[-1][0] == f"/admin/rmq_retry/requeuerun/{run.pk}/change/"
    assert (run.retries_of, run.total, run.rate, run.stop_at) == (QUEUE, 40, 5.0, 20.0)
    assert f"Sends retries that wait for {QUEUE} before they are due." in Page(run_page).text
    act = OperatorAction.objects.get()
    assert (act.get_action_display(), act.actor_name, act.reason, act.count, act.run) == (
        "Send waiting retries",
        "lead",
        "the bank is back",
        40,
        run.pk,
    )


def test_of_waiting_messages_without_a_recorded_attempt_no_page_claims_to_know_what_they_are(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, "25 published with a delay" were retries whose rows were lost with the process."""
    seen(monkeypatch, waiting=7, retries=3)
    shown, unknown = Page(page.get(QUEUES)), "4 published with a delay, or retries without a record"

    assert "Send waiting retries now…" in shown.links
    assert f"· {unknown}" in shown.text
    assert f"Waiting until due 7 3 retries · {unknown}" in Page(page.get(STATUS)).text


def test_while_attempts_fail_a_retry_that_is_not_recorded_yet_is_not_called_delayed(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an incident "57 retries · 2 published with a delay", and nothing was published with one."""
    seen(monkeypatch, waiting=59, retries=57, began=timedelta(seconds=1))
    answers = page.get(QUEUES), page.get(STATUS)

    assert "Waiting until due 59" in Page(answers[1]).text
    assert not any("with a delay" in Page(one).text for one in answers)


def test_no_page_offers_to_send_what_only_waits_for_its_delay(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, waiting=7, retries=0)
    answers = page.get(QUEUES), page.get(STATUS)

    assert all("7 published with a delay" in Page(one).text for one in answers)
    assert not any(WAITING in one.content.decode() for one in answers)


def test_without_recorded_attempts_no_page_claims_to_know_which_are_retries(
    page: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "RECORDS": False}
    seen(monkeypatch, waiting=7, retries=0)
    shown = Page(page.get(QUEUES))

    assert "Send waiting retries now…" in shown.links
    assert "published with a delay" not in shown.text


def test_preview_and_run_name_the_delayed_messages_that_they_do_not_send(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = WaitingReport(queue=QUEUE, count=3, causes=(), delayed=4)
    monkeypatch.setattr(early_form, "_ask_broker", lambda _wish: (found, "", ""))
    preview = page.get(WAITING, {"queue": QUEUE})
    run_page = press(page, preview, "Send 3 retries now")

    said = "4 other messages wait there because they were published with a delay. They are not sent before their time."
    assert said in Page(preview).text
    assert "4 messages that were published with a delay waited there, too; they are not part of" in Page(run_page).text


def test_the_main_button_sends_one_first_unless_only_one_waits(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sent all 40 at once, while a group's pages send one first."""
    main = {}
    for count in (40, 1):
        found = WaitingReport(queue=QUEUE, count=count, causes=())
        monkeypatch.setattr(early_form, "_ask_broker", lambda _wish, found=found: (found, "", ""))
        content = page.get(WAITING, {"queue": QUEUE}).content.decode()
        main[count] = re.findall(r'rmq-main"[^>]*>([^<]+)<', content.partition('id="rmq-actions"')[2])

    assert main == {
        40: ["Send one now, the other 39 after it was processed"],
        1: ["Send 1 retry now"],
    }


@pytest.mark.usefixtures("waits")
def test_a_guard_of_100_percent_is_off_and_a_rate_of_0_is_refused(page: Client) -> None:
    preview = page.get(WAITING, {"queue": QUEUE})
    refused = press(page, preview, "Send 40 retries now", reason="the bank is back", rate="0")
    press(page, preview, "Send 40 retries now", reason="the bank is back", stop_at="100")

    assert "The rate must be a number above 0" in Page(refused).text
    assert RequeueRun.objects.get().stop_at is None


@pytest.mark.usefixtures("waits")
def test_the_preview_names_causes_times_and_a_queue_that_stands_still(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="the bank is closed")
    answer = page.get(WAITING, {"queue": QUEUE})
    text = Page(answer).text

    assert "40 retries wait" in text
    assert "GatewayTimeout" in text
    assert "paused by ann: messages will wait" in text
    assert "<script>alert" not in answer.content.decode()


def test_some_are_chosen_by_key_and_error(page: Client, waits: list[RetryFilter]) -> None:
    preview = page.get(WAITING, {"queue": QUEUE})
    counted = press(page, preview, "Count again", keys="PAY-7, PAY-8", error="GatewayTimeout")
    press(page, counted, "Send 1 retry now")

    assert waits[1:] == [RetryFilter(key=("PAY-7", "PAY-8"), error=("GatewayTimeout",))] * 2
    assert RequeueRun.objects.get().selection["filter"] == {
        "queue": QUEUE,
        "key": ["PAY-7", "PAY-8"],
        "error": ["GatewayTimeout"],
    }


@pytest.fixture
def paid_by_hand(monkeypatch: pytest.MonkeyPatch) -> list[RetryFilter]:
    """PAY-7 is one of three retries, and PAY-1 goes first on the key of PAY-9, which the bank has made, too."""
    asked: list[RetryFilter] = []
    at = timezone.now() + timedelta(minutes=9)
    due = [DueRetry(key=f"PAY-{n}", message_id=f"m-{n}", error=EVIL, number=2, at=at) for n in (1, 7, 8)]

    def looked(form: Any) -> tuple[WaitingReport, str, str]:
        asked.append(form.wanted)
        without = set(form.wanted.without)
        kept = [one for one in due if not without & {one.key, one.name}]
        front = [one for one in kept if one.key == "PAY-1" and "PAY-9" in without]
        left = LeftOutRetries(
            count=len(due) - len(kept),
            in_front=tuple((one.key, Waiting(key="PAY-9", ordering_key="ACC-5")) for one in front),
            missing=tuple(sorted(without & {"PAY-9", "PAY-0"})),
            first=at,
        )
        shown = tuple(one for one in kept if one not in front)
        return WaitingReport(queue=QUEUE, count=len(shown), causes=(), due=shown, left=left), "", ""

    monkeypatch.setattr(early_form, "_ask_broker", looked)
    return asked


def test_the_preview_lists_keys_and_due_times_and_what_is_ticked_is_left_out(
    page: Client, paid_by_hand: list[RetryFilter]
) -> None:
    """It named neither, and had no "except these": a payment made by hand was sent again."""
    preview = page.get(WAITING, {"queue": QUEUE})
    without = press(page, preview, "Leave the ticked ones out", tick="m-7")
    run_page = press(page, without, "Send 2 retries now")

    assert "The 3 that are due first" in Page(preview).text
    assert all(f"PAY-{n} m-{n}" in Page(preview).text for n in (1, 7, 8))
    assert "1 message is left out by its key." in Page(without).text
    assert "RabbitMQ delivers it when it is due, the first at" in Page(without).text
    assert "PAY-7 m-7" not in Page(without).text
    run = RequeueRun.objects.get()
    assert (run.total, run.excluded, paid_by_hand[-1].without) == (2, 1, ("m-7",))
    assert "1 more left out by 1 key" in Page(run_page).text
    assert "Keys left out by the operator What is left out is not sent early" in Page(run_page).text
    assert "match no parked message" not in Page(run_page).text
    act = Page(page.get(f"/admin/rmq_retry/operatoraction/{OperatorAction.objects.get().pk}/change/")).text
    assert "Keys left out by the operator m-7" in act


@pytest.mark.usefixtures("paid_by_hand")
def test_a_retry_in_front_of_a_key_to_leave_out_is_named_and_keys_not_found_have_to_be_checked(page: Client) -> None:
    preview = page.get(WAITING, {"queue": QUEUE})
    without = press(page, preview, "Leave these out", **{"except": "PAY-9, PAY-0"})
    refused = press(page, without, "Send 2 retries now")
    run_page = press(page, refused, "Send 2 retries now", checked=refused.context["left"].mark)

    assert "PAY-1 PAY-9, which is to be left out, waits behind it (ordering key ACC-5)." in Page(without).text
    assert "2 keys were not found" in Page(without).text
    assert (refused.status_code, "Check 2 keys" in Page(refused).text) == (422, True)
    assert "No waiting retry had 2 keys: PAY-0 PAY-9" in Page(run_page).text


@pytest.mark.usefixtures("paid_by_hand")
@pytest.mark.parametrize("changed", [{"except": "PAY-7"}, {"tick": "m-7"}, {"keys": "PAY-8"}])
def test_what_the_page_has_not_shown_is_not_sent(page: Client, changed: dict[str, str]) -> None:
    """Keys typed beside the button were counted and sent in one step."""
    preview = page.get(WAITING, {"queue": QUEUE})
    answer = press(page, preview, "Send 3 retries now", **changed)

    assert "Nothing was sent, because the choice had changed." in Page(answer).text
    assert not RequeueRun.objects.exists()


@pytest.mark.usefixtures("paid_by_hand")
def test_who_may_not_see_messages_sees_no_keys_of_waiting_ones() -> None:
    client = client_of(made.person("sender", "view_requeuerun", "send_waiting", "view_queuecontrol"))
    text = Page(client.get(WAITING, {"queue": QUEUE})).text

    assert ("3 retries wait" in text, "PAY-" in text) == (True, False)


def test_an_error_group_leads_to_the_retries_that_wait_because_of_it(page: Client, waits: list[RetryFilter]) -> None:
    group, now = made.group(), timezone.now()
    one, due = made.message(group), now + timedelta(minutes=5)
    for number, queue in enumerate((QUEUE, QUEUE, "a queue without a handler")):
        made.attempt(one, at=now, identity=f"i{number}", queue=queue, fingerprint=group.fingerprint, next_at=due)
    address = f"/admin/rmq_retry/errorgroup/{group.pk}/change/"
    found = Page(page.get(address))
    page.get(found.links["Send the 2 waiting retries now…"])
    viewer = client_of(made.person("viewer", "view_errorgroup", "view_parkedmessage"))

    assert waits == [RetryFilter(group=(group.pk,))]
    assert "a queue without a handler" not in found.text
    assert "2 wait for their retry" in Page(viewer.get(address)).text


def test_keys_in_an_address_are_not_looked_for(page: Client, waits: list[RetryFilter]) -> None:
    """To find them, each waiting retry is taken out of its queue and put back: a link must not do that."""
    page.get(WAITING, {"queue": QUEUE, "keys": "PAY-7", "error": "GatewayTimeout"})

    assert waits == [RetryFilter(error=("GatewayTimeout",))]


def test_a_preview_that_could_not_look_at_all_says_so(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    found = WaitingReport(queue=QUEUE, count=1, causes=(), not_seen="Only the first 3 messages were looked at.")
    monkeypatch.setattr(early_form, "_ask_broker", lambda _wish: (found, "", ""))

    assert "Only the first 3 messages were looked at." in Page(page.get(WAITING, {"queue": QUEUE})).text


def test_many_need_a_reason_and_the_typed_number(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    found = WaitingReport(queue=QUEUE, count=1200, causes=())
    monkeypatch.setattr(early_form, "_ask_broker", lambda _wish: (found, "", ""))
    refused = press(page, page.get(WAITING, {"queue": QUEUE}), "Send 1,200 retries now")

    assert refused.status_code == 422
    assert "Enter a reason" in Page(refused).text
    assert "Type 1200 to confirm" in Page(refused).text
    assert not RequeueRun.objects.exists()
    press(page, refused, "Send 1,200 retries now", reason="INC-7", typed="1200")
    assert RequeueRun.objects.get().total == 1200


def test_retries_that_wait_in_their_consumer_are_refused_in_words(page: Client) -> None:
    @handler(Queue("ledger.post"), policy=RetryThenPark(attempts=3, via=InPlace()))
    def post(message: Delivery) -> None:
        """Nothing."""

    answer = page.get(WAITING, {"queue": "ledger.post"})

    assert answer.status_code == 200
    assert "Retries of ledger.post wait unacked in its consumer, not in a queue" in Page(answer).text
    assert "Send" not in str(Page(answer).forms)
    assert page.get(WAITING, {"queue": "unknown"}).status_code == 404


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("place", ["in their consumer", "on the broker"])
def test_without_a_broker_the_page_has_one_alert_and_a_way_back(
    page: Client, monkeypatch: pytest.MonkeyPatch, settings: Any, place: str
) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "URL": "amqp://guest:guest@127.0.0.1:1/"}
    made.broker_seen(monkeypatch, away="connection refused")

    @handler(Queue("ledger.post"), policy=RetryThenPark(attempts=3, via=InPlace()))
    def post(message: Delivery) -> None:
        """Nothing."""

    answer = page.get(WAITING, {"queue": "ledger.post" if place == "in their consumer" else QUEUE})
    told = Page(answer)

    assert answer.content.decode().count('role="alert"') == 1
    assert told.links["Back to the queues"] == QUEUES
    assert ("Look again" in told.links) is (place == "on the broker")


@pytest.mark.usefixtures("waits")
def test_who_may_not_send_sees_how_many_wait_and_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, waiting=40, retries=40)
    client = client_of(made.person("viewer", "view_queuecontrol", "view_requeuerun"))
    text = Page(client.get(QUEUES)).text

    assert "40 wait for their retry" in text
    assert "Send the 40" not in text
    assert client.post(WAITING, {"queue": QUEUE, "start": "now"}).status_code == 403
    assert not RequeueRun.objects.exists()


@pytest.mark.usefixtures("waits")
def test_the_page_of_the_run_names_what_failed_again_and_what_was_left_out(page: Client) -> None:
    press(page, page.get(WAITING, {"queue": QUEUE}), "Send 40 retries now")
    run = RequeueRun.objects.get()
    RequeueRun.objects.update(state="finished", sent=38, processed=37, failed=1, skipped=2)
    EarlyRetry.objects.create(run=run, identity="i", shown=EVIL, state=ItemState.FAILED, sent_at=timezone.now())
    answer = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")

    assert "They became due before it was their turn" in Page(answer).text
    assert "<script>alert" not in answer.content.decode()
    assert "Requeue the 1" not in Page(answer).text


def test_the_timeline_of_a_message_that_was_parked_later_names_who_sent_it_early(page: Client) -> None:
    one = made.message(made.group())
    attempt = made.attempt(one, 1)
    run = early_runs.start(QUEUE, ANN, RequeueOptions(rate=1, stop_at=None), count=1, reason="bank is back")
    EarlyRetry.objects.create(run=run, identity=attempt.identity, sent_at=timezone.now())
    text = Page(page.get(f"/admin/rmq_retry/parkedmessage/{one.pk}/change/")).text

    assert "Sent before it was due by ann" in text
    assert "bank is back" in text
    found = OperatorAction.objects.filter(acts_on([one.pk]))
    assert [act.run for act in found] == [run.pk]


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("state", "words"), [("paused", "is paused with 19 of these."), ("running", "is to send 19 of these.")]
)
def test_the_preview_leads_to_the_run_that_has_some_of_the_same_retries(page: Client, state: str, words: str) -> None:
    """The preview said nothing of the paused run, and its button was refused."""
    made.waiting_retries(QUEUE, 19)
    run = early_runs.start(QUEUE, ANN, RequeueOptions(rate=1, stop_at=None), count=19, reason="bank is back")
    RequeueRun.objects.update(state=state)
    answer = page.get(WAITING, {"queue": QUEUE})

    assert f"Requeue run {run.pk} by ann {words}" in Page(answer).text
    assert re.findall(r'rmq-main"[^>]*>([^<]+)<', answer.content.decode()) == [f"Open requeue run {run.pk}"]
    other = Page(page.get(WAITING, {"queue": QUEUE, "error": "CardDeclined"}))
    assert f"Open requeue run {run.pk}" not in other.links
    assert f"Requeue run {run.pk} by" not in other.text


def test_the_page_of_a_group_names_the_run_that_has_its_waiting_retries(page: Client) -> None:
    cause = made.group()
    made.waiting_retries(QUEUE, 20)
    Attempt.objects.filter(verdict="retry").update(fingerprint=cause.fingerprint)
    run = early_runs.start(
        QUEUE, ANN, RequeueOptions(rate=1, stop_at=None), count=20, wanted=RetryFilter(group=(cause.pk,)), reason="r"
    )
    RequeueRun.objects.update(state="paused")
    text = Page(page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/")).text

    assert f"Send the 20 waiting retries now… Requeue run {run.pk} by ann is paused with 20 of these." in text
