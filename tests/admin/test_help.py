"""The help: a user's permissions, with a reason for each missing one, in each page's dialog and on its own page."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from django_rmq_retry.parked.operators import PERMISSIONS
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page

pytestmark = pytest.mark.django_db
ADMIN = "/admin/rmq_retry/"
HELP = f"{ADMIN}errorgroup/help/"
PAGES = (
    *("errorgroup", "parkedmessage", "requeuerun", "operatoraction", "livestatus"),
    *("queuecontrol", "blockedkey", "outboxmessage", "consumerprocess"),
)
RULES = "The project's own rules may forbid for single messages"


def mine(user: User) -> dict[str, str]:
    """The page's text about each permission: the reason that it is missing, or nothing."""
    response = client_of(user).get(HELP)
    assert response.status_code == 200
    return {one.name: one.why for one in response.context["rmq_permissions"]()}


def test_the_help_shows_every_permission_of_a_superuser_as_allowed(lead: User, settings: Any) -> None:
    operating(settings, EDITABLE={"payment.*": True})

    assert set(mine(lead).values()) == {""}
    assert set(mine(lead)) == {str(name) for _codename, name in PERMISSIONS.values()}


def test_the_help_states_which_permission_is_missing(settings: Any) -> None:
    operating(settings, CONTACT="payments-oncall")
    support = made.person("support", "view_parkedmessage", "requeue")
    text = Page(client_of(support).get(HELP)).text
    why = "You need the permission “Can discard and restore messages”. Contact: payments-oncall."

    assert "✓ Can requeue messages allowed" in text
    assert f"✕ Can discard and restore messages not allowed {why}" in text


def test_the_help_names_each_missing_permission_of_a_combined_action() -> None:
    known = mine(made.person("editor", "edit_requeue", "bulk_requeue"))

    assert known["Can edit a message and requeue it"] == "You need the permission “Can see message bodies and headers”."
    assert known["Can requeue many messages at once"] == "You need the permission “Can requeue messages”."


@pytest.mark.parametrize("editable", [{}, {"payment.*": False}])
def test_the_help_states_that_editing_is_disabled(lead: User, settings: Any, editable: dict[str, bool]) -> None:
    operating(settings, EDITABLE=editable)
    why = mine(lead)["Can edit a message and requeue it"]

    assert why == "This project does not allow messages to be edited (setting EDITABLE)."


def test_the_help_mentions_project_rules_only_to_users_bound_by_them(lead: User, settings: Any) -> None:
    clerk = made.person("clerk")
    before = Page(client_of(clerk).get(HELP)).text
    operating(settings, PERMIT=lambda _user, _verb, _message: True)

    assert RULES not in before
    assert RULES in Page(client_of(clerk).get(HELP)).text
    assert RULES not in Page(client_of(lead).get(HELP)).text


@pytest.mark.parametrize("name", PAGES)
def test_each_page_has_the_help_dialog_and_links_to_the_help_page(lead: User, name: str) -> None:
    page = Page(client_of(lead).get(f"{ADMIN}{name}/"))

    assert page.links["Keyboard shortcuts and my permissions"] == HELP
    assert "x Select the row" in page.text
    assert "My permissions ✓ Can view parked message allowed" in page.text


def test_the_help_page_lists_the_keyboard_shortcuts(lead: User) -> None:
    text = Page(client_of(lead).get(HELP)).text

    assert text.count("x Select the row") == 2, "on the page, and in the dialog that every page has"


def test_the_help_needs_admin_access() -> None:
    nobody = made.person("newcomer")
    nobody.is_staff = False
    nobody.save()

    assert client_of(made.person("new")).get(HELP).status_code == 200
    assert client_of(nobody).get(HELP).status_code == 302
