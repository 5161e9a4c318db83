"""Contents keep every byte from the parked queue to the page and back; hidden contents are on no page."""

import json
from typing import Any
from urllib.parse import unquote

import pytest
from django.test import Client

from django_rmq_retry import Message
from django_rmq_retry.models import ParkedMessage, RequeueRun, RunState
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page
from tests.operators.made import requeue_run
from tests.parked.arrivals import by_us, store

pytestmark = pytest.mark.django_db
ADMIN = "/admin/rmq_retry"
BODIES = {
    "cents": b'{"amount": 100.00, "small": 1.10, "huge": 1E400}',
    "long numbers": b'{"id": 12345678901234567890, "account": 00012}',
    "a name twice": b'{"a": 1, "a": 2}',
    "nul": b'{"a": "\\u0000"}\x00',
    "no utf-8": b'\xff\xfe{"a": "\xc3\x28"}',
    "a lone surrogate": b'"\\ud800"',
    "a script": b"</pre><script>alert(1)</script>",
    "no number": b'{"n": NaN}',
    "lines": b"\r\n\n\r x \r",
    "nothing": b"",
    "five megabytes": b'{"x": "' + b"y" * 5_000_000 + b'"}',
}
SECRETS = ("DE89370400440532013000", "DE-OTHER-SECRET", "Bearer abc.def", "4111111111111111")
BODY = (
    b'{"amount": 1.10, "iban": "DE89370400440532013000", "iban": "DE-OTHER-SECRET",'
    b' "card": {"pan": "4111111111111111", "kind": "debit"}, "note": "seen"}'
)


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_body_keeps_its_exact_bytes_from_parking_to_requeue(body: bytes, page: Client, sent: list[Message]) -> None:
    made.message()
    store(by_us(body=body, headers={"tenant": "north\x00", "big": 2**62}))
    one = ParkedMessage.objects.latest("pk")
    ParkedMessage.objects.filter(pk=one.pk).update(queue="payments.main")
    shown = page.get(f"{ADMIN}/parkedmessage/{one.pk}/change/").content
    taken = page.post(f"{ADMIN}/parkedmessage/{one.pk}/body/").content
    preview = page.get(f"{ADMIN}/requeuerun/preview/?message={one.pk}", follow=True)
    page.post(preview.redirect_chain[-1][0], {"start": "now", "rate": "100"})
    page.post(f"{ADMIN}/requeuerun/{RequeueRun.objects.get().pk}/send/?fragment=1")

    assert b"<script>alert" not in shown
    assert [taken, bytes(ParkedMessage.objects.get(pk=one.pk).body), *(copy.body for copy in sent)] == [body] * 3
    assert {name: sent[0].headers[name] for name in ("tenant", "big")} == {"tenant": "north\x00", "big": 2**62}


def everything(client: Client, one: ParkedMessage, run: int) -> dict[str, str]:
    """Every page, part and file that a user can request."""
    lists = [f"{ADMIN}/{name}/" for name in ("errorgroup", "parkedmessage", "requeuerun", "operatoraction")]
    numbers = {"errorgroup": one.group_id, "parkedmessage": one.pk, "requeuerun": run, "operatoraction": 1}
    addresses = [*lists, *(f"{ADMIN}/{name}/{number}/change/" for name, number in numbers.items())]
    addresses += [f"{ADMIN}/{name}/{number}/history/" for name, number in numbers.items()]
    addresses += [f"{ADMIN}/operatoraction/{number}/change/" for number in range(2, 6)]
    addresses += [f"{ADMIN}/errorgroup/{one.group_id}/note/", f"{ADMIN}/errorgroup/?by=queue", f"{ADMIN}/livestatus/"]
    addresses += [f"{ADMIN}/parkedmessage/{one.pk}/{act}/" for act in ("edit", "body", "reveal")]
    addresses += [f"{ADMIN}/parkedmessage/?q={SECRETS[0]}", f"{ADMIN}/parkedmessage/{one.pk}/change/?version=1"]
    addresses += [f"{ADMIN}/parkedmessage/{act}/?message={one.pk}" for act in ("discard", "hold", "export")]
    addresses += [f"{ADMIN}/requeuerun/preview/?message={one.pk}", f"{ADMIN}/operatoraction/export/"]
    got = {address: client.get(address, follow=True) for address in addresses}
    token = unquote(
        str(got[f"{ADMIN}/parkedmessage/export/?message={one.pk}"].redirect_chain[-1][0]).partition("sel=")[2]
    )
    for form, payload in (
        ("csv", "none"),
        ("csv", "masked"),
        ("jsonl", "none"),
        ("jsonl", "masked"),
        ("jsonl", "whole"),
    ):
        values = {"sel": token, "form": form, "payload": payload}
        got[f"{form} {payload}"] = client.post(f"{ADMIN}/parkedmessage/export/", values)
    for form in ("csv", "jsonl"):
        got[f"audit {form}"] = client.post(f"{ADMIN}/operatoraction/export/", {"form": form})
    got["run csv"] = client.post(f"{ADMIN}/requeuerun/{run}/export/")
    for act, values in {"body": {}, "reveal": {"place": "card.pan"}, "edit": {"text": "{}", "review": "1"}}.items():
        got[f"post {act}"] = client.post(f"{ADMIN}/parkedmessage/{one.pk}/{act}/", values)
    assert {answer.status_code for answer in got.values()} <= {200, 403, 404, 405, 422}
    return {name: _content(answer) for name, answer in got.items()}


