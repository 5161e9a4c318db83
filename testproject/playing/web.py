"""The demo's web server, on the first free port, and a login to test it."""

import re
import socket
import time
from contextlib import ExitStack
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

from testproject.playing.children import Child, beside
from testproject.playing.ending import Trouble
from testproject.playing.stage import Stage

HOST = "127.0.0.1"
MANY = 100
PATIENCE = 60.0
TAKEN = "port is already in use"
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


def served(stack: ExitStack, stage: Stage, folder: Path, first: int) -> str:
    """Run the web server until the stack ends; return its address. A used port is skipped."""
    for port in range(first, min(first + MANY, 65536)):
        if not _free(port):
            continue
        child = stack.enter_context(beside(folder, "runserver", "--noreload", "--no-color", f"{HOST}:{port}"))
        # Django prints its address once it has the port, and exits if the port is taken.
        mark = f"://{HOST}:{port}/"
        stage.wait(
            lambda child=child, mark=mark: mark in child.output() or child.ended,  # type: ignore[misc]
            "the web server's start",
            until=time.monotonic() + PATIENCE,
        )
        if not _was_late(child):
            child.check()
            stage.children.append(child)
            if port != first:
                stage.say(f"Port {first} is in use by another program, so the admin is on port {port}.")
            return f"http://{HOST}:{port}/"
    raise Trouble(
        f"The ports {first} to {first + MANY - 1} of {HOST} are taken. Choose another one: make demo ARGS='--port N'"
    )


def logs_in(address: str, user: str, password: str) -> bool:
    """Return True if the admin lets this user in."""
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    with browser.open(f"{address}admin/login/", timeout=PATIENCE) as page:
        token = TOKEN.search(page.read().decode())
    if token is None:
        return False
    form = {"username": user, "password": password, "csrfmiddlewaretoken": token[1], "next": "/admin/"}
    with browser.open(f"{address}admin/login/", urlencode(form).encode(), timeout=PATIENCE) as page:
        return 'id="logout-form"' in page.read().decode()


def _was_late(child: Child) -> bool:
    return child.ended and TAKEN in child.output()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # Like the web server: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
