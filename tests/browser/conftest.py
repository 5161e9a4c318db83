"""A site in its own process, and users with a browser."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.browser.person import Person
from tests.tooling.browser import FLAGS, axe, browser, no_browser
from tests.tooling.services import Unavailable, go_without

Sit = Callable[..., Person]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as slow tests that need the browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def theme() -> str:
    """Django's own look."""
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, theme: str) -> Path:
    """The folder in which the site keeps its database."""
    return tmp_path_factory.mktemp(f"site{theme}")


# With module scope: tests of one module change what the pages of another show.
@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, folder: Path, theme: str) -> Iterator[str]:
    """The address of the site, with the records of the scene that the module names."""
    lack = no_browser()
    if lack:
        go_without(Unavailable(None, lack))
    scene = getattr(request.module, "SCENE", "everything")
    code = f"import django; django.setup(); from tests.browser import serve; serve.serve({scene!r})"
    words = [sys.executable, "-c", code]
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.browser.settings", "RMQ_BROWSER_FOLDER": str(folder)}
    env["RMQ_BROWSER_THEME"] = theme
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, cwd=root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the site did not start"
        yield f"http://127.0.0.1:{port}"
        server.communicate(timeout=60)


# With module scope: while it runs, this thread has an event loop, and other tests need their own.
@pytest.fixture(scope="module")
def chromium(site: str) -> Iterator[Any]:  # noqa: ARG001 - a missing requirement is reported first
    """Debian's."""
    playwright = importlib.import_module("playwright.sync_api").sync_playwright()
    with playwright as started:
        launched = started.chromium.launch(executable_path=browser(), args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def sit(chromium: Any, site: str) -> Iterator[Sit]:
    """Sign a user in: sit("lead", width=320, scripts=False, cookies={"policy": "nonce"})."""
    contexts = []

    def down(
        name: str = "lead",
        *,
        width: int = 1280,
        height: int = 900,
        scripts: bool = True,
        language: str = "en-GB",
        cookies: Mapping[str, str] | None = None,
    ) -> Person:
        options = {
            "viewport": {"width": width, "height": height},
            "java_script_enabled": scripts,
        }
        context = chromium.new_context(**options, locale=language)
        context.add_cookies([{"name": key, "value": value, "url": site} for key, value in (cookies or {}).items()])
        contexts.append(context)
        context.set_default_timeout(60_000)
        person = Person(context.new_page(), site, axe().read_text())
        person.sign_in(name)
        return person

    yield down
    for context in contexts:
        context.close()
