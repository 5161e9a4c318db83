"""Nobody is kept out: no finding of axe, nothing that a strict policy blocks, in light and dark, wide and narrow."""

from typing import Any

import pytest

from tests.browser.conftest import Sit

MESSAGE = "/admin/rmq_retry/parkedmessage"
PAGES = {
    "groups": "/admin/rmq_retry/errorgroup/",
    "groups by queue": "/admin/rmq_retry/errorgroup/?by=queue",
    "group": "/admin/rmq_retry/errorgroup/1/change/",
    "help": "/admin/rmq_retry/errorgroup/help/",
    "note": "/admin/rmq_retry/errorgroup/1/note/",
    "messages": f"{MESSAGE}/",
    "nothing found": f"{MESSAGE}/?queue=nobody.knows",
    "message": f"{MESSAGE}/29/change/",
    "hostile message": f"{MESSAGE}/28/change/",
    "edit": f"{MESSAGE}/29/edit/",
    "discard": f"{MESSAGE}/discard/?group=1",
    "hold": f"{MESSAGE}/hold/?group=1",
    "export": f"{MESSAGE}/export/?group=1",
    "preview": "/admin/rmq_retry/requeuerun/preview/?group=1",
    "runs": "/admin/rmq_retry/requeuerun/",
    "audit": "/admin/rmq_retry/operatoraction/",
    "status": "/admin/rmq_retry/livestatus/",
}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320), ("dark", 320)])
def test_pages_have_no_barriers_and_run_nothing_inline(sit: Sit, scheme: str, width: int) -> None:
    lead = sit(scheme=scheme, width=width)
    found = {}
    for name, address in PAGES.items():
        lead.go(address)
        found[name] = lead.barriers()

    assert {name: barriers for name, barriers in found.items() if barriers} == {}
    assert lead.complaints == []


def test_a_page_with_disabled_buttons_has_no_barriers(sit: Sit) -> None:
    support = sit("support")
    support.go(PAGES["message"])
    support.sees("You need the permission")

    assert support.barriers() == []
    assert support.complaints == []


def test_what_came_from_outside_runs_nowhere(sit: Sit) -> None:
    lead = sit()
    asked: list[str] = []

    def seen(dialog: Any) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    lead.page.on("dialog", seen)
    for name in ("groups", "messages", "hostile message", "groups by queue"):
        lead.go(PAGES[name])

    assert (asked, lead.complaints) == ([], [])
