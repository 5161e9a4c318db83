"""Hostile texts and bytes at every address of the admin: the tests of rights keep their table of addresses complete."""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.test import Client
from django.test.client import MULTIPART_CONTENT
from django.urls import reverse

from django_rmq_retry.models import ParkedMessage
from tests.admin import made
from tests.admin.conftest import operating
from tests.admin.looking import EVIL, scripts_in
from tests.admin.test_rights import ADDRESSES, Address, undone, world

pytestmark = [pytest.mark.database, pytest.mark.django_db]
OURS = {"wish", "source", "verdict", "identity"}
"""Texts that only the package writes, and reads again."""
EXACT = re.compile(r' value="[^"]*"|<textarea[^>]*>.*?</textarea>', re.DOTALL)
"""What a form sends back as it is."""
STATES = ("gone", "held", "edited")
FORM = "application/x-www-form-urlencoded"
WORDS = ("a\x00b", EVIL, "\U0001f4a9" * 300, "-1", "9" * 30, "é" * 5000, "{", "1e999999999", "NaN")
BYTES = (
    (b"sel=%ff%fe&keys=%00&text=%ed%a0%80&path=%c0%af&\xff\xfe=\x00&ids=%FF&reason=%u0000&a=;;&=", FORM),
    (b"--x\r\n\xff\x00", "multipart/form-data; boundary=x"),
    (b"", "multipart/form-data"),
    (b"\xff" * 100, "application/json"),
)
FIELDS = (
    *("sel", "text", "reason", "path", "act", "find", "value", "keys", "note", "plain", "owner", "ticket", "remark"),
    *("category", "span", "until", "rate", "order", "stop_at", "depth", "target", "confirm", "include", "form"),
    *("payload", "place", "store", "headers", "start", "action", "queue", "first", "except", "version", "known"),
)


@pytest.fixture(autouse=True)
def editable(settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})


def poisoned() -> dict[str, Any]:
    """Records with a hostile text in each column that holds one of somebody else."""
    known = world()
    known["edited"] = ParkedMessage.objects.latest("pk").pk
    for message in ParkedMessage.objects.all():
        made.attempt(message)
    for model in apps.get_app_config("rmq_retry").get_models():
        for column in model._meta.get_fields():
            ours = getattr(column, "choices", None) or getattr(column, "unique", False) or column.name in OURS
            if isinstance(column, (models.CharField, models.TextField)) and not ours:
                model._base_manager.update(**{column.name: EVIL[: column.max_length]})
    headers = made.properties({EVIL[:90]: EVIL, "x-list": [EVIL]})
    ParkedMessage.objects.update(body=EVIL.encode(), properties=headers)
    return known


def every_page() -> list[Address]:
    return ADDRESSES + [Address("get", "parkedmessage_change", of, {}, (), set()) for of in STATES]


def test_no_page_runs_what_it_shows_or_lets_it_turn_a_line(page: Client) -> None:
    known, wrong = poisoned(), {}
    for address in every_page():
        with undone():
            answer = address.asked_by(page, known)
            if answer.status_code == HTTPStatus.FOUND:
                answer = page.get(answer.headers["Location"], follow=True)
        if answer.streaming or "text/html" not in answer.headers["Content-Type"]:
            continue
        said = EXACT.sub("", answer.content.decode())
        found = scripts_in(answer), "<script>alert" in said, "\u202e" in said
        if answer.status_code not in (200, 404, 409, 422) or found != ([], False, False):
            wrong[f"{address} {address.of}"] = (answer.status_code, *found)

    assert wrong == {}


def posts(address: Address) -> Iterator[tuple[Any, str]]:
    """Each hostile form: one field is wrong, or all, or it is no form at all."""
    for word in WORDS:
        yield dict.fromkeys(FIELDS, word), MULTIPART_CONTENT
        for name in address.data:
            yield {**address.data, name: word}, MULTIPART_CONTENT
    yield from BYTES


@pytest.mark.nightly
def test_no_form_fails_on_hostile_words_or_bytes(page: Client) -> None:
    page.raise_request_exception = False
    known, wrong = world(), set()
    for address in ADDRESSES:
        url = reverse(f"admin:rmq_retry_{address.name}", args=[known[address.of]] if address.of else [])
        for form, kind in posts(address):
            given = (
                {**form, "sel": known.get(form["sel"], form["sel"])}
                if isinstance(form, dict) and "sel" in form
                else form
            )
            with undone():
                code = page.post(url, given, content_type=kind).status_code
            if code >= 500:
                wrong.add((str(address), str(form)[:120], code))

    assert wrong == set()
