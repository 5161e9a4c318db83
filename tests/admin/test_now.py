"""Where an operator begins: the order of the pages, a row for each handler, and a field that finds messages."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.sites import AdminSite
from django.contrib.auth.models import Group, User
from django.db import Error, InterfaceError, OperationalError, ProgrammingError, connection
from django.db.models import F
from django.test import Client, RequestFactory
from django.utils import timezone

from django_rmq_retry import Delivery, Exponential, Fixed, RetryThenPark, WaitQueue, handler
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.groups import ErrorGroupAdmin
from django_rmq_retry.admin.status import LiveStatusAdmin
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.errors import BrokerUnreachable
from django_rmq_retry.health import facts
from django_rmq_retry.health.problems import unreachable
from django_rmq_retry.health.rules import Code
from django_rmq_retry.models import (
    Action,
    ErrorGroup,
    LiveStatus,
    ParkedMessage,
    QueueControl,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked import items
from django_rmq_retry.topology import Role
from django_rmq_retry.wording import second
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page
from tests.commands.running import parked
from tests.operators.made import discard_messages, logged, requeue_run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ADMIN = "/admin/rmq_retry/"
INDEX_TEMPLATE = "django.contrib.admin.site._wrapped.index_template"
"""Of the site itself: its lazy wrapper has no such attribute to restore."""
TASKS = [
    *("Live status", "Error groups", "Parked messages", "Requeue runs", "Queues"),
    *("Consumers", "Blocked keys", "Outbox messages", "Audit log"),
]


@pytest.mark.parametrize(
    "address", ["/admin/", ADMIN, f"{ADMIN}parkedmessage/", f"{ADMIN}livestatus/", "/admin/auth/user/"]
)
def test_pages_are_listed_in_the_order_of_the_work(page: Client, address: str) -> None:
    """On the index of the site and of the app, and in the sidebar of ours and of other apps' pages."""
    content = page.get(address).content.decode()
    listed = content.partition('class="app-rmq_retry module')[2].partition("</table>")[0]
    names = re.findall(r'<th scope="row"[^>]*>\s*<a [^>]*>([^<]+)</a>', listed)

    assert names == TASKS


def test_other_apps_keep_their_order(rf: RequestFactory, lead: User) -> None:
    site = AdminSite("other")
    pages: Any = {ErrorGroup: ErrorGroupAdmin, User: None, Group: None, LiveStatus: LiveStatusAdmin}
    for model, kind in pages.items():
        site.register(model, kind)
    request: Any = rf.get("/")
    request.user = lead
    listed = {app["app_label"]: [one["object_name"] for one in app["models"]] for app in site.get_app_list(request)}

    assert listed == {"auth": ["Group", "User"], "rmq_retry": ["LiveStatus", "ErrorGroup"]}
    assert [app["app_label"] for app in site.get_app_list(request, "rmq_retry")] == ["rmq_retry"]


def queues(home: str, *, ready: int = 0, waiting: int = 0, quarantine: int = 0, parked: int = 0) -> list[Level]:
    """The queues of one handler, each with as many messages."""
    own = Level(queue=home, role=Role.WORK, ready=ready, consumers=2)
    others = {
        f"{home}.retry.10s": (Role.WAITING, waiting),
        f"{home}.retry.30s": (Role.WAITING, 0),
        f"{home}.quarantine": (Role.QUARANTINE, quarantine),
        f"{home}.parked": (Role.PARKED, parked),
    }
    folded = (Level(queue=name, role=role, ready=held, consumers=0) for name, (role, held) in others.items())
    return [own, *folded]


@pytest.fixture
def handlers() -> None:
    """Two that retry after 10 and 30 seconds."""
    policy = RetryThenPark(attempts=3, backoff=Exponential(10, factor=3))

    @handler("transfer", policy=policy, name="bank.transfer")
    def transfer(message: Delivery) -> None:
        """Nothing."""

    @handler("card", policy=policy, name="bank.pay_by_card")
    def card(message: Delivery) -> None:
        """Nothing."""


def rows(client: Client) -> dict[str, list[str]]:
    """Return the cells of each row of the live status, by the name of its queue."""
    content = unescape(client.get(f"{ADMIN}livestatus/").content.decode().replace("<wbr>", ""))
    found = re.findall(r"<tr data-rmq-row>(<th.*?)</tr>", content, re.DOTALL)
    texts = [[" ".join(re.sub("<[^>]+>", " ", one).split()) for one in re.split("<t[hd]", row)[1:]] for row in found]
    return {cells[0].partition(">")[2].strip(): [one.partition(">")[2].strip() for one in cells[1:]] for cells in texts}


