"""The audit log on the command line, and the groups of permissions."""

import csv
import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.utils import timezone

from django_rmq_retry.models import OperatorAction, ParkedMessage
from django_rmq_retry.parked.audit import audit_head, verify
from django_rmq_retry.parked.operators import LABEL, PERMISSIONS, refusal
from django_rmq_retry.parked.queue_pauses import pause_queue, resume_queue
from django_rmq_retry.parked.retention import delete_resolved
from django_rmq_retry.parked.run_steering import change_rate
from django_rmq_retry.parked.selection import Selection
from tests.commands.running import run
from tests.operators.made import ANN, BOB, QUEUE, discard_messages, pause_run, record, requeue_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def acts() -> None:
    for actor in (ANN, BOB):
        discard_messages([record().pk], actor, category="other", text="=cmd()")


@pytest.mark.usefixtures("acts")
def test_actions_are_listed_with_the_latest_first() -> None:
    told = run("rmq_audit", "list")

    assert [row[2:5] for row in told.lines] == [
        ["BY", "ACTION", "COUNT"],
        ["bob", "discard", "1"],
        ["ann", "discard", "1"],
    ]
    assert [one["by"] for one in run("rmq_audit", "list", "--by", "ann", "--json").data["items"]] == ["ann"]
    assert run("rmq_audit", "list", "--message", "99999").code == 6


@pytest.mark.usefixtures("charge")
def test_what_was_done_to_a_queue_or_a_run_and_to_its_rate_is_plain() -> None:
    made = requeue_run([record().pk, record().pk], ANN, reason="INC-553")
    change_rate(made.pk, ANN, rate=2.5, reason="slow bank")
    pause_run(made)
    pause_queue(QUEUE, ANN, reason="bank is closed")
    resume_queue(QUEUE, BOB)
    told = run("rmq_audit", "list")

    assert [[row[3], *row[5:]] for row in told.lines[1:5]] == [
        ["resume", f"Resume queue: {QUEUE}", ""],
        ["pause", f"Pause queue: {QUEUE}", "bank is closed"],
        ["pause", f"run {made.pk}", ""],
        ["slow", f"run {made.pk}", "slow bank · 20 → 2.5"],
    ]


def test_actions_are_found_by_parts_of_reasons_and_of_names_as_in_the_admin() -> None:
    """The command knew whole names only, and no reasons: an auditor had to read all that it listed."""
    for actor, text in ((ANN, "paid by hand, INC-7"), (BOB, "test data")):
        discard_messages([record().pk], actor, category="other", text=text)

    def told(*words: str) -> list[str]:
        return [one["by"] for one in run("rmq_audit", "list", *words, "--json").data["items"]]

    assert told("--search", "PAID inc-7") == told("--search", "ann hand") == told("--by", "AN") == ["ann"]
    assert told("--search", "test", "--by", "bo") == ["bob"]
    assert run("rmq_audit", "list", "--search", "paid bob").code == 6
    assert "INC-7" in run("rmq_audit", "export", "--search", "inc-7").out


@pytest.mark.parametrize("purged", [False, True])
def test_who_discarded_a_payment_of_a_group_is_answered_by_number_key_and_message_id(*, purged: bool) -> None:
    rows = [record(key=f"PAY-{number}") for number in range(4)]
    discard_messages(Selection.of_filter({"group": rows[0].group_id}), category="duplicate", text="paid by hand")
    other = record(key="PAY-9")
    if purged:
        ParkedMessage.objects.filter(state="discarded").update(resolved_at=timezone.now() - timedelta(days=9000))
        assert delete_resolved(timezone.now()) == 4

    for asked in (str(rows[2].pk), "PAY-2", rows[2].message_id):
        [told] = run("rmq_audit", "list", "--message", asked, "--json").data["items"]
        assert (told["by"], told["action"], told["reason"]) == ("ann", "discard", "duplicate: paid by hand")
    for asked in (str(other.pk), "PAY-9", other.message_id, "nonsense"):
        assert run("rmq_audit", "list", "--message", asked).code == 6
    assert list(verify()) == []


def test_a_requeue_of_a_few_payments_names_their_keys_and_not_their_record_numbers() -> None:
    rows = [record(key="PAY-1"), record(key="PAY-2"), record(message_id="m-9"), record(key="Ä" * 90)]
    requeue_run([row.pk for row in rows[:3]])
    requeue_run([row.pk for row in (*rows[::-1], record())])
    rows[2].delete()
    discard_messages([row.pk for row in rows], category="test")

    told = run("rmq_audit", "list", "--json").data["items"]
    assert [one["subject"] for one in told] == [
        f"PAY-1, PAY-2, {'Ä' * 90}",
        f"PAY-1, PAY-2, m-9, {'Ä' * 90}, …",
        "PAY-1, PAY-2, m-9",
    ]
    assert "PAY-1, PAY-2, m-9" in run("rmq_audit", "list").out


@pytest.mark.usefixtures("acts")
def test_a_tampered_audit_log_fails_the_check() -> None:
    intact = run("rmq_audit", "verify")
    assert (intact.code, intact.out) == (0, "The audit log is complete: 2 rows.\n")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE rmq_retry_operatoraction SET reason = 'x' WHERE number = 1")
    told = run("rmq_audit", "verify", "--json")

    assert (told.code, told.data["problems"]) == (1, ["Row 1 was changed after it was written."])


