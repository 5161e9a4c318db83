"""Text that a database refuses is no server error in any search or filter."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from django_rmq_retry.admin.pages import Pages
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), *NIGHTLY_ON_SQLITE]
LISTS = sorted(
    model._meta.model_name or "" for model, known in admin.site._registry.items() if isinstance(known, Pages)
)
ALSO = ("q", "p", "sel", "list", "key", "handler", "by", "group", "run", "message", "since", "after", "fragment")


def parameters(name: str) -> Iterator[str]:
    """Return the parameters of a list: those of its filters, and those that our own pages read."""
    known = next(one for model, one in admin.site._registry.items() if model._meta.model_name == name)
    for one in known.list_filter:
        found = one[0] if isinstance(one, (list, tuple)) else one
        yield found if isinstance(found, str) else str(getattr(found, "parameter_name", ""))
    yield from ALSO


@pytest.mark.parametrize("name", nightly_but(["errorgroup", "parkedmessage"], LISTS))
def test_no_search_or_filter_fails_on_text_that_a_database_refuses(name: str, page: Client) -> None:
    page.raise_request_exception = False
    url = reverse(f"admin:rmq_retry_{name}_changelist")
    failed = {
        (parameter, value): answer.status_code
        for parameter in parameters(name)
        for value in ("\x00", "a\x00b", "\udcff", "\U0001f4a9" * 300, "-1", "9" * 30)
        if (answer := page.get(f"{url}?{parameter}={quote(value.encode('utf-8', 'surrogateescape'))}")).status_code
        >= 500
    }

    assert failed == {}
