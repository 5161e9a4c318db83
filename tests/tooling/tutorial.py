"""Follow the tutorial as a reader does: write its files, type its commands, use its pages in a browser."""

import os
import re
import shlex
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.cookiejar import CookieJar
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, Request, build_opener

from tests.admin.looking import Form, Page
from tests.commands.terminals import screen
from tests.tooling.machine import open_terminal, run_in_terminal, written_to
from tests.tooling.node import free_ports
from tests.tooling.services import Unavailable, go_without
from tests.tooling.waiting import wait_until

ROOT = Path(__file__).parents[2]
PARTS = re.compile(
    r"^```(?P<kind>\w+)\n(?P<text>[\s\S]*?)^```$|^(?P<item>\d+\. .*(?:\n   .*)*)|^(?P<words>\S.*(?:\n(?!```)\S.*)*)",
    re.MULTILINE,
)
OPENED = re.compile(r"Open a (\w+) terminal in the folder `bank`")
SHOWN = re.compile(r"\b(first|second|third) terminal")
APPS = re.compile(r"^INSTALLED_APPS = \[.*?^\]\n", re.MULTILINE | re.DOTALL)
STEPS = re.compile(
    r"<(?P<address>http[^>]+)>|log in as `(?P<user>\w+)` with the password `(?P<password>\w+)`"
    r"|[Tt]ick \*\*(?P<box>.+?)\*\*|\*\*(?P<press>.+?)\*\*|\*(?P<shown>.+?)\*"
)
MASKS = (
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b\d+ [smh] ago"), "AGO"),
    (re.compile(r"(attempt \d+/\d+) [\d.]+ m?s\b"), r"\1 DURATION"),
    (re.compile(r"\bpid \d+"), "PID"),
    (re.compile(r"^django-rmq-retry [\d.]+\S*"), "VERSION"),
    (re.compile(r"\S+/bank/db\.sqlite3"), "DATABASE"),
    (re.compile(r"(passed|failed) in [\d.]+s"), r"\1 in DURATION"),
    (re.compile(r"  +"), "  "),
)
"""Texts that differ on each machine; everything else in the output must be as on the page."""
ELLIPSIS = "…"
REMARK = "TIME ·"
PACKAGE = '"git+https://github.com/django-rmq-retry/django-rmq-retry"'
UNREACHABLE = re.compile(r"No matching distribution|Connection|Temporary failure|ReadTimeout", re.IGNORECASE)
SECRET = ("DJANGO_", "RMQ_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "COV_", "COLUMNS", "LINES")
PATIENCE, LATEST = 90.0, 20.0
READS = "manage.py rmq_parked "


class Departure(AssertionError):
    """The page and the machine differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A fenced block, an item of a numbered list or a line of text."""

    line: int
    kind: str
    text: str


def parts(page: str) -> Iterator[Part]:
    """Return the parts of the page in order."""
    for found in PARTS.finditer(page):
        kind = found["kind"] or ("item" if found["item"] else "words")
        text = found["text"] if found["kind"] else found[0]
        yield Part(line=page[: found.start()].count("\n") + 1, kind=kind, text=text)


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a block, each with its output; output without a command belongs to an earlier one."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
        else:
            found.append(("", [line]))
    return found


def masked(line: str) -> str:
    """Replace the texts that differ on each machine."""
    for pattern, mask in MASKS:
        line = pattern.sub(mask, line)
    return line.strip()


def compare(expected: list[str], rows: Iterator[str], where: str) -> None:
    """Compare the output on the page with the rows; an ellipsis stands for any number of rows."""
    said, seen, skipping = [masked(line) for line in expected], [], False
    for line in said:
        if line == ELLIPSIS:
            skipping = True
            continue
        for row in rows:
            seen.append(masked(row))
            if not skipping or seen[-1] == line:
                break
        else:
            seen.append("(nothing more)")
        if skipping and seen[-1] != line:
            raise Departure(f"{where}: {line!r} is not in {seen}")
        skipping = False
    if ELLIPSIS not in said and _remarks_first(said) != _remarks_first(seen):
        raise Departure(f"{where}: the page shows {said}, the terminal {seen}")


def _remarks_first(lines: list[str]) -> list[str]:
    """Sort the log lines of relay and connection, which are written concurrently, before those of handlers."""
    return sorted(lines, key=lambda line: (0, line) if line.startswith(REMARK) else (1, ""))


class Shell:
    """A terminal with a shell in it; the rows that a command has written are read once."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = open_terminal(rows=40, columns=120)
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        shell = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
        self._process = run_in_terminal(shell, slave, folder=folder, environment=environment)
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()
        self._read = 0
        self._count = 0

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run a command that ends; return its exit code and its output."""
        self._count += 1
        mark = f"the-end-of-{self._count}"
        self.type(command)
        self.type(f"printf '\\n%s %s\\n' {mark} $?")
        rows: list[str] = []
        for row in self.rows():
            if row.startswith(mark):
                return int(row.split()[1]), _stripped(rows)
            rows.append(row)
        raise Departure(f"`{command}` does not end: {rows}")

    def rows(self) -> Iterator[str]:
        """Yield the complete rows that were not read yet, and wait for more; the last row is not complete."""
        while True:
            try:
                wait_until(lambda: len(self._screen()) > self._read + 1, PATIENCE, what="another row")
            except AssertionError:
                return
            self._read += 1
            yield self._screen()[self._read - 1]

    def interrupt(self) -> None:
        """Press Ctrl-C and wait until the command has ended."""
        os.write(self._master, b"\x03")
        self._count += 1
        mark = f"the-end-of-{self._count}"
        self.type(f"printf '\\n%s %s\\n' {mark} ended")
        if not any(mark in row for row in self.rows()):
            raise Departure("Ctrl-C ended nothing.")

    def close(self) -> None:
        """End the shell and everything that it started."""
        for number in _session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=5)
        os.close(self._master)

    def _screen(self) -> list[str]:
        return screen(b"".join(self._pieces).decode(errors="replace"))

    def _collect(self) -> None:
        for piece in written_to(self._master):
            self._pieces.append(piece)