@pytest.mark.usefixtures("acts")
def test_a_log_that_was_rewritten_as_a_whole_is_detected_by_a_head_that_was_kept() -> None:
    kept = run("rmq_audit", "head").out.strip()
    discard_messages([record().pk], ANN, category="other", text="later")
    assert run("rmq_audit", "verify", "--head", kept).code == 0

    previous = ""
    with connection.cursor() as cursor:
        for row in OperatorAction.objects.order_by("number"):
            row.reason, row.previous = "forged", previous
            row.close()
            previous = row.seal
            values = ("forged", row.salt, row.digest, row.previous, row.seal, row.number)
            columns = "reason = %s, salt = %s, digest = %s, previous = %s, seal = %s"
            cursor.execute(f"UPDATE rmq_retry_operatoraction SET {columns} WHERE number = %s", values)  # noqa: S608 - ours
        cursor.execute("UPDATE rmq_retry_audithead SET seal = %s", [previous])

    assert run("rmq_audit", "verify").code == 0
    told = run("rmq_audit", "verify", "--head", kept)
    assert (told.code, told.out) == (
        1,
        "The seal of row 2 differs from the one that was kept: the log was rewritten.\n",
    )


@pytest.mark.usefixtures("acts")
def test_a_head_that_was_kept_outlives_its_own_row_but_not_those_after_it() -> None:
    kept = audit_head()
    discard_messages([record().pk], ANN, category="other", text="later")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE rmq_retry_operatoraction SET at = %s WHERE number <= 2", [timezone.now() - timedelta(days=9000)]
        )
    run("rmq_audit", "purge", "--yes")
    assert list(verify(kept)) == []
    assert list(verify("1:ab")) == ["Row 1 was purged, so its seal cannot be compared. Keep a later head."]
    assert list(verify("9:ab")) == ["Row 9, whose seal was kept, does not exist: the last rows are missing."]
    assert run("rmq_audit", "head").out == f"{audit_head()}\n"
    assert json.loads(run("rmq_audit", "head", "--json").out)["head"] == audit_head()
    assert "takes what `rmq_audit head` printed" in run("rmq_audit", "verify", "--head", "yesterday").err


@pytest.mark.usefixtures("acts")
def test_an_audit_export_is_readable_and_holds_no_formula() -> None:
    rows = list(csv.DictReader(run("rmq_audit", "export", "--csv").out.splitlines()))
    lines = [json.loads(line) for line in run("rmq_audit", "export").out.splitlines()]

    assert [row["reason"] for row in rows][:2] == ["other: =cmd()", "other: =cmd()"]
    assert [line["action"] for line in lines] == ["discard", "discard", "export", "export"]


@pytest.mark.usefixtures("acts")
def test_the_audit_log_has_its_own_retention() -> None:
    assert run("rmq_audit", "purge").code == 6
    OperatorAction.objects.get(number=1)
    with connection.cursor() as cursor:
        old = timezone.now() - timedelta(days=9000)
        cursor.execute("UPDATE rmq_retry_operatoraction SET at = %s WHERE number = 1", [old])

    assert run("rmq_audit", "purge").out == "1 rows would be deleted. Pass --yes to delete.\n"
    assert run("rmq_audit", "purge", "--yes").out == "1 rows deleted.\n"
    assert list(OperatorAction.objects.order_by("number").values_list("action", flat=True)) == ["discard", "purge"]


def granted(role: str) -> set[str]:
    return set(Group.objects.get(name=f"rmq {role}").permissions.values_list("codename", flat=True))


def test_five_groups_get_the_permissions_of_their_roles() -> None:
    assert run("rmq_roles").code == 0
    every = {codename for codename, _name in PERMISSIONS.values()}

    assert Group.objects.count() == 5
    assert granted("lead") == every
    assert granted("support") & {"view_payload", "reveal_field", "view_traceback"} == set()
    assert granted("support") & {"bulk_requeue", "discard", "edit_requeue"} == set()
    assert granted("auditor") >= {"view_all_operatoraction", "export"}
    assert not granted("auditor") & {"requeue", "discard", "hold", "view_payload"}
    assert "requeue" not in granted("developer")


def test_roles_can_be_previewed_and_are_reset_on_each_run() -> None:
    told = run("rmq_roles", "--dry-run", "--json", "--only", "support")
    assert (list(told.data["roles"]), Group.objects.count()) == (["rmq support"], 0)
    run("rmq_roles")
    Group.objects.get(name="rmq support").permissions.clear()
    run("rmq_roles", "--only", "support")

    assert "requeue" in granted("support")


def test_every_granted_permission_exists() -> None:
    known = set(Permission.objects.filter(content_type__app_label=LABEL).values_list("codename", flat=True))

    assert {codename for codename, _name in PERMISSIONS.values()} <= known


def test_a_refusal_names_the_missing_permission_and_the_contact(settings: object) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"CONTACT": "payments-oncall"}}  # type: ignore[attr-defined]
    user = User.objects.create(username="ann")
    run("rmq_roles")
    refused = refusal(user, "requeue")
    user.groups.add(Group.objects.get(name="rmq support"))

    assert refused == "You need the permission “Can requeue messages”. Contact: payments-oncall."
    assert refusal(User.objects.get(), "requeue") == ""
    assert "Can requeue many" in refusal(User.objects.get(), "bulk_requeue")
