"""A message that retention has deleted: 410, with its rows of the audit log for users who may see the log."""

import re

import pytest
from django.test import Client

from django_rmq_retry.models import Action, ParkedMessage
from django_rmq_retry.parked import audit
from django_rmq_retry.parked.operators import Actor, Approval
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page
from tests.operators.made import logged

pytestmark = pytest.mark.django_db
LIST = "/admin/rmq_retry/parkedmessage/"
AUDIT = "/admin/rmq_retry/operatoraction/"


def departed() -> int:
    """The number of a message that was deleted, after ann had discarded it."""
    made.message()
    one = made.message(business_key="PAY-88121")
    logged(Action.DISCARD, reason="duplicate: INC-553", message=one.pk, subject="PAY-88121")
    ParkedMessage.objects.filter(pk=one.pk).delete()
    return int(one.pk)


def at(number: int, what: str = "change") -> str:
    return f"{LIST}{number}/{what}/"


def test_the_page_of_a_deleted_message_lists_its_actions(page: Client) -> None:
    number = departed()
    response = page.get(at(number))
    seen = Page(response)

    assert response.status_code == 410
    assert f"Message #{number} no longer exists PAY-88121" in seen.text
    assert re.search(r"\bann\b.* Discard .*1 .*Duplicate: INC-553", seen.text)
    assert f"/admin/rmq_retry/operatoraction/?message={number}" in response.content.decode()


@pytest.mark.parametrize("what", ["edit", "restore", "unhold", "reveal", "body"])
def test_every_address_of_a_deleted_message_answers_410(page: Client, what: str) -> None:
    response = page.post(at(departed(), what), {"place": "iban", "text": "{}"})

    assert response.status_code == 410
    assert re.search(r"\bann\b.* Discard ", Page(response).text)


def test_the_history_of_a_deleted_message_answers_410(page: Client) -> None:
    assert page.get(at(departed(), "history")).status_code == 410
    assert page.get(at(made.message().pk, "history")).status_code == 200
    assert page.get(at(10**6, "history")).status_code == 404


def test_the_page_of_a_deleted_message_shows_no_more_than_the_audit_log() -> None:
    number = departed()
    looker = client_of(made.person("looker", "view_parkedmessage")).get(at(number))
    clerk = client_of(made.person("clerk", "view_parkedmessage", "view_operatoraction")).get(at(number))
    stranger = client_of(made.person("stranger")).get(at(number))

    assert (looker.status_code, clerk.status_code, stranger.status_code) == (410, 410, 403)
    assert "You need the permission “Can view action”." in Page(looker).text
    assert "The audit log shows you no action on this message." in Page(clerk).text
    for response in (looker, clerk, stranger):
        assert "ann" not in Page(response).text.split()
        assert b"PAY-88121" not in response.content


def test_a_deleted_message_without_actions_also_answers_410(page: Client) -> None:
    one, newer = made.message(), made.message()
    ParkedMessage.objects.filter(pk=one.pk).delete()
    response = page.get(at(one.pk))

    assert response.status_code == 410
    assert "The audit log shows you no action on this message." in Page(response).text
    assert page.get(at(newer.pk)).status_code == 200


def test_a_message_id_that_never_existed_answers_404(page: Client) -> None:
    newest = made.message().pk

    assert [page.get(at(number)).status_code for number in (0, newest + 1, 10**18, 10**30)] == [404] * 4
    assert page.post(at(newest + 1, "restore")).status_code == 404


def test_the_page_of_a_deleted_message_escapes_its_name(page: Client) -> None:
    number = departed()
    logged(Action.HOLD, message=number, subject="<img src=x>", reason="<img src=x>")
    content = page.get(at(number)).content

    assert b"<img src=x>" not in content
    assert b"&lt;img src=x&gt;" in content


@pytest.mark.parametrize("typed", ["PAY-88121", "pay-88121", " Pay-88121 "])
def test_the_audit_search_ignores_case_also_after_the_message_was_deleted(page: Client, typed: str) -> None:
    open_one, number = made.message(business_key="Pay-88121"), departed()
    logged(Action.HOLD, reason="the bank is away", message=open_one.pk, subject="Pay-88121")
    text = Page(page.get(AUDIT, {"q": typed})).text

    assert number != open_one.pk
    assert ("the bank is away" in text, "INC-553" in text) == (True, True)


def test_the_audit_search_says_that_no_message_has_the_key(page: Client) -> None:
    departed()
    made.message(business_key="PAY-7")
    unknown, quiet, found = (Page(page.get(AUDIT, {"q": key})).text for key in ("PAY-9", "pay-7", "PAY-88121"))
    blind = Page(client_of(made.person("auditor", "view_operatoraction")).get(AUDIT, {"q": "PAY-9"})).text

    assert "No message has the key, id or number PAY-9, and it is in no operator's name and no reason." in unknown
    assert "No action by or on pay-7 is recorded, and none with it in its reason." in quiet
    assert ("No message has" in found, "No action by" in found) == (False, False)
    assert "No action by or on PAY-9 is recorded, and none with it in its reason." in blind


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        *[("ROOT", {1}), ("root (root@vm)", {1}), ("root@v", {1}), ("anneliese", {2}), ("OPERATIONS.bank", {2})],
        *[("anneliese.von-hohenstein-schwarzenberg@operations.b…", {2}), ("bob", {3}), ("cat, approved by bob", {3})],
        *[("inc-553", {1, 2}), ("553 network", {1}), ("network root", {1}), ("network anneliese", set())],
        *[("pay-1 root", {1}), ("anneliese #12", {2}), ("PAY-1 INC-553", {1}), ("PAY-1 PAY-2", {3}), ("100%", {3})],
        *[("handled elsewhere", {2}), ("_", set()), ("…", set()), ("#12", {2, 3})],
    ],
)
def test_the_audit_search_finds_operators_and_reasons_by_parts(page: Client, typed: str, found: set[int]) -> None:
    one, two = made.message(pk=11, business_key="PAY-1"), made.message(pk=12, business_key="PAY-2")
    long = Actor(name="anneliese.von-hohenstein-schwarzenberg@operations.bank-of-somewhere.example")
    both = Actor(name="cat", approval=Approval(request=1, by="Bob", user_id=None))
    logged(Action.HOLD, Actor(name="root", behalf="root@vm"), on=one, subject="PAY-1", reason="INC-553 network test")
    logged(Action.DISCARD, long, on=two, subject="PAY-2", reason="handled elsewhere: INC-553")
    logged(Action.HOLD, both, messages=[one.pk, two.pk], count=2, reason="100% sure")
    rows = re.findall(r'rmq-paper"> #(\d+)<', page.get(AUDIT, {"q": typed}).content.decode())

    assert set(map(int, rows)) == found


def test_the_audit_search_reads_names_and_reasons_of_the_latest_actions(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged(Action.HOLD, reason="INC-1 older")
    logged(Action.HOLD, reason="INC-1 newer")
    most = audit.MOST_SAID
    monkeypatch.setattr(audit, "MOST_SAID", 1)
    text = Page(page.get(AUDIT, {"q": "INC-1"})).text

    assert ("older" in text, "newer" in text) == (False, True)
    assert f"in the latest {most:,} actions" in text