@pytest.mark.usefixtures("handlers")
def test_a_handler_is_one_row_with_all_that_its_queues_hold(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(
        monkeypatch, *queues("transfer", ready=3, waiting=7, quarantine=1, parked=2), *queues("card", ready=1)
    )
    made.waiting_retries("transfer", 7)
    for state in (State.PARKED, State.PARKED, State.ON_HOLD, State.PROCESSED):
        made.message(queue="transfer", state=state)
    content = page.get(f"{ADMIN}livestatus/").content.decode().partition("rmq-levels")[2]

    assert re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', content)[:7] == [
        "Queue", "Ready", "Waiting until due", "In quarantine", "Parked", "Consumers", "State",
    ]  # fmt: skip
    assert rows(page) == {
        "transfer": [
            "Ready 3",
            "Waiting until due 7",
            "In quarantine 1",
            "Parked 4",
            "Consumers 2",
            "! parked",
        ],
        "card pay_by_card": ["Ready 1", "Waiting until due 0", "In quarantine 0", "Parked 0", "Consumers 2", "✓ OK"],
    }
    assert "In quarantine are messages that came back several times without an outcome" in content
    assert f'href="{ADMIN}parkedmessage/?queue=transfer"' in content
    assert re.findall(r'href="([^"]*/waiting/[^"]*)"', content) == [f"{ADMIN}requeuerun/waiting/?queue=transfer"]


@pytest.mark.usefixtures("handlers")
def test_columns_that_hold_nothing_anywhere_are_left_out(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, *queues("transfer", ready=3), *queues("card"))
    content = page.get(f"{ADMIN}livestatus/").content.decode()
    before, _tag, folded = content.partition('<details class="rmq-fine rmq-fresh" data-rmq-fold="fine">')

    assert rows(page)["transfer"] == ["Ready 3", "Consumers 2", "✓ OK"]
    assert "Fine: nothing waits in 1 queue" in Page(page.get(f"{ADMIN}livestatus/")).text
    assert (">card<" in before, ">card<" in folded) == (False, True)