def _stripped(rows: list[str]) -> list[str]:
    """Remove the empty rows at both ends."""
    while rows and not rows[-1]:
        rows.pop()
    while rows and not rows[0]:
        rows.pop(0)
    return rows


def _session(leader: int) -> list[int]:
    """Return the processes of a session, the leader last."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found.append(int(place.parent.name))
    return sorted(found, key=lambda number: number == leader)


class Looked(Page):
    """A page with its submit inputs and the labels of its fields."""

    def __init__(self, response: Any) -> None:
        self.labels: dict[str, str] = {}
        self._label: str | None = None
        self._hidden = False
        super().__init__(response)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        super().handle_starttag(tag, attrs)
        self._hidden = tag in ("script", "style")
        if tag == "label":
            self._label = given.get("for")
        if tag == "input" and given.get("type") == "submit" and self._form is not None:
            self._form.buttons.append((given.get("name", ""), given.get("value", ""), given.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        super().handle_data(data)
        if self._label is not None and data.strip():
            self.labels.setdefault(data.strip(), self._label)

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        self._hidden = False
        if tag == "label":
            self._label = None

    def tick(self, label: str) -> None:
        """Tick the box with this label."""
        place = self.labels.get(label)
        [name] = {given["name"] for tag, given in self.tags if tag == "input" and given.get("id") == place} or {""}
        fields = [form for form in self.forms if "csrfmiddlewaretoken" in form.values and form.buttons]
        if not name:
            raise Departure(f"No field has the label {label!r}: {sorted(self.labels)}")
        fields[-1].values[name] = "on"


class Visitor:
    """A browser without JavaScript: it follows links, and sends the forms that stand in the pages."""

    def __init__(self) -> None:
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        self._address = ""
        self.page: Looked | None = None

    def open(self, address: str, sent: Mapping[str, Any] | None = None) -> None:
        """Open a page, or send a form; the address is the one after all redirects."""
        body = None if sent is None else urlencode(sent, doseq=True).encode()
        with self._opener.open(Request(address, data=body), timeout=30) as response:  # noqa: S310 - on loopback
            response.content = response.read()
            self._address = response.url
            self.page = Looked(response)

    def log_in(self, user: str, password: str) -> None:
        form, values = self._page.form_with("Log in")
        self._send(form, {**values, "username": user, "password": password})
        if "/login/" in self._address:
            raise Departure(f"{user} cannot log in.")

    def press(self, words: str) -> None:
        """Follow the link or press the button with this text."""
        page = self._page
        targets: dict[str, Callable[[], None]] = {
            said: partial(self.open, urljoin(self._address, place)) for said, place in page.links.items()
        }
        for form in page.forms:
            for name, value, said in form.buttons:
                targets[said] = partial(self._send, form, {**form.values, **({name: value} if name else {})})
        named = [said for said in targets if said == words] or [said for said in targets if said.startswith(words)]
        if len(named) != 1:
            raise Departure(f"{words!r} is not one link or button of {self._address}: {sorted(targets)}")
        targets[named[0]]()

    def sees(self, words: str) -> None:
        """Reload the page until it has this text."""

        def shown() -> bool:
            if words in self._page.text:
                return True
            self.open(self._address)
            return words in self._page.text

        try:
            wait_until(shown, 20, what=words, step=0.2)
        except AssertionError as error:
            raise Departure(f"{self._address} does not show {words!r}: {self._page.text}") from error

    @property
    def _page(self) -> Looked:
        assert self.page is not None, "no page is open"
        return self.page

    def _send(self, form: Form, values: Mapping[str, Any]) -> None:
        address = urljoin(self._address, form.action)
        if form.method.lower() == "get":
            return self.open(f"{address.partition('?')[0]}?{urlencode(values, doseq=True)}")
        return self.open(address, values)


class Walk:
    """One walk through the page, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._project = folder / "bank"
        self._port = free_ports(1)[0]
        self._shells = {"first": Shell(folder, self._environment())}
        self._visitor = Visitor()
        self.done: list[str] = []
        """The kinds of steps that were done."""

    def follow(self, page: str) -> None:
        """Do everything that the page says, in order."""
        before = ""
        for part in parts(page):
            where = f"line {part.line}"
            if part.kind == "console":
                self._type(part.text, before, where)
            elif part.kind == "item":
                self._look(" ".join(part.text.split()), where)
            elif part.kind != "words":
                self._write(part.text, where)
            elif part.text.startswith("Press Ctrl-C"):
                for name in SHOWN.findall(part.text.replace("second and", "second terminal and")):
                    self._shells[name].interrupt()
            self.done.append(part.kind)
            before = part.text if part.kind == "words" else ""

    def close(self) -> None:
        for shell in self._shells.values():
            shell.close()

    def _environment(self) -> dict[str, str]:
        place = self.folder / "temporary"
        place.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SECRET)}
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "TMPDIR": str(place),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "PS1": "",
            "PS2": "",
            "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        }

    def _write(self, text: str, where: str) -> None:
        head = text.partition("\n")[0]
        if not head.startswith("# ") or " " in head[2:]:
            raise Departure(f"{where}: the first line of a file is its path, not {head!r}.")
        path = self._project / head[2:]
        if path.name == "settings.py":
            text, count = APPS.subn(lambda _found: text, path.read_text())
            if count != 1:
                raise Departure(f"{where}: {path.name} has {count} INSTALLED_APPS.")
        path.write_text(text)

    def _type(self, block: str, before: str, where: str) -> None:
        opened, shown = OPENED.search(before), SHOWN.search(before)
        name = opened[1] if opened else "first"
        if opened:
            self._shells[name] = Shell(self._project, self._environment())
        typed = commands(block)
        for number, (command, output) in enumerate(typed):
            place = f"{where}, `{command}`"
            if not command:
                shell = self._shells[shown[1] if shown else "first"]
                compare(output, shell.rows(), place)
            elif opened and number == len(typed) - 1:
                self._shells[name].type(command.replace("runserver", f"runserver {self._port}"))
                compare(output, self._shells[name].rows(), place)
            else:
                self._run(self._shells[name], command, output, place)

    def _repeated(self, shell: Shell, command: str, output: list[str], place: str) -> None:
        """Repeat a command that only reads until its output is the one on the page: consumers record concurrently."""
        deadline = monotonic() + LATEST
        while True:
            try:
                return self._once(shell, command, output, place)
            except Departure:
                if monotonic() > deadline:
                    raise

    def _run(self, shell: Shell, command: str, output: list[str], place: str) -> None:
        run = self._repeated if READS in command else self._once
        run(shell, command, output, place)

    def _once(self, shell: Shell, command: str, output: list[str], place: str) -> None:
        installs = command.startswith("pip install ")
        if installs:
            command = command.replace(PACKAGE, shlex.quote(str(ROOT)))
        code, rows = shell.run(command)
        if installs and code and UNREACHABLE.search("\n".join(rows)):
            go_without(Unavailable(None, "pip reaches no package index."))
        if code:
            raise Departure(f"{place} ends with exit code {code}: {rows}")
        left = iter(rows)
        compare(output, left, place)
        rest = list(left)
        if rest and output[-1:] != [ELLIPSIS]:
            raise Departure(f"{place}: the page does not show {rest}")

    def _look(self, item: str, where: str) -> None:
        found = list(STEPS.finditer(item))
        if not found:
            raise Departure(f"{where}: nothing to do in {item!r}")
        for step in found:
            self._do(step)

    def _do(self, step: re.Match[str]) -> None:
        if step["address"]:
            address = step["address"].replace(":8000/", f":{self._port}/")
            wait_until(lambda: self._answers(address), PATIENCE, what=address)
        elif step["user"]:
            self._visitor.log_in(step["user"], step["password"])
        elif step["box"]:
            assert self._visitor.page is not None
            self._visitor.page.tick(step["box"])
        elif step["press"]:
            self._visitor.press(step["press"])
        else:
            self._visitor.sees(step["shown"])

    def _answers(self, address: str) -> bool:
        try:
            self._visitor.open(address)
        except URLError:
            return False
        return True


@contextmanager
def walk(folder: Path) -> Iterator[Walk]:
    """Walk in this folder; at the end nothing runs any more."""
    walker = Walk(folder)
    try:
        yield walker
    finally:
        walker.close()
