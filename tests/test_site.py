"""The documentation as a site: no warning, no dead link, readable in a browser, and found by its search."""

import fcntl
import importlib
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.tooling.browser import FLAGS, axe, browser, no_browser
from tests.tooling.pages import DOCS
from tests.tooling.services import SERVICES, Unavailable, go_without

pytestmark = pytest.mark.slow

NEEDED = ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "sphinxext.opengraph")
ADDRESS = "https://django-rmq-retry.readthedocs.io/en/latest/"
CAPTIONS = (
    *("Start", "Publish and consume", "Handle failures", "Deploy", "Operate"),
    *("Migrate", "Reference", "Trust", "Contribute"),
)
PHONE, DESK = 390, 1280
KINDS = (
    *("index", "start/install", "start/tutorial", "howto/publishing", "operate/breakers", "reference/exit-codes"),
    *("reference/api", "contributing/contributing"),
)
"""A page of each kind: home, steps, examples with classes and tables, a reference, an included page."""
SEARCHES = {
    "retry": "concepts/policies",
    "max retries": "concepts/policies",
    "exponential backoff": "concepts/policies",
    "handler timeout": "concepts/deadlines",
    "find by payment number": "concepts/business-keys",
    "parked": "operate/requeueing",
    "requeue list of ids": "operate/requeueing",
    "requeue": "operate/requeueing",
    "canary": "operate/requeue-runs",
    "edit a message": "operate/editing",
    "retry now": "operate/send-waiting",
    "exit code": "reference/exit-codes",
    "dead letter": "concepts/carriers",
    "outbox": "concepts/outbox",
    "rabbitmq down": "concepts/outbox",
    "order": "concepts/order",
    "settings": "reference/settings",
    "mask card number": "recipes/personal-data",
    "hide card numbers from support": "recipes/personal-data",
    "credit card": "recipes/personal-data",
    "test": "howto/testing",
    "unit test handler": "howto/testing",
    "how to test a handler": "howto/testing",
    "idempotency": "concepts/once",
    "exactly once": "concepts/once",
    "upgrade": "howto/upgrading",
    "zero downtime deploy": "howto/upgrading",
    "deploy without losing": "howto/upgrading",
    "reply queue": "howto/two-services",
    "correlation id": "howto/two-services",
    "delay message": "howto/publishing#to-a-handler",
    "delay a message": "howto/publishing#to-a-handler",
    "send a message later": "howto/publishing",
    "rpc": "howto/publishing#calls",
    "get a result back": "howto/publishing#calls",
    "limit requests per second": "operate/rates",
    "run every night": "recipes/cron",
    "what happens to messages during a deploy": "howto/upgrading",
    "consume only one queue": "howto/deploy",
    "worker memory grows": "howto/deploy",
    "how many workers do I need": "howto/scaling",
    "body of a failed message": "operate/admin",
    "does order survive a retry": "concepts/order",
    "payment charged twice": "concepts/once",
    "handler takes too long": "concepts/deadlines",
    "requeue from python code": "operate/requeueing#from-code",
    "who discarded this message": "operate/audit",
    "delay_on_commit": "howto/celery-features",
    "which worker is stuck": "operate/consumers",
    "postgresql down": "recipes/database-down",
    "database down": "recipes/database-down",
    "python version": "start/install",
    "two brokers": "recipes/virtual-hosts",
    "vhost": "recipes/virtual-hosts",
    "encrypt payloads": "recipes/codecs",
    "msgpack": "recipes/codecs",
    "batch inserts": "howto/batches",
    "bulk_create": "howto/batches",
    "rate limit": "operate/rates",
    "circuit breaker": "operate/breakers",
    "pause a queue": "operate/pausing",
    "cron": "recipes/cron",
    "periodic task": "recipes/cron",
    "priority": "recipes/priorities",
    "my handler never runs": "recipes/never-runs",
    "message not consumed": "recipes/never-runs",
    "gdpr": "recipes/personal-data",
    "delete customer data": "recipes/personal-data",
    "restore backup": "recipes/backups",
    "cloudamqp": "recipes/hosted",
    "heroku": "recipes/hosted",
    "kubernetes": "recipes/kubernetes",
    "systemd": "howto/deploy",
    "graceful shutdown": "howto/deploy",
    "untrusted publishers": "recipes/untrusted",
    "celery autoretry_for": "howto/celery-features",
    "migrate from celery": "howto/celery",
    "reject_on_worker_lost": "howto/celery",
    "pyamqp": "howto/celery",
    "roll back to celery": "howto/celery",
    "self.request.retries": "howto/celery-features",
    "task_routes": "howto/celery-features",
    "gevent": "howto/celery-features",
    "celery beat": "howto/celery",
    "read celery queue": "howto/celery-queue",
    "retry_kwargs": "howto/celery-features",
    "worker_max_tasks_per_child": "howto/celery-features",
    "pika": "howto/dead-letter-loop",
    "logging": "howto/logging",
    "prometheus metrics": "operate/monitoring",
    "alert on parked messages": "operate/alerts",
    "sentry": "operate/sentry",
    "opentelemetry": "operate/tracing",
    "poison message": "concepts/guarantees",
    "OOM": "concepts/guarantees",
    "pydantic": "howto/typed",
    "asyncio": "howto/async",
    "rename queue": "howto/change-queues",
    "precondition_failed": "howto/change-queues",
    "declare a queue": "howto/topology",
    "fanout": "howto/broadcast",
    "cancel a delayed message": "recipes#cancel-a-delayed-message",
    "throughput": "evidence/speed",
    "publish from java": "howto/publishing#from-java-or-another-language",
    "requeue at 2 am": "recipes#requeue-at-2-am",
    "schedule a requeue": "recipes#requeue-at-2-am",
    "maximum message size": "choose/faq#how-do-i",
    "payload size": "choose/faq#how-do-i",
    "disk space": "operate/records#how-big-the-tables-get",
    "how big do tables get": "operate/records#how-big-the-tables-get",
    "who requeued": "operate/audit",
    "retry with backoff and jitter": "concepts/policies",
    "send 30 payments again": "operate/requeueing",
    "what failed at night": "operate/requeueing#find-the-messages",
    "worker killed": "concepts/guarantees",
    "rate limit one partner": "operate/rates",
    "x-death": "howto/dead-letter-loop",
    "x-retries header": "howto/dead-letter-loop",
    "retry queue per delay": "howto/dead-letter-loop",
    "406": "howto/change-queues",
    "support may not see bodies": "recipes/personal-data#hide-card-numbers-from-support",
    "who may see the body": "reference/permissions",
    "messages without message id": "concepts/once#messages-without-an-id",
    "basic_qos": "howto/scaling",
    "roll back to the old version": "howto/upgrading#going-back",
    "gunicorn": "howto/deploy",
    "put a password rotation into RabbitMQ": "reference/settings#the-url",
    "the same event to two services": "howto/broadcast",
    "delete a customer's data": "recipes/personal-data",
    "how many consumers do I need": "howto/scaling",
    "what happens when PostgreSQL is away for ten minutes": "recipes/database-down",
    "send 30 of the parked payments again from a list": "operate/requeueing",
    "retry only on timeouts": "concepts/policies",
    "celery once": "howto/celery-features",
    "static files": "howto/deploy",
    "autoscale": "operate/monitoring",
    "consumer_timeout": "concepts/deadlines",
    "worker restart after code change": "recipes/never-runs",
    "unique tasks": "howto/celery-features",
    "result backend": "howto/celery-features",
    "soft_time_limit": "howto/celery-features",
    "AsyncResult": "howto/celery-features",
    "revoke task": "recipes#cancel-a-delayed-message",
    "idempotent task": "concepts/once",
    "retry only some exceptions": "concepts/policies",
}
"""What readers type, and the page or section that must come first."""

