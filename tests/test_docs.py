"""The documentation says what is: its examples run, and every name in it exists."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.apps import AppConfig
from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandError
from django.dispatch import Signal
from django.test import override_settings

import django_rmq_retry
from django_rmq_retry import Delivery, Message, OneShot, RetryThenPark, StopTheLine, conf, errors, handler, signals
from django_rmq_retry.amqp import CONFIRMED, Done
from django_rmq_retry.env import VARIABLES
from django_rmq_retry.handlers import registry
from django_rmq_retry.management.accounts import PASSWORD
from django_rmq_retry.messages import Reason
from tests.tooling import catalogues
from tests.tooling.connections import publishing_by
from tests.tooling.pages import FENCE, PAGES, ROOT, Block, Thing, blocks, readers_project

TEXTS = {page.name: page.read_text() for page in PAGES}
ALL = "\n".join(TEXTS.values())
EXAMPLES = [page for page in PAGES if page.name != "tutorial.md"]
"""The files of the tutorial are one project: tests/test_tutorial.py runs it."""
COMMANDS = get_commands() | {"collectstatic": "django.contrib.staticfiles"}
OURS = {name for name, app in get_commands().items() if app == "django_rmq_retry"}
THE_BANKS = {path.stem for path in (ROOT / "testproject").glob("*/management/commands/[a-z]*.py")}
CODE = re.compile(r"`([^`\n]+)`")
CONTRIBUTORS = re.compile(r"RMQ_(TEST_\w+|MIRROR|UPDATE_SNAPSHOTS)")


class Stored:
    """A broker that stores everything and answers every question."""

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        assert message.routing_key

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        done(CONFIRMED)

    def publish_many(self, messages: Iterable[Message], *, window: int, timeout: float | None = None) -> int:
        return len(list(messages))

    def call(self, message: Message, *, timeout: float) -> Delivery:
        return Delivery(queue="", body=b'{"rate": "1.0831"}')


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reader's own project, with the handlers that the pages speak of, and a broker."""
    for one in vars(signals).values():
        if isinstance(one, Signal):
            monkeypatch.setattr(one, "receivers", [])
    with publishing_by(Stored(), lambda **_options: Stored()), registry.isolated(), readers_project():
        handlers = ModuleType("payments.handlers")
        handlers.__dict__["charge"] = handler("payments.charge", policy=RetryThenPark(), name="charge")(print)
        handlers.__dict__["quote"] = handler("rates.quote", policy=OneShot(), name="quote")(print)
        handlers.__dict__["post"] = handler("ledger.post", policy=StopTheLine(), name="post")(print)
        monkeypatch.setitem(sys.modules, "payments.handlers", handlers)
        yield