@pytest.mark.usefixtures("handlers")
def test_a_queue_whose_messages_wait_until_they_are_due_is_not_green(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.broker_seen(monkeypatch, *queues("transfer", waiting=40), *queues("card", ready=1))

    assert (rows(page)["transfer"][-1], rows(page)["card pay_by_card"][-1]) == ("… waiting", "✓ OK")
    told = Page(page.get(f"{ADMIN}queuecontrol/")).text
    assert ("… waiting" in told, told.count("✓ OK")) == (True, 1)


@pytest.mark.usefixtures("handlers")
def test_a_halt_has_one_severity_in_the_finding_the_row_and_the_queues(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.broker_seen(monkeypatch, *queues("transfer", ready=1), *queues("card"))
    for queue, minutes in (("transfer", 11), ("card", 3)):
        now = timezone.now()
        since = {"halted_at": now - timedelta(minutes=minutes), "halted_seen_at": now}
        QueueControl.objects.create(queue=queue, halted_attempt=4, halted_error="DiskFull: no space", **since)
    told, listed = Page(page.get(f"{ADMIN}livestatus/")).text, page.get(f"{ADMIN}queuecontrol/").content.decode()

    assert ("✕ Queue 'transfer' has been halted" in told, "! Queue 'card' has been halted" in told) == (True, True)
    assert (rows(page)["transfer"][-1], rows(page)["card pay_by_card"][-1]) == ("✕ halted", "! halted")
    badges = re.findall(r'rmq-badge rmq-is-([a-z-]+)"><span aria-hidden="true">(.)</span>&nbsp;halted', listed)
    assert badges == [("parked", "✕"), ("on-hold", "!")]


def test_messages_behind_blocked_keys_are_named_beside_the_parked_ones(page: Client) -> None:
    made.message(business_key="DE1")
    made.blocked_key(key="DE1", parked=True, waiting=7)
    told = page.get(f"{ADMIN}livestatus/")

    assert "7 more wait behind blocked keys." in Page(told).text
    assert Page(told).links["Blocked keys"] == f"{ADMIN}blockedkey/"


def sending_run(chosen: list[ParkedMessage], **facts: Any) -> RequeueRun:
    run = requeue_run([one.pk for one in chosen], reason="r", include=frozenset({"under_way"}))
    RequeueRun.objects.filter(pk=run.pk).update(**{"state": "running", **facts})
    return run


def test_parked_messages_that_a_run_is_to_send_are_named_with_it(page: Client) -> None:
    chosen = [made.message() for _ in range(2)]
    for state in ("paused", "finished"):
        sending_run([made.message()], state=state)
    run = sending_run(chosen)
    told = page.get(f"{ADMIN}livestatus/")

    some = f" Requeue run {run.pk} by ann is sending 2 of them; nobody sends the other 2."
    assert some in Page(told).text
    assert f'href="{ADMIN}requeuerun/{run.pk}/change/"' in told.content.decode()


def test_while_a_run_sends_all_that_is_parked_nothing_needs_you_and_the_card_names_the_run(page: Client) -> None:
    """The card said "1 thing needs you" and "49 messages parked: GatewayTimeout, growing", and named no run."""
    cause = made.group()
    run = sending_run([made.message(cause) for _ in range(2)], total=5, sent=3)
    card, site, status = (Page(page.get(address)) for address in (ADMIN, "/admin/", f"{ADMIN}livestatus/"))
    clerk = Page(client_of(made.person("clerk", "view_livestatus")).get(ADMIN))

    told = f"… 2 messages parked: GatewayTimeout. Requeue run {run.pk} by ann is sending them: 3 of 5 sent."
    assert [("Nothing needs you now." in one.text, "✓ No problems" in one.text) for one in (card, site, status)] == [
        (True, False)
    ] * 3
    assert told in status.text
    assert status.links[f"Open the requeue run {run.pk}"] == f"{ADMIN}requeuerun/{run.pk}/change/"
    assert [f"Requeue run {run.pk} ● Sending 3 of 5 sent ann" in one.text for one in (card, site)] == [True, True]
    assert card.links[f"Requeue run {run.pk}"] == f"{ADMIN}requeuerun/{run.pk}/change/"
    assert (f"Requeue run {run.pk}" in clerk.text, f"Requeue run {run.pk}" in clerk.links) == (True, False)


def test_an_active_run_tells_where_its_messages_are_and_why_it_was_started(page: Client) -> None:
    """It said "9/40": that six of them had failed again was on its own page only."""
    chosen = [made.message() for _ in range(4)]
    sending_run(chosen, state="paused", sent=3, processed=1, failed=2, by="ann", reason="INC-554")
    text = Page(page.get(f"{ADMIN}livestatus/")).text

    parts = "4 = 1 processed + 2 failed again + 1 not sent yet"
    assert f"{parts} ann: INC-554" in text.replace(" :", ":").partition("Active requeue runs")[2]


@pytest.mark.parametrize("limit", [1000, 2])
def test_a_run_is_never_said_to_send_more_parked_messages_than_there_are(
    page: Client, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """ "87 GatewayTimeout … Requeue run 2 is to send 91 of them": the run had not noted yet what was sent."""
    monkeypatch.setattr(items, "MOST_UNSENT_COUNTED", limit)
    chosen = [made.message() for _ in range(4)]
    run = sending_run(chosen)
    discard_messages([chosen[0].pk], category="test")
    some = Page(page.get(f"{ADMIN}livestatus/")).text
    discard_messages([one.pk for one in chosen[1:]], category="test")
    made.message()
    other = Page(page.get(f"{ADMIN}livestatus/")).text

    assert "3 messages parked" in some
    assert f"Requeue run {run.pk} by ann is sending them: 0 of 4 sent." in some
    assert "1 message parked" in other
    assert (f"Requeue run {run.pk} by ann is sending them" in other) == (limit < 4)


def test_a_message_that_two_runs_are_to_send_is_counted_once_and_a_changed_one_not(page: Client) -> None:
    chosen = [made.message() for _ in range(3)]
    runs = [sending_run(chosen[:2]), sending_run(chosen[1:])]
    both = Page(page.get(f"{ADMIN}livestatus/")).text
    ParkedMessage.objects.filter(pk=chosen[2].pk).update(revision=F("revision") + 1)
    changed = Page(page.get(f"{ADMIN}livestatus/")).text

    named = f"Requeue runs {runs[0].pk}, {runs[1].pk} by ann are sending"
    assert f"{named} them: 0 of 4 sent." in both
    assert f"{named} 2 of them; nobody sends the other 1." in changed


def test_the_banner_of_a_broker_that_is_away_is_in_the_readers_language_with_its_reason(
    page: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a German sentence stood "(The broker at … cannot be reached: …)"."""
    away = unreachable(BrokerUnreachable("amqp://rabbit", "ConnectionRefusedError"))
    seen = broker_look.Look(at=timezone.now(), away=away, since=timezone.now())
    monkeypatch.setattr(broker_look, "look", lambda: seen)
    english = Page(page.get(f"{ADMIN}livestatus/")).text
    settings.LANGUAGE_CODE = "de"
    german = Page(page.get(f"{ADMIN}livestatus/")).text

    assert "(The broker at amqp://rabbit cannot be reached: ConnectionRefusedError)" in english
    assert "(Der Broker amqp://rabbit" in german
    assert "nicht erreichbar: ConnectionRefusedError)" in german
    assert "cannot be reached" not in german


def test_what_only_follows_from_a_broker_that_is_away_is_folded_into_its_banner(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cause was five findings, of which an operator could end none."""
    made.broker_seen(monkeypatch, away="connection refused")
    made.message()
    made.consumer(connected=False)
    RequeueRun.objects.create(
        by="ann", created_at=timezone.now(), rate=20, total=9, state="running", wait=RunWait.BROKER_AWAY
    )
    full = RequeueRun.objects.create(
        by="ann", created_at=timezone.now(), rate=20, total=9, state="running", wait=RunWait.QUEUE_FULL
    )
    shown = page.get(f"{ADMIN}livestatus/")
    content, index = shown.content.decode(), Page(page.get(ADMIN)).text
    banner, needs = content.partition('id="rmq-broker-down"')[2].split('class="rmq-needs"')[:2]
    made.consumer()
    alone = page.get(f"{ADMIN}livestatus/")

    assert "2 findings follow from it" in banner
    assert "Without a connection to the broker" in banner
    assert "Without a connection to the broker" not in needs
    assert [one.problem.code for one in shown.context["needs"]] == [Code.PARKED, Code.RUN_WAITS]
    assert shown.context["needs"][1].problem.subject == str(full.pk)
    assert "3 things need you" in Page(shown).text
    assert "3 things need you" in index
    # Another process reaches the broker, so what else is wrong has a cause of its own.
    assert alone.context["following"] == []
    assert "5 things need you" in Page(alone).text


@pytest.mark.usefixtures("handlers")
def test_what_only_follows_from_dead_consumers_is_folded_under_them(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.broker_seen(monkeypatch, Level(queue="transfer", role=Role.WORK, ready=5, consumers=0))
    made.consumer(seconds=64, queues=["transfer"])
    since = timezone.now() - timedelta(minutes=9)
    made.outgoing(failed_at=None, attempts=0, error="", created_at=since, due_at=since)
    shown = page.get(f"{ADMIN}livestatus/")

    assert [one.problem.code for one in shown.context["needs"]] == [Code.ALL_VANISHED]
    assert "1 thing needs you" in Page(shown).text
    assert "1 finding follows from it 1 message in the outbox not sent, the oldest for 9 min." in Page(shown).text
    assert "1 thing needs you" in Page(page.get(ADMIN)).text


@pytest.mark.usefixtures("handlers")
def test_while_the_broker_is_away_what_was_wrong_before_stays_with_its_age(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A halted and an abandoned queue vanished from the findings, above a table of the same minute."""
    now = timezone.now()
    seen, lost = now - timedelta(minutes=3), now - timedelta(minutes=2)
    old = Level(queue="old", role=Role.WORK, ready=5, consumers=0, abandoned=True)
    last = broker_look.Look(at=seen, gauged=Gauged(levels=(*queues("transfer", ready=1), old), api_set=True))
    made.broker_seen(monkeypatch, away="connection refused", last=last)
    made.consumer(connected=False, lost_at=lost)
    since = {"halted_at": now - timedelta(minutes=15), "halted_seen_at": lost}
    QueueControl.objects.create(queue="transfer", halted_attempt=31, halted_error="DiskFull: no space", **since)
    told = page.get(f"{ADMIN}livestatus/")
    whys = {one.problem.code: one.problem.why for one in told.context["needs"]}

    assert list(whys) == [Code.HALTED_LONG, Code.ABANDONED]
    assert whys[Code.HALTED_LONG].endswith(f"Last known at {second(lost)}.")
    assert whys[Code.ABANDONED].endswith(f"Last known at {second(seen)}.")
    assert "attempt 31" in Page(told).text
    assert rows(page)["transfer"][-1] == "✕ halted"
    assert "✕ halted" in Page(page.get(f"{ADMIN}queuecontrol/")).text
    assert "3 things need you" in Page(page.get(ADMIN)).text


def test_a_message_that_the_broker_refused_does_not_follow_from_its_outage(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood under "follow from it", and its queue was missing before and after the outage."""
    made.broker_seen(monkeypatch, away="connection refused")
    made.outgoing(attempts=9, failed_at=None, created_at=timezone.now() - timedelta(minutes=9))
    told = page.get(f"{ADMIN}livestatus/")

    assert [one.problem.code for one in told.context["needs"]] == [Code.OUTBOX_REFUSED]
    assert told.context["following"] == []


def test_several_causes_have_a_button_to_all_of_them_beside_the_largest(page: Client) -> None:
    largest = made.group(title="BankDown")
    for cause in (*[largest] * 4, made.group(title="Once")):
        made.message(cause)
    needs = page.get(f"{ADMIN}livestatus/").context["needs"]

    assert [(one.label, one.address) for need in needs for one in need.buttons] == [
        ("Open the group", f"{ADMIN}errorgroup/{largest.pk}/change/"),
        ("All error groups", f"{ADMIN}errorgroup/"),
    ]


def test_several_causes_of_one_size_have_one_button_to_all_of_them(page: Client) -> None:
    """The button led to one of four groups, with a third of what was parked."""
    largest = made.group(title="BankDown")
    for cause in (*[largest] * 3, made.group(title="Once")):
        made.message(cause)
    needs = page.get(f"{ADMIN}livestatus/").context["needs"]

    assert [(one.label, one.address) for need in needs for one in need.buttons] == [
        ("Error groups", f"{ADMIN}errorgroup/"),
        ("Open the group", f"{ADMIN}errorgroup/{largest.pk}/change/"),
    ]


def test_the_button_of_a_stopped_queue_leads_to_that_queue(page: Client) -> None:
    QueueControl.objects.create(queue="payments.card", paused=True, since=timezone.now(), by="ann", reason="x")
    needs = page.get(f"{ADMIN}livestatus/").context["needs"]

    assert [(one.label, one.address) for one in needs[0].buttons] == [
        ("Open the queue", f"{ADMIN}queuecontrol/?q=payments.card")
    ]


def test_only_who_may_change_settings_reads_of_them(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, *queues("transfer", ready=3), api=False)
    viewer = client_of(made.person("viewer", "view_livestatus"))
    told = Page(viewer.get(f"{ADMIN}livestatus/")).text

    assert "MANAGEMENT_URL" in Page(page.get(f"{ADMIN}livestatus/")).text
    assert "MANAGEMENT_URL" not in told
    assert "Unacked messages and rates are not known here." in told


def test_without_any_action_the_live_status_says_so(page: Client) -> None:
    assert "No operator has acted yet." in Page(page.get(f"{ADMIN}livestatus/")).text


@pytest.mark.usefixtures("handlers")
def test_a_row_names_the_queue_of_a_problem_and_an_operator_who_paused_it(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, waiting, *others = queues("card")
    read = Level(queue=waiting.queue, role=Role.WAITING, ready=0, consumers=1)
    left = Level(queue="refund", role=Role.WORK, ready=25, consumers=0, abandoned=True, home="refund")
    parked = Level(queue="refund.parked", role=Role.PARKED, ready=2, consumers=0, abandoned=True, home="refund")
    made.broker_seen(monkeypatch, *queues("transfer"), first, read, *others, left, parked)
    QueueControl.objects.create(queue="transfer", paused=True, by="lead")
    shown = rows(page)

    assert shown["transfer"][-1] == "‖ paused by lead"
    assert shown["card pay_by_card"][-1] == "✕ read too early card.retry.10s"
    assert shown["refund work"][:2] == ["Ready 25", "Parked 2"]
    assert shown["refund work"][-1] == "✕ abandoned ✕ abandoned refund.parked"


@pytest.mark.usefixtures("handlers")
def test_parked_messages_of_a_row_are_counted_by_one_query(
    page: Client, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    made.broker_seen(monkeypatch, *queues("transfer"), *queues("card"))
    cause = made.group()
    for queue in ("transfer", "transfer", "transfer", "card", "gone"):
        made.message(cause, queue=queue)

    with django_assert_num_queries(1):
        assert facts.parked_in(["transfer", "card", "mail"]) == {"transfer": 3, "card": 1, "mail": 0}
    assert ["Parked 3" in rows(page)["transfer"], "Parked 1" in rows(page)["card pay_by_card"]] == [True, True]
    assert facts.parked_in(['it\'s "odd" %s \\ ?']) == {'it\'s "odd" %s \\ ?': 0}


@pytest.mark.parametrize("address", ["livestatus/", ""])
@pytest.mark.parametrize(
    "asked", ["PAY-80007", "pay-80007", "9f3c-80007", "CUST-7", " PAY-80007 ", "PAY-80007 PAY-80008"]
)
def test_one_field_finds_a_message_by_what_an_operator_has_of_it(page: Client, address: str, asked: str) -> None:
    one = made.message(
        business_key="PAY-80007", keys=["PAY-80007", "CUST-7"], message_id="9f3c-80007", state=State.PROCESSED
    )
    made.message(business_key="PAY-80008", keys=["PAY-80008"])
    form, values = Page(page.get(ADMIN + address)).form_with("Search")
    answer = page.get(form.action, {**values, "q": asked}, follow=True)
    landed = answer.redirect_chain[-1][0]

    assert (form.action, form.method) == (f"{ADMIN}parkedmessage/", "get")
    if "PAY-80008" in asked:
        assert landed.startswith(f"{ADMIN}parkedmessage/keys/?list=")
        assert ("PAY-80007" in Page(answer).text, "PAY-80008" in Page(answer).text) == (True, True)
    else:
        assert landed == f"{ADMIN}parkedmessage/{one.pk}/change/"


@pytest.mark.parametrize(
    "address",
    [
        *("errorgroup/", "errorgroup/{group}/change/", "parkedmessage/{message}/change/", "requeuerun/"),
        *("queuecontrol/", "consumerprocess/", "blockedkey/", "outboxmessage/", "operatoraction/", "approvalrequest/"),
    ],
)
def test_every_page_has_the_field_that_finds_messages_and_its_key(page: Client, address: str) -> None:
    one = made.message(business_key="PAY-80007", keys=["PAY-80007"])
    content = page.get(ADMIN + address.format(group=one.group_id, message=one.pk)).content.decode()
    [field] = re.findall(r"<input[^>]*data-rmq-search>", content)

    assert 'name="q"' in field
    assert f'action="{ADMIN}parkedmessage/"' in content
    assert "data-rmq-help" in content


def test_the_list_has_one_search_field_which_keeps_its_filters(page: Client) -> None:
    content = page.get(f"{ADMIN}parkedmessage/?state=processed&q=PAY-9").content.decode()
    [form] = re.findall(r'<form class="rmq rmq-find-one".*?</form>', content, re.DOTALL)

    assert 'name="state" value="processed"' in form
    assert 'value="PAY-9"' in form
    assert content.count('id="searchbar"') == 1


def test_the_index_of_the_site_has_a_card_with_the_numbers_and_the_search(page: Client, settings: Any) -> None:
    """Issue 27, section 1: five seconds to the truth where one signs in."""
    operating(settings, ENVIRONMENT="PRODUCTION")
    calm = Page(page.get("/admin/")).text
    for _ in range(2):
        made.message()
    loud, elsewhere = Page(page.get("/admin/")), Page(page.get("/admin/auth/user/")).text
    clerk = Page(client_of(made.person("clerk", "view_parkedmessage")).get("/admin/")).text

    assert "PRODUCTION Find a message Search 1 thing needs you" in loud.text
    assert loud.text.count("2 messages parked") == 1
    assert loud.links["Live status"] == f"{ADMIN}livestatus/"
    assert [form.action for form in loud.forms if form.method == "get"] == [f"{ADMIN}parkedmessage/"]
    assert "Nothing is parked. Live status" in calm
    assert ["PRODUCTION" in text or "need you" in text for text in (elsewhere, clerk)] == [False, False]


def test_an_index_with_a_template_of_the_project_says_it_in_our_place_of_its_list(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(INDEX_TEMPLATE, "admin/index.html")
    calm = Page(page.get("/admin/")).text
    made.message()
    loud, elsewhere = Page(page.get("/admin/")).text, Page(page.get("/admin/auth/user/")).text
    clerk = Page(client_of(made.person("clerk", "view_parkedmessage")).get("/admin/")).text

    assert "Message processing · 1 thing needs you" in loud
    assert [" · " in text and "need" in text for text in (calm, elsewhere, clerk)] == [False] * 3


def test_a_site_keeps_the_template_of_its_index() -> None:
    class Own(AdminSite):
        index_template = "own/index.html"

    own = Own("own")
    own.register(LiveStatus, LiveStatusAdmin)

    assert own.index_template == "own/index.html"


def test_without_its_tables_the_index_of_the_site_is_shown(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_options: Any) -> None:
        raise ProgrammingError("no such table: rmq_retry_parkedmessage")

    monkeypatch.setattr("django_rmq_retry.admin.status.survey", missing)

    assert page.get("/admin/").status_code == 200


def test_a_run_that_its_guard_paused_is_on_the_index_however_much_else_is_wrong(page: Client) -> None:
    """It was one of "and 3 more", while its operator believed that it sent."""
    for place in range(5):
        QueueControl.objects.create(queue=f"old.{place}", opened=True, opened_at=timezone.now())
    cause = made.group()
    run = requeue_run([made.message(cause).pk, made.message(cause).pk])
    RequeueRun.objects.filter(pk=run.pk).update(state=RunState.PAUSED, wait=RunWait.GUARD)
    text = Page(page.get(ADMIN)).text

    assert text.count("The breaker of queue") == 5
    assert text.index("The breaker of queue") < text.index("paused itself")


def test_a_part_that_gets_old_has_a_time_of_the_zone_of_all_other_times(page: Client, settings: Any) -> None:
    """The time "as of 00:49" by the browser stood beside "next probe at 01:53" by the server."""
    settings.TIME_ZONE = "Pacific/Kiritimati"
    hour = f"{timezone.localtime():%H}:"
    whole, part = page.get(f"{ADMIN}livestatus/"), page.get(f"{ADMIN}livestatus/", {"fragment": 1})

    assert f'data-rmq-pulse="{hour}' in whole.content.decode()
    assert part["Rmq-Clock"].startswith(hour)


def test_groups_of_which_all_are_on_hold_come_last(page: Client) -> None:
    held, waits = made.group(title="RateLimited"), made.group(title="AccountClosed")
    for _ in range(3):
        made.message(held, state=State.ON_HOLD)
    made.message(waits)
    text = Page(page.get(f"{ADMIN}errorgroup/")).text

    assert text.index("AccountClosed") < text.index("RateLimited")


def _failed_again_in_the_command() -> int:
    [group] = parked("groups", "--all", "--json").data["items"]
    return int(group["failed_again"])


def test_what_was_not_confirmed_is_not_said_to_have_failed_again(page: Client) -> None:
    """Two whose requeue the broker had not confirmed were "2 failed again", which invites to send them once more."""
    cause = made.group(failed_again=2)
    made.message(cause, cycle=2, unconfirmed=True)
    made.message(cause, cycle=2)

    assert "1 of these failed again" in Page(page.get(f"{ADMIN}errorgroup/{cause.pk}/change/")).text


def test_the_page_of_a_group_counts_as_failed_again_what_is_still_open(page: Client) -> None:
    """The words "7 failed again" stayed after all seven had been processed; the command never counted less."""
    group = made.group(failed_again=3)
    made.message(group, cycle=2)
    made.message(group)
    address = f"{ADMIN}errorgroup/{group.pk}/change/"
    before, printed = Page(page.get(address)).text, _failed_again_in_the_command()
    ParkedMessage.objects.filter(cycle=2).update(state=State.PROCESSED)
    after = Page(page.get(address)).text

    assert ("1 of these failed again" in before, "failed again" in after) == (True, False)
    assert (printed, _failed_again_in_the_command()) == (1, 0)


def test_a_finding_on_the_index_leads_to_its_page(page: Client) -> None:
    one = made.message(made.group(title="BankDown"))
    content = page.get(ADMIN).content.decode()

    assert re.search(rf'<a href="{ADMIN}errorgroup/{one.group_id}/change/">1 message parked: BankDown', content)


@pytest.mark.parametrize("index", [ADMIN, "/admin/"])
def test_what_was_handled_twice_is_on_the_index_however_much_else_is_wrong(page: Client, index: str) -> None:
    """It was behind "and 4 more" while three payments had been made twice."""
    for number in range(6):
        QueueControl.objects.create(queue=f"bank.{number}", opened_at=timezone.now(), opened=True, cause="BankDown")
    for _ in range(4):
        RequeueRun.objects.create(
            state=RunState.FINISHED, created_at=timezone.now(), finished_at=timezone.now(), by="ann", handled_twice=3
        )
    lines = Page(page.get(index)).text
    twice, breakers = (lines.count(words) for words in ("were handled twice", "The breaker of queue"))

    assert twice == 1, lines
    # One line of the four runs: the others take no place of a breaker.
    assert breakers == (4 if index == ADMIN else 2)
    assert lines.index("were handled twice") < lines.index("The breaker of queue")


@pytest.mark.parametrize("index", [ADMIN, "/admin/"])
def test_the_index_has_its_problems_in_the_order_of_the_live_status(page: Client, index: str) -> None:
    """An amber run was above the red breaker there, and below it on the page behind."""
    fields = {"created_at": timezone.now(), "by": "ann"}
    RequeueRun.objects.create(**fields, state=RunState.PAUSED, wait=RunWait.GUARD, total=9, sent=2)
    RequeueRun.objects.create(**fields, state=RunState.FINISHED, finished_at=timezone.now(), handled_twice=3)
    QueueControl.objects.create(queue="bank", opened_at=timezone.now(), opened=True, cause="BankDown")
    words = ("were handled twice", "The breaker of queue", "paused itself")
    orders = []
    for address in (index, f"{ADMIN}livestatus/"):
        text = Page(page.get(address)).text
        orders.append(sorted(words, key=text.index))

    assert orders == [list(words), list(words)]


@pytest.mark.parametrize("first", [ADMIN, "/admin/", "/admin/login/"])
def test_the_first_page_of_an_operator_says_that_the_database_is_away(page: Client, first: str) -> None:
    """It was "Server Error (500)", and an operator starts there."""

    def lost(*_query: Any) -> None:
        raise OperationalError from OSError("connection refused")

    with connection.execute_wrapper(lost):
        answer = page.get(first)

    assert (answer.status_code, answer["Rmq-Away"]) == (503, "database")
    assert "The database does not answer" in Page(answer).text
    assert Page(answer).links["Load the page again"] == first


@pytest.mark.parametrize("own_template", [False, True])
@pytest.mark.parametrize("fault", [OperationalError, InterfaceError])
def test_the_index_of_the_site_is_shown_without_the_database_of_the_records(
    page: Client, fault: type[Error], own_template: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a bare "Server Error (500)", and with it all other pages of the site were out of reach."""
    before = page.get("/admin/").status_code
    if own_template:
        monkeypatch.setattr(INDEX_TEMPLATE, "admin/index.html")

    def lost(execute: Any, sql: str, *more: Any) -> Any:
        if "rmq_retry_" in sql:
            raise fault from OSError("connection refused")
        return execute(sql, *more)

    with connection.execute_wrapper(lost):
        answer = page.get("/admin/")

    assert (before, answer.status_code) == (200, 200)
    assert "Site administration" in Page(answer).text


@pytest.mark.parametrize("address", ["livestatus/", ""])
def test_who_may_not_see_messages_has_no_field_that_finds_them(address: str) -> None:
    viewer = client_of(made.person("viewer", "view_livestatus"))

    assert "Find a message" not in Page(viewer.get(ADMIN + address)).text


@pytest.mark.usefixtures("page")
def test_who_may_not_see_the_live_status_finds_messages_on_the_index() -> None:
    clerk = Page(client_of(made.person("clerk", "view_parkedmessage")).get(ADMIN)).text

    assert ("Find a message" in clerk, "Nothing is parked. Live status" in clerk) == (True, False)


def test_the_head_of_the_index_says_what_the_live_status_says(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: five seconds to the truth, on each page where one begins."""
    work = [Level(queue=name, role=Role.WORK, ready=0, consumers=1) for name in ("transfer", "card")]
    made.broker_seen(monkeypatch, *work)
    quiet = Page(page.get(ADMIN)).text
    made.broker_seen(monkeypatch, *(Level(queue=one.queue, role=Role.WORK, ready=0, consumers=0) for one in work))
    made.consumer(seconds=64, host="vm", pid=18494)
    made.message()
    for place in range(5):
        QueueControl.objects.create(queue=f"old.{place}", paused=True, by="lead", since=timezone.now())
    index, status = (Page(page.get(ADMIN + address)).text for address in ("", "livestatus/"))

    assert "✓ No problems found." in quiet
    assert ("7 things need you" in index, "7 things need you" in status) == (True, True)
    assert re.search(r"✕ No consumer is alive\. Last heartbeat 1 min ago: vm:18494\.", index)
    assert index.index("No consumer is alive") < index.index("1 message parked") < index.index("Queue 'old.")
    assert [f"Queue 'old.{place}' has been paused" in index for place in range(5)] == [True] * 3 + [False] * 2
    assert "and 2 more : paused queues 2" in index


def test_the_head_of_the_index_is_not_green_while_the_broker_is_away(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.broker_seen(monkeypatch, away="connection refused")
    text, status, site = (Page(page.get(address)).text for address in (ADMIN, f"{ADMIN}livestatus/", "/admin/"))

    assert "No connection to the broker (" in text
    assert ["1 thing needs you" in one for one in (text, status, site)] == [True, True, True]
    assert "✓" not in text.partition("Keyboard shortcuts")[0]


def test_without_its_tables_the_index_still_lists_the_pages(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_options: Any) -> None:
        raise ProgrammingError("no such table: rmq_retry_parkedmessage")

    monkeypatch.setattr("django_rmq_retry.admin.status.survey", missing)
    response = page.get(ADMIN)

    assert (response.status_code, "things need you" in Page(response).text) == (200, False)


def test_messages_on_hold_are_not_counted_as_parked_on_any_page(page: Client) -> None:
    """T13: "12 groups · 4752 messages parked" stood beside "Parked 4712"."""
    cause = made.group()
    for state in (State.PARKED, State.PARKED, State.PARKED):
        made.message(cause, state=state)
    made.message(cause, state=State.ON_HOLD, held_until=timezone.now() + timedelta(hours=1))
    groups, status, index = (Page(page.get(ADMIN + name)).text for name in ("errorgroup/", "livestatus/", ""))

    assert "1 group · 3 messages parked · 1 on hold" in groups
    assert re.search(r"Parked 3 oldest \S+ \S+ \S+ 1 on hold · the first until \d", status)
    assert "3 messages parked:" in index


@pytest.mark.parametrize(("query", "said"), [("state=processed", "2 messages"), ("q=PAY-9", "0 messages"),
                                             ("", "1 message")])  # fmt: skip
def test_the_number_below_a_list_does_not_call_all_messages_parked(page: Client, query: str, said: str) -> None:
    """T13: "1 parked message" stood under processed ones."""
    for state in (State.PROCESSED, State.PROCESSED, State.PARKED):
        made.message(state=state)
    content = page.get(f"{ADMIN}parkedmessage/?{query}").content.decode().rpartition('class="paginator"')[2]
    below = " ".join(re.sub("<[^>]+>", " ", re.split("</nav>|</p>", content)[0]).split())

    assert (said in below, "parked message" in below.removeprefix("Pagination")) == (True, False)


def test_the_audit_filter_for_pauses_names_neither_queues_nor_runs(page: Client) -> None:
    """T13: "Pause requeue run" found queues that were paused."""
    logged(Action.PAUSE, subject="payments.main", facts={"until": None})
    logged(Action.PAUSE, run=3)
    filters = [
        text for text in Page(page.get(f"{ADMIN}operatoraction/")).links if text in ("Pause", "Pause requeue run")
    ]
    shown = Page(page.get(f"{ADMIN}operatoraction/?action__exact=pause")).text

    assert filters == ["Pause"]
    assert ("Pause queue payments.main" in shown, "Pause requeue run" in shown) == (True, True)


def test_retries_in_a_waiting_queue_that_handlers_share_are_counted_once(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = RetryThenPark(backoff=Fixed(60), via=WaitQueue("waits", "waits"))
    for queue in ("transfer", "card"):

        @handler(queue, policy=shared, name=queue)
        def handle(message: Delivery) -> None:
            """Nothing."""

    for queue in ("transfer", "card"):
        one = made.message(queue=queue, attempts=0, state=State.PROCESSED)
        made.attempt(one, 1, verdict="retry", next_at=timezone.now() + timedelta(minutes=1))
    made.broker_seen(monkeypatch, Level(queue="waits", role=Role.WAITING, ready=2, consumers=0))

    assert "Waiting until due 2 " in Page(page.get(f"{ADMIN}livestatus/")).text
