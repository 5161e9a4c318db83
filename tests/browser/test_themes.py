"""The pages in other looks of the admin: they answer, fit the screen, and have no inline code of ours."""

from importlib.util import find_spec

import pytest

from tests.browser.conftest import Sit
from tests.browser.pages import PAGES
from tests.tooling.services import Unavailable, go_without

MAIN = (
    *("index", "status", "groups", "group", "messages", "message", "edit of many"),
    *("preview", "run running", "runs", "queues", "audit"),
)
WATCHED = """window.ours = [];
document.addEventListener("securitypolicyviolation", (event) => {
  const inside = event.target instanceof Element && event.target.closest(".rmq, .rmq-dialog");
  const told = `${event.violatedDirective}: ${event.sample}`;
  if (inside || event.sourceFile.includes("django_rmq_retry")) window.ours.push(told);
});"""
"""Notes what a strict policy would block of our own code."""


@pytest.fixture(scope="module", params=["unfold", "jazzmin"])
def theme(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if find_spec(name) is None:
        go_without(Unavailable(None, f"django-{name} is not here: pip install --group themes."))
    return name


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 390])
def test_the_main_pages_work_in_another_theme(sit: Sit, site: str, width: int) -> None:
    lead = sit(width=width)
    lead.page.add_init_script(WATCHED)
    wrong = {}
    for name in MAIN:
        answer = lead.page.goto(site + PAGES[name])
        assert answer is not None
        buttons = lead.page.locator(".rmq .rmq-button:visible").count()
        finds = lead.page.locator(".rmq-find-one input[type=search]:visible").count()
        found = answer.status, lead.scrolls_sideways(), lead.page.evaluate("window.ours"), buttons > 0, finds
        if found != (200, False, [], True, 1):
            wrong[name] = found

    assert wrong == {}


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 390])
def test_the_index_of_the_site_has_our_card_in_another_theme(sit: Sit, width: int) -> None:
    lead = sit(width=width)
    lead.go("/admin/")
    card = lead.page.locator(".rmq-site")
    box = card.bounding_box()

    assert "things need you" in card.inner_text()
    assert lead.page.locator(".rmq-find-one input:visible").count() == 1
    assert box["width"] > width / 2, box
    assert not lead.scrolls_sideways()
