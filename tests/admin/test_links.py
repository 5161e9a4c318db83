"""The links of messages and error groups into the project's other systems."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from django_rmq_retry.models import BusinessKey, ParkedMessage
from tests.admin import made
from tests.admin.conftest import linking
from tests.admin.looking import EVIL, Page, address_of, scripts_in
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
AT = datetime(2026, 11, 27, 17, 4, tzinfo=UTC)
HOST = "https://tools.bank/"


def links(response: Any) -> dict[str, str]:
    """The links that leave the admin, by their labels."""
    page = Page(response)
    found = [attrs for tag, attrs in page.tags if tag == "a" and attrs.get("href", "").startswith("https://")]
    assert {one.get("rel") for one in found} <= {"noopener"}
    words = {name: one for name in ("Logs", "Ticket", "Customer", "Runbook") for one in found if name in page.text}
    assert len(found) == len(words)
    return dict(zip(words, (one["href"] for one in found), strict=True))


def keyed(*keys: str, **fields: Any) -> ParkedMessage:
    one = made.message(business_key=keys[0], **fields)
    for key in keys[1:]:
        BusinessKey.objects.create(message=one, value=key)
    return one


def test_a_message_links_to_its_logs_customer_ticket_and_runbook(page: Client, settings: Any) -> None:
    linking(
        settings,
        LOGS=HOST + "logs?id={message_id}&trace={trace_id}&q={queue}&from={from}&to={to_ms}",
        TICKET=HOST + "browse/{ticket}",
        CUSTOMER=HOST + "crm/{key2}?payment={key}",
        RUNBOOK=HOST + "wiki/{error}#{handler}",
    )
    one = keyed(
        "PAY 1/2",
        "CUST-0211",
        message_id="9f3c",
        parked_at=AT,
        published_at=AT - timedelta(minutes=21),
        traceparent=f"00-{7:032x}-{1:016x}-00",
        group=made.group(ticket="BANK-5"),
    )

    expected = {
        "Logs": f"{HOST}logs?id=9f3c&trace={7:032x}&q=payments.main&from=2026-11-27T16%3A38%3A00Z&to=1795799340000",
        "Ticket": f"{HOST}browse/BANK-5",
        "Customer": f"{HOST}crm/CUST-0211?payment=PAY%201%2F2",
        "Runbook": f"{HOST}wiki/GatewayTimeout#transfer",
    }
    assert links(page.get(address_of(one))) == expected
    shown = json.loads(run("rmq_parked", "show", str(one.pk), "--json").out)
    assert shown["links"] == {name.lower(): address for name, address in expected.items()}
    assert f"runbook          {expected['Runbook']}" in run("rmq_parked", "show", str(one.pk)).out


def test_an_error_group_links_to_what_its_messages_have_in_common(page: Client, settings: Any) -> None:
    linking(
        settings,
        LOGS=HOST + "logs?q={queue}&error={error}&group={group}&from={from}&to={to}",
        CUSTOMER=HOST + "crm/{key}",
        TICKET=HOST + "browse/{ticket}",
    )
    group = made.group(first_seen=AT, last_seen=AT + timedelta(hours=2))
    made.message(group)
    times = "from=2026-11-27T16%3A59%3A00Z&to=2026-11-27T19%3A09%3A00Z"

    assert links(page.get(f"/admin/rmq_retry/errorgroup/{group.pk}/change/")) == {
        "Logs": f"{HOST}logs?q=payments.main&error=GatewayTimeout&group={group.pk}&{times}"
    }


def test_a_link_whose_value_is_missing_is_not_shown(page: Client, settings: Any) -> None:
    linking(settings, LOGS=HOST + "{correlation_id}", TICKET=HOST + "{ticket}", CUSTOMER=HOST + "{key3}")
    one = keyed("PAY-1", "CUST-1", correlation_id="")

    assert links(page.get(address_of(one))) == {}
    assert "Links" not in Page(page.get(address_of(one))).text


@pytest.mark.parametrize("value", [EVIL, "javascript:alert(1)", "//evil.example/", "a\r\nb", "\x7f\u2028é"])
def test_a_hostile_value_leads_to_no_other_host_and_runs_nothing(page: Client, settings: Any, value: str) -> None:
    linking(settings, LOGS=HOST + "logs/{key}/end", RUNBOOK=HOST + "wiki?q={error}#{error}")
    response = page.get(address_of(keyed(value, error=value)))
    addresses = links(response).values()

    assert len(addresses) == 2
    assert {urlsplit(one).hostname for one in addresses} == {"tools.bank"}
    assert {urlsplit(one).path.count("/") for one in addresses} == {1, 3}
    assert scripts_in(response) == []


@pytest.mark.parametrize("value", [".", "..", "..."])
def test_a_value_that_means_another_folder_has_no_link(page: Client, settings: Any, value: str) -> None:
    linking(settings, LOGS=HOST + "logs/{key}/../delete")

    assert links(page.get(address_of(keyed(value)))) == {}
