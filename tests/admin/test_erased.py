"""The page of a message whose contents were erased, and of the actions on it."""

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.models import OperatorAction, State
from django_rmq_retry.parked.erasure import erase
from tests.admin import made
from tests.admin.conftest import linking
from tests.admin.looking import Page, address_of
from tests.operators.made import ANN, discard_messages

pytestmark = pytest.mark.django_db
KEY = "CUST-0211"


def test_the_page_says_who_erased_it_and_offers_nothing(page: Client, settings: object) -> None:
    linking(settings, CUSTOMER="https://crm.bank/{key}")
    one = made.message(business_key=KEY)
    made.attempt(one, 1)
    discard_messages([one.pk], ANN, category="other", text=f"{KEY} called")
    erase([KEY], ANN, reason="request 12")
    found = Page(page.get(address_of(one)))

    assert "Discarded" in found.text
    assert "Its contents were erased" in found.text
    assert "by ann." in found.text
    assert "Its body, headers, business keys and texts are gone for good." in found.text
    assert KEY not in found.text
    assert not {"Restore", "Export…", "Requeue…", "Body", "Links"} & set(found.text.split(" "))
    assert [tag for tag, attrs in found.tags if attrs.get("id") in ("rmq-body", "rmq-headers")] == []


@pytest.mark.parametrize("what", ["body", "reveal"])
def test_nothing_of_an_erased_message_is_downloaded_or_revealed(page: Client, what: str) -> None:
    one = made.message(business_key=KEY, state=State.DISCARDED, resolved_at=timezone.now())
    erase([KEY], ANN, reason="request 12")
    response = page.post(address_of(one, what), {"place": "body"})

    assert (response.status_code, "Its contents were erased" in Page(response).text) == (403, True)
    assert OperatorAction.objects.count() == 1


def test_an_action_whose_texts_were_erased_says_so(page: Client) -> None:
    one = made.message(business_key=KEY)
    discard_messages([one.pk], ANN, category="duplicate")
    erase([KEY], ANN, reason="request 12")
    first, second = (
        Page(page.get(f"/admin/rmq_retry/operatoraction/{row.pk}/change/"))
        for row in OperatorAction.objects.order_by("number")
    )

    assert "Its texts were erased on request; its row is sealed as before." in first.text
    assert "Rows of the audit log whose texts were erased 1" in second.text
    assert "request 12" in second.text