OVERFLOWING = """selector => [...document.querySelectorAll(selector)]
    .filter(box => box.scrollWidth > box.clientWidth)
    .map(box => box.innerText.slice(0, 80))"""
BROKEN = """() => [...document.querySelectorAll('article table.docutils code:not(.long, .test-name) .pre')]
    .filter(name => new Set([...name.getClientRects()].map(line => Math.round(line.top))).size > 1)
    .map(name => name.innerText)"""


class Page(HTMLParser):
    """The ids, addresses and tags of one built page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: set[str] = set()
        self.meta: dict[str, str] = {}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what can be linked to, and what is linked."""
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given and tag != "meta"}
        self.addresses |= {given[name] for name in ("href", "src") if name in given}
        if tag == "meta":
            self.meta[given.get("property") or given.get("name", "")] = given.get("content", "")


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> Path:
    """The site; the first worker that needs it builds it for all."""
    missing = [name for name in NEEDED if find_spec(name.partition(".")[0]) is None]
    if missing:
        go_without(Unavailable(None, f"{missing[0]} is not here: pip install --group docs."))
    folder = request.config.stash[SERVICES].folder / "documentation"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", f"{folder}.doctrees"]
            done = subprocess.run([*words, str(DOCS), str(folder)], capture_output=True, text=True, check=False)
            folder.mkdir(exist_ok=True)
            (folder / "build.log").write_text(done.stderr + (f"exit code {done.returncode}" if done.returncode else ""))
    return folder


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    """Every built page."""
    found = {path: Page(path) for path in built.rglob("*.html") if "_static" not in path.parts}
    assert len(found) > len(list(DOCS.rglob("*.md")))
    return found