def _content(answer: Any) -> str:
    return str((b"".join(answer.streaming_content) if answer.streaming else answer.content).decode())


def test_masked_values_are_in_no_page_no_file_and_no_audit_row(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True}, MASK=["*.iban", "*.pan", "authorization"])
    headers: dict[str, object] = {
        "authorization": "Bearer abc.def",
        "card": {"pan": "4111111111111111"},
        "tenant": "seen",
    }
    one = made.message(body=BODY, properties=made.properties(headers), business_key="PAY-1")
    made.attempt(one, 5)
    changed = BODY.decode().replace("DE-OTHER-SECRET", "DE-THIRD-SECRET").replace("1.10", "2.20")
    page.post(
        f"{ADMIN}/parkedmessage/{one.pk}/edit/", {"text": changed, "store": "1", "reason": "INC-1", "version": "1"}
    )
    run = requeue_run([one.pk])
    rights = ("view_parkedmessage", "view_errorgroup", "view_requeuerun", "view_operatoraction", "view_livestatus")
    more = ("view_all_operatoraction", "view_traceback", "requeue", "discard", "hold", "export", "note_errorgroup")
    curious = client_of(made.person("curious", *rights, *more, "edit_requeue"))
    got = everything(curious, one, run.pk)

    assert ParkedMessage.objects.get(pk=one.pk).version == 2
    assert sorted(name for name, text in got.items() if "DE-THIRD-SECRET" in text) == []
    # What was searched for stands in the box again.
    asked = f"{ADMIN}/parkedmessage/?q={SECRETS[0]}"
    found = {name for name, text in got.items() for secret in SECRETS if secret in text}
    assert found <= {asked}
    assert "+" in got["audit jsonl"]
    assert "2.20" in got["audit jsonl"]
    assert json.loads(got["jsonl masked"])["headers"]["tenant"] == "seen"
    whole = everything(page, one, run.pk)
    assert all(secret in whole[f"{ADMIN}/parkedmessage/{one.pk}/change/?version=1"] for secret in SECRETS)


AWAY = {"URL": "amqp://guest:hidden-word@127.0.0.1:1/", "CONNECT_TIMEOUT": 1}


@pytest.mark.usefixtures("connected")
def test_every_page_works_without_a_broker_and_reports_it(page: Client, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, **AWAY, "OPERATORS": {"EDITABLE": {"*": True}}}
    one = made.message(business_key="PAY-1")
    run = requeue_run([made.message().pk])
    got = everything(page, one, run.pk)
    pages = {name: text for name, text in got.items() if "rmq.css" in text}
    preview, status = f"{ADMIN}/requeuerun/preview/?message={one.pk}", f"{ADMIN}/livestatus/"
    form = Page(page.get(preview, follow=True))
    buttons = [given for tag, given in form.tags if tag == "button" and given.get("value") == "now"]
    planned = page.post(
        page.get(preview).headers["Location"], {"start": "planned", "rate": "10"}, follow=True
    ).content.decode()

    assert {f"{ADMIN}/errorgroup/", f"{ADMIN}/parkedmessage/", f"{ADMIN}/requeuerun/", preview, status} < {*pages}
    assert [name for name, text in pages.items() if text.count("No connection to the broker (") != 1] == []
    assert not [name for name, text in got.items() if "hidden-word" in text or "Traceback (most recent" in text]
    assert [("disabled" in given, given["aria-describedby"]) for given in buttons] == [(True, "rmq-broker-down")]
    assert [given["role"] for _tag, given in form.tags if given.get("id") == "rmq-broker-down"] == ["alert"]
    assert str(RunState.PLANNED.label) in planned