@pytest.mark.django_db
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("page", EXAMPLES, ids=[page.name for page in EXAMPLES])
def test_every_example_runs(page: Path) -> None:
    namespace: dict[str, Any] = {"os": os, "vault": Thing(), "structlog": Thing(), "AppConfig": AppConfig}
    namespace["INSTALLED_APPS"] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RABBIT_PASSWORD", "made-up")
        patched.setenv("ALERTS_SECRET", "made-up-and-long-enough")
        patched.setenv("CLOUDAMQP_URL", "amqps://made:up@rabbit.example.com/up")
        patched.setenv("PAYLOAD_KEY", "made-up")
        patched.setenv("DATABASE_URL", "postgres://made:up@127.0.0.1/up")
        patched.setenv("SECRET_KEY", "made-up")
        for block in blocks(page):
            if block.kind == "python":
                run(block, namespace)
    for name in registry.registrations():
        assert registry.subscription(name).queue.name


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Execute an example as if it stood alone in its file; settings in it must be settings."""
    namespace["__name__"] = f"{block.page}:{block.line}"
    namespace.pop("RMQ_RETRY", None)
    code = compile("\n" * block.line + block.text, f"{ROOT}/docs/{block.page}", "exec")
    exec(code, namespace)  # noqa: S102 - our own pages
    if "RMQ_RETRY" in namespace:
        with override_settings(RMQ_RETRY=namespace["RMQ_RETRY"]):
            conf.settings()


def command_lines() -> Iterator[tuple[str, str]]:
    """What a reader may type, in blocks and in running text."""
    for page in PAGES:
        for block in blocks(page):
            lines = block.text.splitlines() if block.kind in {"", "sh", "console"} else []
            # The other lines of a console are output, which tests/test_tutorial.py compares.
            yield from ((page.name, line) for line in lines if block.kind != "console" or line.startswith("$ "))
        for found in CODE.finditer(TEXTS[page.name]):
            yield page.name, found[1]


@pytest.mark.parametrize(("page", "line"), sorted({one for one in command_lines() if "manage.py " in one[1]}))
def test_every_command_and_its_options_exist(page: str, line: str) -> None:
    words = shlex.split(line.partition("manage.py ")[2].partition(" > ")[0], comments=True)
    name, options = words[0], words[1:]
    if name in THE_BANKS:
        return
    parser = load_command_class(COMMANDS[name], name).create_parser("manage.py", name)
    try:
        unknown = parser.parse_known_args(options)[1]
    except CommandError as error:
        # The name alone, in running text, may lack what the command needs.
        unknown = [str(error)] if options else []

    assert unknown == [], f"{page}: {line}"


def test_every_command_is_documented() -> None:
    assert {name for name in OURS if name not in ALL} == set()


def test_every_setting_is_documented() -> None:
    assert {key for key in (*conf.KEYS, *conf.OPERATOR_KEYS) if f"`{key}`" not in TEXTS["settings.md"]} == set()


def test_every_setting_that_is_documented_exists() -> None:
    named = set(re.findall(r"""RMQ_RETRY\[["'](\w+)["']\]""", ALL))
    of_operators = set(re.findall(r"""RMQ_RETRY\[["']OPERATORS["']\]\[["'](\w+)["']\]""", ALL))

    assert named - set(conf.KEYS) == set()
    assert of_operators - set(conf.OPERATOR_KEYS) == set()


OF_COMMANDS = ("RETRY", PASSWORD.removeprefix("RMQ_"))
"""Variables that are not settings."""


def test_every_documented_environment_variable_is_read() -> None:
    named = {name for name in re.findall(r"\bRMQ_[A-Z_]+\b", ALL) if not CONTRIBUTORS.fullmatch(name)}

    bare = {name.removeprefix("RMQ_") for name in named}
    assert {name for name in bare if not {name, name.removesuffix("_FILE")} & {*VARIABLES, *OF_COMMANDS}} == set()


def test_every_check_that_is_documented_exists() -> None:
    package = ROOT / "django_rmq_retry"
    sources = "".join(path.read_text() for path in [*package.glob("checks/*.py"), package / "tasks" / "checks.py"])

    assert {number for number in re.findall(r"rmq_retry\.([EWI]\d{3})", ALL) if f'{number}"' not in sources} == set()


def test_every_public_name_is_documented() -> None:
    names = {name for name in django_rmq_retry.__all__ if not name.startswith("__")}

    assert {name for name in names if not re.search(rf"\b{name}\b", ALL)} == set()


def test_every_error_is_public_and_says_what_happened() -> None:
    """The page of errors lists what the module publishes, with its docstrings."""
    found = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, BaseException)}

    assert len(found) > 20
    assert found - set(errors.__all__) == set()
    assert {name for name in found if not vars(vars(errors)[name]).get("__doc__")} == set()
    assert "automodule:: django_rmq_retry.errors\n   :members:" in TEXTS["errors.md"]


def test_every_reason_for_parking_is_documented() -> None:
    assert {reason for reason in Reason if f"`{reason.value}`" not in TEXTS["errors.md"]} == set()


def test_every_event_of_the_outbox_is_documented() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "django_rmq_retry" / "publishing").glob("*.py"))
    events = set(re.findall(r'"event": "([a-z_]+)"|_extra\(row, "([a-z_]+)"\)', sources))
    named = {one or other for one, other in events} - {"relayed"}

    assert "outbox_failed" in named
    assert {event for event in named if f"`{event}`" not in TEXTS["logs.md"]} == set()