# With module scope: while it runs, this thread has an event loop.
@pytest.fixture(scope="module")
def chromium(built: Path) -> Iterator[Any]:  # noqa: ARG001 - a missing requirement is reported first
    """Debian's."""
    if lack := no_browser():
        go_without(Unavailable(None, lack))
    with importlib.import_module("playwright.sync_api").sync_playwright() as started:
        launched = started.chromium.launch(executable_path=browser(), args=list(FLAGS))
        yield launched
        launched.close()


def test_the_site_is_built_without_a_warning(built: Path) -> None:
    assert (built / "build.log").read_text() == ""


def test_no_internal_link_or_anchor_is_dead(built: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for address in page.addresses:
            if urlsplit(address).scheme or address.startswith("//"):
                continue
            place, anchor = urldefrag(address)
            target = (path.parent / unquote(urlsplit(place).path)).resolve() if place else path
            known = pages.get(target)
            if not target.exists() or (anchor and known and unquote(anchor) not in known.ids):
                dead.append(f"{path.relative_to(built)}: {address}")

    assert dead == []


def test_the_menu_has_every_page_once(built: Path) -> None:
    home = (built / "index.html").read_text()
    menu = re.findall(r'<li class="toctree-l\d[^"]*"><a class="reference internal" href="([^"]+)"', home)
    pages = (page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md"))

    assert sorted(menu) == sorted(
        map(str, {page for page in pages if "_build" not in page.parts} - {Path("index.html")})
    )
    assert [name for name in CAPTIONS if f'<span class="caption-text">{name}</span>' not in home] == []


def test_every_page_has_its_canonical_url_and_a_preview_card(built: Path, pages: dict[Path, Page]) -> None:
    named = {path: page for path, page in pages.items() if page.meta.get("og:title")}

    assert {path.name for path in pages.keys() - named.keys()} <= {"genindex.html", "search.html"}
    for path, page in named.items():
        assert page.meta["og:url"] == f"{ADDRESS}{path.relative_to(built)}"
        assert page.meta["og:image"] == f"{ADDRESS}_static/card.png"
        assert page.meta["og:description"]


def test_the_preview_card_has_the_expected_size() -> None:
    head = (DOCS / "_static" / "card.png").read_bytes()[:24]

    assert struct.unpack(">II", head[16:]) == (1200, 630)


def test_pages_load_nothing_from_other_hosts(built: Path, pages: dict[Path, Page]) -> None:
    loaded = re.compile(r'<(?:script|img|link rel="(?:stylesheet|icon|preload)")[^>]*(?:src|href)="(?:https?:)?//[^"]+')

    assert {str(path.relative_to(built)) for path in pages if loaded.search(path.read_text())} == set()


def test_test_names_are_not_in_the_search_index(built: Path) -> None:
    text = (built / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])

    assert "retri" in index["terms"]
    assert [word for word in index["terms"] if word.startswith("test_")] == []


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize(("words", "first"), SEARCHES.items(), ids=SEARCHES)
def test_a_search_finds_the_right_page_first(chromium: Any, built: Path, words: str, first: str) -> None:
    found = searched(chromium, built, words)

    place, _, anchor = first.partition("#")
    address, section = urldefrag(found[0])
    assert (address.partition("?")[0], section if anchor else "") == (f"{place}.html", anchor), found[:5]


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("xyzzy liveness file", "howto/deploy"),
        ("kubectl frobnicate consumer_timeout", "concepts/policies"),
        ("frobnicate quarantine worker", "operate/runbook"),
    ],
)
def test_a_search_with_an_unknown_word_finds_pages_for_the_others(
    chromium: Any, built: Path, words: str, first: str
) -> None:
    found = [urlsplit(address).path for address in searched(chromium, built, words)]

    assert f"{first}.html" in found[:3], found[:5]


@pytest.mark.nightly
@pytest.mark.browser
def test_a_search_finds_pages_for_contributors_last(chromium: Any, built: Path) -> None:
    found = [urlsplit(address).path for address in searched(chromium, built, "database")]

    last = [address for address in found if address.startswith(("contributing/", "concepts/architecture."))]
    assert len(last) > 1
    assert found[-len(last) :] == last


