"""Where an operator begins: the order of the pages, a row for each handler, and a field that finds messages."""

import re
from typing import Any

import pytest
from django.contrib.admin.sites import AdminSite
from django.contrib.auth.models import Group, User
from django.test import Client, RequestFactory

from django_rmq_retry.admin.groups import ErrorGroupAdmin
from django_rmq_retry.admin.status import LiveStatusAdmin
from django_rmq_retry.models import ErrorGroup, LiveStatus

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ADMIN = "/admin/rmq_retry/"
TASKS = [
    *("Live status", "Error groups", "Parked messages", "Requeue runs", "Queues"),
    *("Consumers", "Blocked keys", "Outbox messages", "Audit log"),
]


@pytest.mark.parametrize(
    "address", ["/admin/", ADMIN, f"{ADMIN}parkedmessage/", f"{ADMIN}livestatus/", "/admin/auth/user/"]
)
def test_pages_are_listed_in_the_order_of_the_work(page: Client, address: str) -> None:
    """On the index of the site and of the app, and in the sidebar of ours and of other apps' pages."""
    content = page.get(address).content.decode()
    listed = content.partition('class="app-rmq_retry module')[2].partition("</table>")[0]
    names = re.findall(r'<th scope="row"[^>]*>\s*<a [^>]*>([^<]+)</a>', listed)

    assert names == TASKS


def test_other_apps_keep_their_order(rf: RequestFactory, lead: User) -> None:
    site = AdminSite("other")
    pages: Any = {ErrorGroup: ErrorGroupAdmin, User: None, Group: None, LiveStatus: LiveStatusAdmin}
    for model, kind in pages.items():
        site.register(model, kind)
    request: Any = rf.get("/")
    request.user = lead
    listed = {app["app_label"]: [one["object_name"] for one in app["models"]] for app in site.get_app_list(request)}

    assert listed == {"auth": ["Group", "User"], "rmq_retry": ["LiveStatus", "ErrorGroup"]}
    assert [app["app_label"] for app in site.get_app_list(request, "rmq_retry")] == ["rmq_retry"]
