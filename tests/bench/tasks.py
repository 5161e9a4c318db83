"""What a task costs more than a message to a handler: until it is sent, and from its body to its end."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from tests.bench.report import Finding, table
from tests.bench.types import quickest

NAME = "tasks"
MOST = 40.0
"""Microseconds that a task adds to a message that is consumed."""
CALL = {"task": "tests.bench.tasks.send", "args": [7], "kwargs": {"to": "ann@example.com"}}


def send(payment: int, to: str) -> None:
    """Do nothing: only the way to it counts here."""


def tasks(*, share: int = 1) -> list[Finding]:
    """Measure in a process that has Django's settings, and print; return the finding for the limit."""
    words = [sys.executable, "-m", "tests.bench.tasks", str(share)]
    told = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    print("\na task of Django beside a message with the same body to a handler; no broker\n")
    rows = [(name, f"{one:.1f} µs", f"{other:.1f} µs", f"{other - one:.1f} µs") for name, (one, other) in told.items()]
    table([("", "a message", "a task", "added"), *rows])
    one, other = told["consume"]
    cost = other - one
    return [Finding(what=f"a task that is consumed: {cost:.1f} µs, limit {MOST:g}", met=cost <= MOST)]


def _pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    settings.configure(
        USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_rmq_retry"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        RMQ_RETRY={"URL": "embedded://"},
        TASKS={"default": {"BACKEND": "django_rmq_retry.tasks.RabbitBackend"}},
        LOGGING_CONFIG=None,
    )
    django.setup()
    # Only now, with the settings.
    backend: Any = import_module("django_rmq_retry.tasks.backend")
    registry = import_module("django_rmq_retry.handlers.registry")
    task: Any = import_module("django.tasks").task(import_module("tests.bench.tasks").send)
    plain: Any = import_module("django_rmq_retry").handler("plain")(lambda _message: None)
    import_module("django_rmq_retry.tasks.discovery").register()
    backend.dispatch = lambda *_, **__: None
    delivery = import_module("tests.handlers.factories").delivery(body=json.dumps(CALL).encode())
    decoded = import_module("django_rmq_retry.messages.codecs").decoded

    def consumed(name: str) -> Callable[[], object]:
        one = registry.subscription(name)
        return lambda: one.run(delivery.for_attempt(attempt=1, data=decoded(delivery, one.codec), key=None, state=None))

    return {
        "publish": (lambda: plain.message(CALL), lambda: task.enqueue(7, to="ann@example.com")),
        "consume": (consumed(plain.name), consumed("tasks.default")),
    }


if __name__ == "__main__":
    print(json.dumps({name: quickest(pair, share=int(sys.argv[1])) for name, pair in _pairs().items()}))
