"""Actions on messages in the outbox, by command and in the admin, and only with permission."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_rmq_retry import handler
from django_rmq_retry.models import ApprovalRequest, OperatorAction, OutboxMessage
from django_rmq_retry.models.boxes import OutboxRows
from tests.admin.looking import Page
from tests.commands.running import Exit, run
from tests.outbox.made import kept, left

pytestmark = [pytest.mark.database, pytest.mark.django_db]
LIST = "admin:rmq_retry_outboxmessage_changelist"
STATUS = "admin:rmq_retry_livestatus_changelist"


@pytest.fixture
def rows() -> dict[str, int]:
    """Create a failed row, a row that failed once, and a row that is being sent."""
    left("stuck", "failing", "fine", using="default")
    OutboxMessage.objects.filter(routing_key="stuck").update(
        failed_at=timezone.now(), attempts=15, error="312 NO_ROUTE"
    )
    OutboxMessage.objects.filter(routing_key="failing").update(attempts=1, error="312 NO_ROUTE <script>")
    return dict(OutboxMessage.objects.values_list("routing_key", "pk"))


def signed_in(*permissions: str) -> Client:
    user = User.objects.create_user(f"user {User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def act(client: Client, action: str, ids: Iterable[int]) -> Any:
    return client.post(reverse(LIST), {"action": action, "_selected_action": list(ids)}, follow=True)


def test_the_list_shows_each_waiting_row_with_its_reason(rows: dict[str, int]) -> None:
    ran = run("rmq_relay", "list")
    assert [line[:1] + line[2:5] + line[7:] for line in ran.lines[1:]] == [
        [str(rows["stuck"]), "failed", "15", "stuck", "312 NO_ROUTE"],
        [str(rows["failing"]), "retrying", "1", "failing", "312 NO_ROUTE <script>"],
        [str(rows["fine"]), "waiting", "0", "fine", ""],
    ]

    data = run("rmq_relay", "list", "--failed", "--json").data
    assert (data["waiting"], data["failed"], [item["id"] for item in data["items"]]) == (2, 1, [rows["stuck"]])


def test_an_empty_outbox_exits_with_nothing_found() -> None:
    ran = run("rmq_relay", "list")

    assert (ran.code, ran.err) == (Exit.NOTHING, "The outbox is empty.\n")


def test_a_list_of_what_failed_says_how_many_messages_wait_if_none_did(rows: dict[str, int]) -> None:
    OutboxMessage.objects.filter(pk=rows["stuck"]).delete()
    ran = run("rmq_relay", "list", "--failed")

    assert (ran.code, ran.err) == (Exit.NOTHING, "No message has failed; 2 messages wait.\n")


def test_the_retry_command_sends_failed_messages_again(rows: dict[str, int]) -> None:
    assert run("rmq_relay", "retry", "--all").code == Exit.UNCONFIRMED
    assert run("rmq_relay", "retry", "--all", "--yes").out == "1 message will be sent again.\n"

    row = OutboxMessage.objects.get(pk=rows["stuck"])
    assert (row.failed_at, row.attempts, row.due_at <= timezone.now()) == (None, 0, True)
    action = OperatorAction.objects.get()
    assert (action.action, action.subject, action.facts["outbox"]) == ("requeue", "id of stuck", "default")


def test_the_discard_command_deletes_only_failed_messages(rows: dict[str, int]) -> None:
    ids = [str(pk) for pk in rows.values()]
    ran = run("rmq_relay", "discard", *ids, "--reason", "INC-553", "--yes")

    assert (ran.code, ran.out, kept()) == (Exit.PARTLY, "2 messages discarded.\n", ["fine"])
    action = OperatorAction.objects.get()
    assert (action.action, action.reason, action.count) == ("discard", "INC-553", 2)


@pytest.mark.usefixtures("own_database")
@pytest.mark.django_db(databases=["default"])
def test_the_database_option_selects_the_outbox() -> None:
    left("there", using="own")
    OutboxMessage.objects.using("own").update(failed_at=timezone.now(), attempts=15)
    row = OutboxMessage.objects.using("own").get()
    ran = run("rmq_relay", "discard", str(row.pk), "--reason", "INC-553", "--yes", "--using", "own")

    assert (ran.code, OutboxMessage.objects.using("own").count()) == (Exit.DONE, 0)
    assert OperatorAction.objects.get().facts["outbox"] == "own"


@pytest.mark.parametrize("words", [("retry",), ("retry", "1", "--all"), ("discard", "--reason", "x")])
def test_a_command_without_a_selection_is_refused(words: tuple[str, ...]) -> None:
    assert run("rmq_relay", *words).code == Exit.USAGE


def test_the_admin_page_lists_rows_without_their_bodies(rows: dict[str, int]) -> None:
    client = signed_in("view_outboxmessage")
    page = client.get(reverse(LIST)).content.decode()
    assert "312 NO_ROUTE &lt;script&gt;" in page
    assert "<script>312" not in page

    one = client.get(reverse("admin:rmq_retry_outboxmessage_change", args=[rows["stuck"]])).content.decode()
    assert "id of stuck" in one
    assert 'name="body"' not in one


@pytest.mark.parametrize("action", ["retry", "discard", "delete_selected"])
def test_a_user_without_the_permission_changes_nothing(rows: dict[str, int], action: str) -> None:
    before = list(OutboxMessage.objects.values())
    act(signed_in("view_outboxmessage"), action, rows.values())

    assert list(OutboxMessage.objects.values()) == before
    assert not OperatorAction.objects.exists()


def test_the_admin_retries_failed_messages_and_its_list_discards_none(rows: dict[str, int]) -> None:
    client = signed_in("view_outboxmessage", "retry_outboxmessage", "discard_outboxmessage")
    assert "1 message will be sent again." in act(client, "retry", [rows["stuck"]]).content.decode()
    act(client, "discard", [rows["failing"]])

    assert kept() == ["stuck", "failing", "fine"]
    assert list(OperatorAction.objects.order_by("number").values_list("action", flat=True)) == ["requeue"]


def discard_page(row: int) -> str:
    return reverse("admin:rmq_retry_outboxmessage_discard", args=[row])


def row_page(row: int) -> str:
    return reverse("admin:rmq_retry_outboxmessage_change", args=[row])


def test_the_page_of_a_failed_message_discards_it_with_a_reason(rows: dict[str, int]) -> None:
    client = signed_in("view_outboxmessage", "discard_outboxmessage")
    links = Page(client.get(row_page(rows["stuck"]))).links
    shown = Page(client.get(discard_page(rows["stuck"]))).text
    unreasoned = client.post(discard_page(rows["stuck"]), {"text": " "})
    left_over = kept()
    done = client.post(discard_page(rows["stuck"]), {"text": "INC-553"}, follow=True)
    action = OperatorAction.objects.get()

    assert links["Discard…"] == discard_page(rows["stuck"])
    assert "1 message will never be sent." in shown
    assert (unreasoned.status_code, left_over) == (422, ["stuck", "failing", "fine"])
    assert "1 message was discarded and is never sent." in Page(done).text
    assert kept() == ["failing", "fine"]
    assert (action.action, action.reason, action.subject) == ("discard", "INC-553", "id of stuck")
    assert client.post(discard_page(rows["stuck"]), {"text": "INC-553"}).status_code == 404


@pytest.mark.usefixtures("no_handlers")
def test_a_discarded_message_is_found_by_its_id_and_business_key(rows: dict[str, int]) -> None:
    """Nothing told whether the payment had been sent: its row was gone, and the audit log knew its id only."""

    @handler("payments.main", keys=lambda message: message.data["payment"])
    def transfer(body: object) -> None: ...

    client = signed_in(*MAY, "view_parkedmessage", "view_operatoraction")
    OutboxMessage.objects.filter(pk=rows["stuck"]).update(routing_key="payments.main", body=b'{"payment": "PAY-80"}')
    client.post(discard_page(rows["stuck"]), {"text": "INC-553"})
    found = [client.get("/admin/rmq_retry/parkedmessage/", {"q": asked}) for asked in ("pay-80", "ID of stuck")]
    logged = Page(client.get("/admin/rmq_retry/operatoraction/", {"q": "pay-80"})).text
    listed = run("rmq_audit", "list", "--message", "pay-80", "--json").data["items"]

    assert ["Discarded from the outbox at " in Page(one).text for one in found] == [True, True]
    assert "/admin/rmq_retry/operatoraction/?q=PAY-80" in found[0].content.decode()
    assert "INC-553" in logged
    assert [one["reason"] for one in listed] == ["INC-553"]


def test_a_message_that_is_still_being_sent_is_not_discarded(rows: dict[str, int]) -> None:
    client = signed_in("view_outboxmessage", "discard_outboxmessage")
    refused = client.post(discard_page(rows["fine"]), {"text": "INC-553"}, follow=True)

    assert "Discard" not in Page(client.get(row_page(rows["fine"]))).text
    assert "1 message was not discarded: it was sent or discarded meanwhile, or may be on " in Page(refused).text
    assert kept() == ["stuck", "failing", "fine"]
    assert not OperatorAction.objects.exists()


def test_who_may_only_retry_sees_why_discard_is_not_offered(rows: dict[str, int]) -> None:
    client = signed_in("view_outboxmessage", "retry_outboxmessage")

    assert "Can discard failed messages of the outbox" in Page(client.get(row_page(rows["stuck"]))).text


@pytest.fixture
def second_person(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": {"DISCARD": 1}}


MAY = ("view_outboxmessage", "discard_outboxmessage", "view_approvalrequest", "approve_approvalrequest")


@pytest.mark.usefixtures("second_person")
def test_a_second_person_approves_a_discard_of_the_outbox(rows: dict[str, int]) -> None:
    ann, bob = signed_in(*MAY), signed_in(*MAY)
    page = Page(ann.get(discard_page(rows["stuck"]))).text
    ann.post(discard_page(rows["stuck"]), {"text": "INC-553"})
    [request] = ApprovalRequest.objects.all()
    waiting = kept()
    approve = reverse("admin:rmq_retry_approvalrequest_approve", args=[request.pk])
    shown = bob.get(reverse("admin:rmq_retry_approvalrequest_change", args=[request.pk]))
    words = {"seen": shown.context["seen"]}
    alone = ann.post(approve, words)
    still = kept()
    bob.post(approve, words)

    assert "A second person has to approve this." in page
    assert (waiting, alone.status_code, still) == (["stuck", "failing", "fine"], 403, ["stuck", "failing", "fine"])
    assert "Discard 1 message of the outbox" in Page(shown).text
    assert "1 message will never be sent." in Page(shown).text
    assert row_page(rows["stuck"]) in Page(shown).links.values()
    assert kept() == ["failing", "fine"]
    assert (ApprovalRequest.objects.get().state, ApprovalRequest.objects.get().changed) == ("done", 1)
    assert list(OperatorAction.objects.order_by("number").values_list("action", flat=True)) == [
        *("ask", "discard", "approve")
    ]


@pytest.mark.usefixtures("second_person")
def test_the_discard_command_asks_a_second_person_too(rows: dict[str, int]) -> None:
    words = ("rmq_relay", "discard", str(rows["stuck"]), str(rows["failing"]), "--reason", "INC-553", "--yes")
    ran = run(*words)
    [request] = ApprovalRequest.objects.all()
    preview = run("rmq_parked", "approve", str(request.pk), "--user", "bob", "--dry-run").err
    OutboxMessage.objects.filter(pk=rows["failing"]).delete()
    later = run("rmq_parked", "approve", str(request.pk), "--user", "bob", "--dry-run").err

    assert (ran.code, request.count, request.subject) == (Exit.ASKED, 2, "id of stuck, id of failing")
    assert "Discards 2 messages of the outbox 'default', never to be sent." in preview
    assert "Discards 1 message of the outbox 'default', never to be sent." in later


@pytest.mark.usefixtures("second_person")
def test_a_message_that_was_sent_meanwhile_is_not_discarded_by_an_approval(rows: dict[str, int]) -> None:
    ann, bob = signed_in(*MAY), signed_in(*MAY)
    ann.post(discard_page(rows["stuck"]), {"text": "INC-553"})
    [request] = ApprovalRequest.objects.all()
    OutboxMessage.objects.filter(pk=rows["stuck"]).delete()
    place = reverse("admin:rmq_retry_approvalrequest_change", args=[request.pk])
    shown = bob.get(place)
    approve = reverse("admin:rmq_retry_approvalrequest_approve", args=[request.pk])
    answer = bob.post(approve, {"seen": shown.context["seen"]})

    assert "1 message is not in the outbox any more" in Page(shown).text
    assert "it was sent or discarded meanwhile" in Page(answer).text
    assert ApprovalRequest.objects.get().state == "waiting"


def status(*permissions: str) -> str:
    return signed_in("view_livestatus", *permissions).get(reverse(STATUS)).content.decode()


@pytest.mark.usefixtures("rows")
def test_failed_messages_are_on_the_status_page() -> None:
    told = status("view_outboxmessage")

    assert "1 message in the outbox failed." in told
    assert "No problems found." not in told
    assert f'href="{reverse(LIST)}?state=failed"' in told
    assert f'href="{reverse(LIST)}' not in status()


def test_messages_that_wait_too_long_are_on_the_status_page(rows: dict[str, int]) -> None:
    OutboxMessage.objects.filter(pk=rows["stuck"]).delete()
    at_first = status()
    OutboxMessage.objects.filter(pk=rows["fine"]).update(created_at=timezone.now() - timedelta(minutes=19, seconds=5))

    assert "not sent" not in at_first
    assert "2 messages in the outbox not sent, the oldest for 19 min." in status()


def test_the_status_page_works_while_the_outbox_database_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_rows: OutboxRows) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(OutboxRows, "pending", away)

    assert "The outbox cannot be read: its database does not answer." in status()
