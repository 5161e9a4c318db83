"""The pictures of the documentation, from a real browser: ``make pictures`` runs the demo and renews them."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.tooling.dashboard import drawn, scraping
from tests.tooling.node import free_ports
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
WORDS = Path(__file__).parent / "pictures.json"
"""The words of the product that each picture shows; a test compares them with those of today."""
OURS = ".rmq-button:visible, .rmq summary:visible, .rmq dt:visible, .rmq thead th:visible"
BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
WIDTH, HEIGHT = 1200, 640
MOST_BYTES = 200_000
PATIENCE = 300.0
READY = "the other bank answers again"
METRICS = re.compile(r"http://([\d.:]+)/metrics")
SHOWN = 70
"""The seconds that the dashboard shows: an outage, with some seconds before and after it."""
LINES = 38
"""The lines of the terminal, from the command on."""
COLOURS = {"paid": "#8ec07c", "retry": "#e5b567", "parked": "#e07a5f", "so": "#7fb7e6", "the": "#7fb7e6"}
TERMINAL = """<body style="margin:0;background:#1b1d23">
<pre style="margin:0;padding:14px;color:#e6e6e6;width:118ch;font:13px/1.4 'DejaVu Sans Mono',monospace;
white-space:pre-wrap">{text}</pre></body>"""


def nothing(_page: Page) -> None:
    """Do nothing before the picture, which most pages need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: its file, its page, the preparation, and a text that must be visible."""

    name: str
    path: str
    before: Callable[[Page], None] = nothing
    shows: str
    height: int = HEIGHT


def widen(page: Page, address: str) -> None:
    """Hide the list of pages at the side; the admin remembers it. Its first page has none."""
    page.goto(f"{address}admin/payments/payment/")
    page.click("#toggle-nav-sidebar")


def biggest(page: Page) -> None:
    """Open the group with most payments: those of the outage."""
    page.goto(page.url + "../errorgroup/")
    page.get_by_role("link", name="GatewayDown").first.click()


def one_of_it(page: Page) -> None:
    """Open a payment of that group."""
    biggest(page)
    page.locator("#content table a[href*='/parkedmessage/']").first.click()


def preview(page: Page) -> None:
    """Open the confirmation of that group's requeue."""
    biggest(page)
    page.locator("#content").get_by_role("link", name="Requeue ").first.click()


def started(page: Page) -> None:
    """Start the requeue run of that group and wait for its outcomes."""
    preview(page)
    page.locator("#content").get_by_role("button", name="Requeue ").first.click()
    page.get_by_text("Finished").first.wait_for(timeout=60_000)


def in_flight(page: Page) -> None:
    """Let the other bank answer slowly, and wait until the page shows some payments in flight."""
    consumers = page.url
    page.goto(page.url + "../../payments/gateway/")
    page.select_option("select[name$=-mode]", "slow")
    page.click("input[name=_save]")
    page.goto(consumers)

    def some() -> bool:
        page.reload()
        return bool(page.get_by_text("messages in flight").is_visible())

    wait_until(some, 60, what="payments in flight", step=1.0)


# Add a page of the admin here; the demo has gone through one outage when the pictures are taken.
PICTURES = (
    Picture(name="groups", path="admin/rmq_retry/errorgroup/", shows="GatewayDown"),
    Picture(name="group", path="admin/rmq_retry/parkedmessage/", before=biggest, shows="GatewayDown"),
    Picture(name="message", path="admin/rmq_retry/parkedmessage/", before=one_of_it, shows="Timeline"),
    Picture(name="preview", path="admin/rmq_retry/parkedmessage/", before=preview, shows="Requeue", height=840),
    Picture(name="run", path="admin/rmq_retry/parkedmessage/", before=started, shows="Finished"),
    Picture(name="payments", path="admin/payments/payment/?o=-5", shows="Select payment to"),
    Picture(name="gateway", path="admin/payments/gateway/", shows="The other bank"),
    # The last one, because it changes how the other bank answers.
    Picture(name="consumers", path="admin/rmq_retry/consumerprocess/", before=in_flight, shows="messages in flight"),
)


