"""Serves the admin with some records, in a process of its own; a consumer of its own handles what is sent."""

import queue
import sys
import threading
from collections.abc import Callable
from datetime import timedelta

from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.utils import timezone

from django_rmq_retry import handler, wiring
from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.records.outcomes import succeeded
from django_rmq_retry.records.tickets import Ticket, bearer
from tests.admin import made
from tests.admin.conftest import Kept

GROUPS = ("One", "All", "Canary", "Edit", "Discard", "Hold", "Plain", "Pause", "Stop")
sent: "queue.SimpleQueue[Message]" = queue.SimpleQueue()


class Handled(Kept):
    """A broker whose consumer is quick."""

    def send(self, message: Message, done: Callable[[Outcome, str], None], *, timeout: float | None = None) -> None:
        super().send(message, done, timeout=timeout)
        sent.put(message)


class Quiet(WSGIRequestHandler):
    """Writes no log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Nothing."""


def consume() -> None:
    """What was sent is handled at once."""
    while True:
        copy = sent.get()
        told = bearer(copy.routing_key, copy.properties.message_id, copy.body)
        ticket = Ticket.read(copy.headers["rmq-retry-ticket"], told)
        assert ticket is not None
        succeeded(ticket, timezone.now())


def fill() -> None:
    """A cause for each task, with three messages; one message that lives through everything."""
    now = timezone.now()
    User.objects.create_superuser("lead", password="lead")
    support = made.person("support", "view_parkedmessage", "view_errorgroup", "requeue", "hold", "reveal_field")
    support.set_password("support")
    support.save()
    for number, name in enumerate(GROUPS):
        cause = made.group(title=f"{name}Error", note="bank confirmed the outage", noted_by="ann", noted_at=now)
        for place in range(3):
            key = f"{name.upper()}-{place}"
            made.message(cause, business_key=key, parked_at=now - timedelta(minutes=number * 7 + place))
    evil = "<img src=x onerror=alert(1)>"
    made.message(made.group(title=evil), type=evil, business_key=evil, queue=evil, body=evil.encode(), error_text=evil)
    whole = made.message(made.group(), business_key="WHOLE-1", keys=["WHOLE-1", "ACC-1"])
    for number in range(1, 6):
        made.attempt(whole, number, fingerprint=whole.group.fingerprint)


def serve() -> None:
    """Tell the port, and serve until standard input ends: whoever started this has gone then."""
    call_command("migrate", verbosity=0)
    fill()
    threading.Thread(target=consume, daemon=True).start()

    @handler("payments.main")
    def transfer(message: Delivery) -> None:
        """Nothing."""

    kept = Handled()
    with wiring.replaced(kept, lambda _exclusive: kept):
        server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
        server.daemon_threads = True
        server.set_app(StaticFilesHandler(get_wsgi_application()))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()
