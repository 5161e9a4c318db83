"""The head of a printed audit log: what it is, whether it is an extract, when and by whom it was printed."""

import re
from typing import Any

import pytest
from django.test import Client

from django_rmq_retry.admin.audit import OperatorActionAdmin
from django_rmq_retry.admin.message_list import CappedPaginator
from django_rmq_retry.models import Action, OperatorAction
from django_rmq_retry.parked.operators import Actor
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page
from tests.operators.made import logged

pytestmark = pytest.mark.django_db
AUDIT = "/admin/rmq_retry/operatoraction/"
LONG = Actor(name="anneliese.von-hohenstein-schwarzenberg@operations.bank-of-somewhere.example.com", source="admin")
REASON = "INC-553: the card scheme's operations handled these by hand. Do not requeue them under any circumstances"


def head(client: Client, **asked: str) -> str:
    """The words that only a print has, above the list."""
    page = client.get(AUDIT, asked).content.decode()
    found = re.search(r'<div class="rmq-paper">(.*?)</div>', page, re.DOTALL)
    assert found
    return " ".join(re.sub(r"<[^>]*>", " ", found[1]).split())


def test_a_printed_audit_log_says_what_it_is(page: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    logged(Action.DISCARD, message=1)

    said = head(page)

    assert said.startswith("Django administration · testserver As of 2")
    assert re.search(r" As of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d , printed by \w+\. All times: Europe/Berlin\.", said)
    assert said.endswith("All actions, without a filter or search Actions 1 to 1 of 1, page 1 of 1")


@pytest.mark.parametrize(
    ("asked", "only"),
    [
        ({"q": "PAY-1305"}, "search for “PAY-1305”"),
        ({"action__exact": "discard"}, "Action: Discard"),
        # Django takes it from the address, and has no choice for it.
        ({"action": "discard"}, "Action: discard"),
        ({"source": "cli", "q": "<ann>"}, "Source: cli · search for “&lt;ann&gt;”"),
    ],
)
def test_a_printed_extract_is_called_so(page: Client, asked: dict[str, str], only: str) -> None:
    logged(Action.DISCARD, message=1, subject="PAY-1305")

    assert f"Only: {only} " in head(page, **asked)


def test_a_print_of_the_own_actions_is_called_so() -> None:
    clerk = client_of(made.person("clerk", "view_operatoraction"))

    assert head(clerk).endswith("Only: your own actions 0 actions")
    assert head(clerk, source="cli").endswith("Only: your own actions · Source: cli 0 actions")


def test_a_print_says_which_page_of_how_many_it_is(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(51):
        logged(Action.DISCARD, message=number + 1)

    assert head(page).endswith("Actions 1 to 50 of 51, page 1 of 2")
    assert head(page, p="2").endswith("Actions 51 to 51 of 51, page 2 of 2")
    assert head(page, all="").endswith("Actions 1 to 51 of 51, page 1 of 1")
    monkeypatch.setattr(CappedPaginator, "most", 50)
    monkeypatch.setattr(OperatorActionAdmin, "list_per_page", 20)
    monkeypatch.setattr(OperatorActionAdmin, "list_max_show_all", 20)
    assert head(page, p="3").endswith("Actions 41 to 50 of 50+, page 3 of 3")


def test_a_print_has_names_and_reasons_in_full(page: Client) -> None:
    logged(Action.DISCARD, LONG, message=1, subject="PAY-1305", reason=REASON)
    seen = Page(page.get(AUDIT))

    # The screen's, and the print's.
    assert "…" in seen.text
    assert REASON in seen.text
    assert LONG.name in seen.text


def test_one_printed_action_says_where_and_when(page: Client) -> None:
    act = logged(Action.DISCARD, message=1)

    assert "Django administration · testserver As of " in Page(page.get(f"{AUDIT}{act.pk}/change/")).text


def test_an_action_on_the_log_itself_is_told_in_the_words_of_the_list(page: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    assert page.post(f"{AUDIT}export/", {"form": "csv"}).getvalue()
    listed = Page(page.get(AUDIT)).text
    act = Page(page.get(f"{AUDIT}{OperatorAction.objects.get().pk}/change/")).text

    assert re.search(r" Export Auditprotokoll .* Quelle admin ", listed)
    assert re.search(r" Gegenstand Auditprotokoll .* Quelle admin ", act)