def main() -> None:
    """Run the demo, wait for its first outage, and take the pictures, or only the named ones."""
    wanted = set(sys.argv[1:])
    (port,) = free_ports(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        demo(Path(folder), port) as log,
        browsing() as browser,
        ExitStack() as stack,
    ):
        dashboard = not wanted or "dashboard" in wanted
        prometheus = stack.enter_context(scraping(Path(folder), metrics(log))) if dashboard else ""
        wait_until(lambda: total_after_outage(log.read_text()), PATIENCE, what=f"{READY!r}, and a total", step=0.5)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        if dashboard:
            # Before the pages, one of which slows the other bank down.
            page.set_content(drawn(prometheus, SHOWN))
            keep(page.locator("#all").screenshot(), "dashboard")
        log_in(page, f"http://127.0.0.1:{port}/")
        widen(page, f"http://127.0.0.1:{port}/")
        for picture in PICTURES:
            if not wanted or picture.name in wanted:
                take(page, f"http://127.0.0.1:{port}/", picture)
        if not wanted or "demo" in wanted:
            take_terminal(page, log.read_text(), port)


def metrics(log: Path) -> str:
    """Wait until the demo prints the address of its consumer's metrics; return host and port."""
    wait_until(lambda: METRICS.search(log.read_text()) is not None, PATIENCE, what="the address of the metrics")
    found = METRICS.search(log.read_text())
    assert found is not None
    return found[1]


def total_after_outage(said: str) -> bool:
    """True if the demo has printed its totals after the end of an outage."""
    return "so far" in said.partition(READY)[2].partition("so far")[2]


@contextmanager
def demo(folder: Path, port: int) -> Iterator[Path]:
    """Run the demo beside the block; yield the file with its output."""
    log = folder / "demo.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RMQ_", "BANK_"))}
    with log.open("wb") as said:
        command = [sys.executable, "-m", "testproject.demo", "--port", str(port)]
        child = subprocess.Popen(command, cwd=ROOT, env=clean, stdout=said, stderr=said)
    try:
        yield log
    finally:
        child.terminate()
        child.wait()


@contextmanager
def browsing() -> Iterator[Browser]:
    """Open Chromium; root on Debian installs it."""
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium(), args=options)
        try:
            yield browser
        finally:
            browser.close()


def chromium() -> str:
    """Return the path of Chromium."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        subprocess.run(["apt-get", "-qq", "install", "--yes", "chromium", "fonts-dejavu-core"], check=True)
        found = shutil.which("chromium")
    if found is None:
        sys.exit(f"No browser: install one of {', '.join(BROWSERS)} (Debian: apt-get install chromium).")
    return found


def log_in(page: Page, address: str) -> None:
    page.goto(f"{address}admin/")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", "admin")
    page.click("input[type=submit]")
    page.wait_for_selector("#logout-form")


def take(page: Page, address: str, picture: Picture) -> None:
    """Open the page, prepare it, check it, and keep its picture."""
    page.set_viewport_size({"width": WIDTH, "height": picture.height})
    page.goto(address + picture.path)
    picture.before(page)
    page.get_by_text(picture.shows).first.wait_for()
    page.evaluate("window.scrollTo(0, 0)")
    keep(page.screenshot(), picture.name)
    note(page, picture)


def note(page: Page, picture: Picture) -> None:
    """Keep the words of the product's own elements that are within the picture."""
    seen = [
        element.inner_text().partition("\n")[0].strip(" \u2039\u203a")
        for element in page.locator(OURS).all()
        if (place := element.bounding_box()) and place["y"] < picture.height
    ]
    words = json.loads(WORDS.read_text()) if WORDS.exists() else {}
    words[picture.name] = sorted({one for one in seen if one})
    WORDS.write_text(json.dumps(words, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def take_terminal(page: Page, said: str, port: int) -> None:
    """Draw the first lines of the demo's output as a terminal."""
    # The port was free here; a reader's demo has the usual one.
    lines = ["$ make demo", *said.replace(f":{port}/", ":8000/").splitlines()][:LINES]
    page.set_content(TERMINAL.format(text="\n".join(map(coloured, lines))))
    keep(page.locator("pre").screenshot(), "demo")


def coloured(line: str) -> str:
    """Colour a line as its event is on a terminal."""
    words = line.removeprefix("          ").split(maxsplit=2)
    kind = words[1] if line[:1].isdigit() and len(words) > 1 else words[0] if line.startswith("      ") else ""
    text = html.escape(line)
    return f'<span style="color:{COLOURS[kind]}">{text}</span>' if kind in COLOURS else text


def keep(picture: bytes, name: str) -> None:
    """Write a picture that is small enough for a repository."""
    if len(picture) > MOST_BYTES:
        sys.exit(f"{name}.png has {len(picture)} bytes, more than {MOST_BYTES}.")
    (FOLDER / f"{name}.png").write_bytes(picture)
    print(f"docs/images/{name}.png  {len(picture):,} bytes")


if __name__ == "__main__":
    main()
