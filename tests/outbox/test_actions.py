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

from django_rmq_retry.models import OperatorAction, OutboxMessage
from django_rmq_retry.models.boxes import OutboxRows
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


def test_the_admin_retries_failed_messages_and_offers_no_discard(rows: dict[str, int]) -> None:
    client = signed_in("view_outboxmessage", "retry_outboxmessage")
    assert "1 message will be sent again." in act(client, "retry", [rows["stuck"]]).content.decode()
    act(client, "discard", [rows["failing"]])

    assert kept() == ["stuck", "failing", "fine"]
    assert list(OperatorAction.objects.order_by("number").values_list("action", flat=True)) == ["requeue"]


def status(*permissions: str) -> str:
    return signed_in("view_livestatus", *permissions).get(reverse(STATUS)).content.decode()


@pytest.mark.usefixtures("rows")
def test_failed_messages_are_on_the_status_page() -> None:
    told = status("view_outboxmessage")

    assert "1 message in the outbox failed." in told
    assert "No problems found." not in told
    assert f'href="{reverse(LIST)}"' in told
    assert f'href="{reverse(LIST)}"' not in status()


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