def test_each_picture_shows_buttons_that_the_admin_has() -> None:
    """A word that is gone means that a page has changed since its picture was taken: ``make pictures``."""
    shown = json.loads((ROOT / "tests" / "tooling" / "pictures.json").read_text())
    catalogue = catalogues.read(ROOT / "django_rmq_retry" / "locale" / "de" / "LC_MESSAGES" / "django.po")
    texts = {text for entry in catalogue for text in (entry.msgid, entry.msgid_plural)}
    patterns = {re.sub(r"%\\\(\w+\\\)[sd]", ".+", re.escape(text)) for text in texts}
    # Not those that are nearly all variable: they would match anything.
    known = re.compile("|".join(one for one in patterns if re.search(r"\w{2}", one.replace(".+", ""))))

    assert len(shown["preview"]) > 10
    assert {name: [word for word in words if not known.fullmatch(word)] for name, words in shown.items()} == {
        name: [] for name in shown
    }


def test_every_cited_test_exists() -> None:
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    cited = set(re.findall(r"`(test_\w+)`", ALL))

    assert cited
    assert {name for name in cited if f"def {name}(" not in written} == set()


def test_test_names_appear_only_in_the_last_section_of_a_page() -> None:
    elsewhere = {}
    for name in TEXTS.keys() - {"proofs.md"}:
        text, *last = re.split(r"^## Tested by\n", FENCE.sub("", TEXTS[name]), flags=re.MULTILINE)
        elsewhere[name] = re.findall(r"`test_\w+`", text) + re.findall(r"^## .+", "".join(last), re.MULTILINE)
        rows = re.findall(r"^[|] .+", "".join(last), re.MULTILINE)
        assert rows[:1] == ["| Promise | Tests |"] * len(last), name

    assert {name: found for name, found in elsewhere.items() if found} == {}


def section(heading: str) -> str:
    """Return the section of the proofs below that heading."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXTS["proofs.md"], re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading}"
    return found[1]


PROMISE = re.compile(r"^(?:-|\d\.) \*\*(.+?)\.?\*\*", re.MULTILINE)
PROVEN_PROMISE = re.compile(r"^- \*\*(.+?)\*\*: `test_\w+`", re.MULTILINE)
TOLD = 77
"""How many tests check the truth of what an operator is told."""


def test_each_promise_names_the_tests_that_prove_it() -> None:
    promises = PROMISE.findall(TEXTS["guarantees.md"].partition("## Messages that can be lost")[0])

    assert len(promises) == 19
    assert PROVEN_PROMISE.findall(section("Guarantees")) == promises


def test_no_check_of_truth_is_dropped_from_the_proofs() -> None:
    assert len(set(re.findall(r"`(test_\w+)`", section("What an operator is told")))) == TOLD


SOURCE = "https://github.com/django-rmq-retry/django-rmq-retry"
SITE = "https://django-rmq-retry.readthedocs.io/en/latest/"
FILES = (f"{SOURCE}/blob/main/", "https://raw.githubusercontent.com/django-rmq-retry/django-rmq-retry/main/")


def missing(link: str) -> bool:
    """Whether a link of the README leads nowhere in the repository; those to other sites are not looked at."""
    address, _, anchor = link.partition("#")
    if address.startswith(SITE):
        page = ROOT / "docs" / f"{address.removeprefix(SITE).removesuffix('.html') or 'index'}.md"
        return not page.is_file() or (anchor != "" and anchor not in anchors(page))
    for base in FILES:
        if address.startswith(base):
            return not (ROOT / address.removeprefix(base)).is_file()
    return "://" not in address or (address.startswith(SOURCE) and address not in {SOURCE, f"{SOURCE}/issues"})


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#{1,4} (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_readme_resolves() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", TEXTS["README.md"])

    assert len(links) > 15
    assert [link for link in links if missing(link)] == []


@pytest.mark.parametrize(
    "link",
    [
        "docs/start/install.md",
        "https://django-rmq-retry.readthedocs.io/en/latest/start/gone.html",
        "https://django-rmq-retry.readthedocs.io/en/latest/evidence/speed.html#gone",
        "https://raw.githubusercontent.com/django-rmq-retry/django-rmq-retry/main/docs/images/gone.png",
        f"{SOURCE}/blob/main/GONE.md",
        f"{SOURCE}/wiki",
    ],
)
def test_a_broken_link_of_the_readme_is_detected(link: str) -> None:
    assert missing(link)


def test_no_page_contains_a_local_path() -> None:
    assert re.findall(r"/(?:home|root|work)/\S*", ALL) == []
