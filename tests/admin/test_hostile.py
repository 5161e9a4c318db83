"""A staff user tries more than is allowed: by crafted forms, by others' links, by odd addresses."""

import json
import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.sites import AdminSite, all_sites
from django.urls import path, reverse
from django.utils import timezone

from django_rmq_retry.admin import runs
from django_rmq_retry.models import Attempt, ParkedMessage
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.conftest import client_of, is_north, operating
from tests.operators.made import requeue_run

pytestmark = pytest.mark.django_db
EXPORT = "/admin/rmq_retry/parkedmessage/export/"
PREVIEW = "/admin/rmq_retry/requeuerun/preview/"
CLERK = (
    *(
        "view_parkedmessage",
        "view_payload",
        "view_requeuerun",
        "view_errorgroup",
        "requeue",
        "discard",
        "hold",
        "export",
    ),
)


def north_only(verb: str) -> Any:
    """A rule of the project: what comes from the south is not for this."""
    return lambda _user, asked, message: asked != verb or message.type == "north" or "Only the north is yours."


def both(**south: Any) -> tuple[ParkedMessage, ParkedMessage]:
    cause = made.group()
    return made.message(cause, type="north", business_key="NORTH-ONE"), made.message(
        cause, type="south", business_key="SOUTH-ONE", **south
    )


def content(response: Any) -> str:
    found = b"".join(response.streaming_content) if response.streaming else response.content
    return str(found.decode())


@pytest.mark.parametrize("verb", ["view", "view_payload", "export"])
@pytest.mark.parametrize("by", ["ids", "filter"])
def test_an_export_omits_bodies_hidden_by_a_project_rule(verb: str, by: str, settings: Any) -> None:
    north, south = both()
    operating(settings, PERMIT=north_only(verb))
    ids, found = Selection.of_ids([north.pk, south.pk]), Selection.of_filter({"group": north.group_id})
    form = {"sel": (ids if by == "ids" else found).token(), "form": "jsonl", "payload": "whole"}
    answer = client_of(made.person("clerk", *CLERK)).post(EXPORT, form)
    said = content(answer)

    if by == "ids":
        assert (answer.status_code, "body_base64" in said) == (403, False)
    else:
        assert [json.loads(line)["business_key"] for line in said.splitlines()] == ["NORTH-ONE"]


@pytest.mark.parametrize("page", ["discard", "hold", "export", "preview"])
def test_a_link_from_another_project_shows_no_hidden_message(page: str, settings: Any) -> None:
    north, south = both(succeeded_at=timezone.now())
    operating(settings, PERMIT=is_north)
    clerk = client_of(made.person("clerk", *CLERK))
    url = PREVIEW if page == "preview" else reverse(f"admin:rmq_retry_parkedmessage_{page}")
    form = {"sel": made.selected(north, south), "start": "now", "category": "test", "span": "2h"}
    answers = [clerk.get(url, form), clerk.post(url, form)]

    assert [answer.status_code for answer in answers] == [200, 403]
    assert [answer.content.decode().count("SOUTH-ONE") for answer in answers] == [0, 0]


@pytest.mark.parametrize("of", ["north", "south", "no region"])
def test_a_group_shows_no_traceback_hidden_by_a_project_rule(of: str, settings: Any) -> None:
    north, south = both()
    chain = [
        {"error": "Down", "text": "", "frames": [{"file": "pay.py", "line": 7, "function": "f", "code": "secret()"}]}
    ]
    failed = made.attempt(south if of == "south" else north, fingerprint=north.group.fingerprint, chain=chain)
    if of == "no region":
        Attempt.objects.filter(pk=failed.pk).update(identity="of a message that waits for its retry")
    operating(settings, PERMIT=north_only("view_traceback"))
    clerk = client_of(made.person("clerk", *CLERK, "view_traceback"))
    page = clerk.get(reverse("admin:rmq_retry_errorgroup_change", args=[north.group_id])).content.decode()
    why = {
        "north": "secret()",
        "south": "Only the north is yours.",
        "no region": "The project&#x27;s rules do not allow it.",
    }

    assert [said in page for said in why.values()] == [name == of for name in why]


def test_a_run_names_no_hidden_message(settings: Any) -> None:
    north, south = both(succeeded_at=timezone.now())
    ParkedMessage.objects.filter(pk=north.pk).update(succeeded_at=timezone.now())
    run = requeue_run([north.pk, south.pk])
    operating(settings, PERMIT=is_north)
    clerk = client_of(made.person("clerk", *CLERK))
    page = clerk.get(reverse("admin:rmq_retry_requeuerun_change", args=[run.pk])).content.decode()
    table = content(clerk.post(reverse("admin:rmq_retry_requeuerun_export", args=[run.pk])))

    assert ("NORTH-ONE" in page, "SOUTH-ONE" in page) == (True, False)
    assert ("NORTH-ONE" in table, "SOUTH-ONE" in table) == (True, False)


def test_a_page_fragment_needs_the_permission_of_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "PAGE_SLICE_SECONDS", 0.0)
    run = requeue_run([made.message(business_key="NORTH-ONE").pk])
    blind = client_of(made.person("blind", "requeue"))
    answer = blind.post(reverse("admin:rmq_retry_requeuerun_send", args=[run.pk]) + "?fragment=1")

    assert answer.status_code == 403
    assert blind.get("/admin/rmq_retry/livestatus/?fragment=1").status_code == 403
    assert blind.get("/admin/rmq_retry/errorgroup/?fragment=1").status_code == 403


def test_a_user_of_another_admin_site_gets_none_of_its_pages(settings: Any) -> None:
    class Ops(AdminSite):
        def has_permission(self, request: Any) -> bool:
            return bool(request.user.username == "ops")

    site, addresses = Ops(name="ops"), set()
    try:
        for model, pages in admin.site._registry.items():
            if model._meta.app_label == "rmq_retry":
                site.register(model, type(pages))
                parts = [str(url.pattern) for url in site._registry[model].get_urls()]
                addresses |= {f"/ops/rmq_retry/{model._meta.model_name}/{re.sub('<.*?>', '1', part)}" for part in parts}
        settings.ROOT_URLCONF = type(
            "urls", (), {"urlpatterns": [path("admin/", admin.site.urls), path("ops/", site.urls)]}
        )
        lead = client_of(made.person("lead", superuser=True))
        got = {}
        for url in addresses:
            got[url] = [ask(url).headers.get("Location", "") for ask in (lead.get, lead.post)]
    finally:
        all_sites.discard(site)

    assert len(got) > 30
    assert {url for url, there in got.items() if not all(one.startswith("/ops/login/") for one in there)} == set()