def searched(chromium: Any, built: Path, words: str) -> list[str]:
    """The addresses that the site's search finds, in order."""
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.goto(f"{built.as_uri()}/search.html?q={words.replace(' ', '+')}")
        page.wait_for_selector("#search-results :text('Search finished')")
        return [link.get_attribute("href") for link in page.query_selector_all("#search-results ul.search li a")]
    finally:
        context.close()


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_no_page_is_wider_than_its_window(chromium: Any, built: Path, pages: dict[Path, Page], width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 850})
    wide = {}
    try:
        page = context.new_page()
        for path in pages:
            page.goto(path.as_uri())
            over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            if over > 0:
                wide[str(path.relative_to(built))] = over
    finally:
        context.close()

    assert wide == {}


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize(
    ("fault", "width"),
    [
        *(pytest.param((OVERFLOWING, ".table-wrapper"), width, id=f"tables-{width}") for width in (PHONE, DESK)),
        # On a phone a block scrolls in its frame: wrapped code reads as other code.
        pytest.param((OVERFLOWING, "div:not(.drawn) > .highlight > pre"), DESK, id="blocks"),
        *(pytest.param((BROKEN, None), width, id=f"names-{width}") for width in (PHONE, DESK)),
    ],
)
def test_nothing_scrolls_sideways_and_short_names_in_tables_do_not_wrap(
    chromium: Any, built: Path, pages: dict[Path, Page], fault: tuple[str, str | None], width: int
) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 850})
    wrong = {}
    try:
        page = context.new_page()
        for path in pages:
            page.goto(path.as_uri())
            if found := page.evaluate(*fault):
                wrong[str(path.relative_to(built))] = found
    finally:
        context.close()

    assert wrong == {}


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_table_on_a_phone_shows_one_block_per_row_with_headings(chromium: Any, built: Path, width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 850})
    try:
        page = context.new_page()
        page.goto(f"{built.as_uri()}/reference/headers.html")
        rows = "row => [row.cells[1], row.cells[2]].map(cell => getComputedStyle(cell, '::before').content)"
        shown = page.eval_on_selector("table.stacked tbody tr", rows)
        heads = page.is_visible("table.stacked thead")
    finally:
        context.close()

    assert (shown, heads) == ((['"Form: "', '"Meaning: "'], False) if width == PHONE else (["none"] * 2, True))


@pytest.mark.nightly
@pytest.mark.browser
def test_an_empty_cell_takes_no_line_on_a_phone(chromium: Any, built: Path) -> None:
    context = chromium.new_context(viewport={"width": PHONE, "height": 850})
    try:
        page = context.new_page()
        page.goto(f"{built.as_uri()}/operate/check.html")
        empty = page.locator("table.stacked td.empty")
        found = empty.count(), empty.filter(visible=True).count()
    finally:
        context.close()

    assert found[0] > 0
    assert found[1] == 0


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_colours_have_enough_contrast(chromium: Any, built: Path, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme)
    wrong = []
    try:
        page = context.new_page()
        for name in KINDS:
            page.goto(f"{built.as_uri()}/{name}.html")
            page.evaluate(axe().read_text())
            rules = {"runOnly": ["color-contrast", "image-alt", "link-name"]}
            for broken in page.evaluate("rules => axe.run(document, rules)", rules)["violations"]:
                places = [node["target"] for node in broken["nodes"]][:3]
                wrong.append(f"{name}: {broken['id']} at {places} of {len(broken['nodes'])}")
    finally:
        context.close()

    assert wrong == []


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize(("system", "chosen"), [("light", "dark"), ("dark", "light")])
def test_drawings_follow_the_chosen_theme(chromium: Any, built: Path, system: str, chosen: str) -> None:
    context = chromium.new_context(color_scheme=system)
    try:
        page = context.new_page()
        page.goto(f"{built.as_uri()}/index.html")
        page.evaluate("chosen => { document.body.dataset.theme = chosen }", chosen)
        scheme = page.evaluate("getComputedStyle(document.querySelector('article img')).colorScheme")
    finally:
        context.close()

    assert scheme == chosen


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.parametrize(
    ("shown", "copied"),
    [
        ("$ manage.py migrate\nOperations to perform:\n$ manage.py check\n", "manage.py migrate\nmanage.py check"),
        ("# settings.py\nDEBUG = True\n", "# settings.py\nDEBUG = True"),
    ],
    ids=["prompts", "comments"],
)
def test_the_copy_button_copies_commands_without_prompts_and_output(
    chromium: Any, built: Path, shown: str, copied: str
) -> None:
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.goto(f"{built.as_uri()}/index.html")
        page.wait_for_selector("button.copybtn", state="attached")
        page.evaluate("shown => { document.querySelector('article pre').textContent = shown }", shown)
        page.evaluate("addEventListener('copy', () => { window.taken = document.activeElement.value })")
        page.hover("article pre")
        page.click("article button.copybtn")
        taken = page.evaluate("window.taken")
    finally:
        context.close()

    assert taken == copied
