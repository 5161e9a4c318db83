"""Serve the admin with the records of a scene, in its own process; a consumer handles sent messages."""

import queue
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.utils import timezone

from django_rmq_retry import Delivery, Message, handler
from django_rmq_retry.admin import broker_look, early_form
from django_rmq_retry.amqp import Done
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.health.doubts import FINDING
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.messages import Reason
from django_rmq_retry.models import (
    Action,
    EarlyRetry,
    GatedAct,
    ItemReason,
    ItemState,
    MessageVersion,
    ParkedMessage,
    QueueControl,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked.approvals import ask
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.early_retries import DueRetry, LeftOutRetries, RetryCause, WaitingReport
from django_rmq_retry.parked.four_eyes import Wish
from django_rmq_retry.parked.key_lists import look_up, store
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.released import Released, Waiting
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import Kept
from tests.admin.stopped import blocked, halted, outgoing
from tests.browser import bank, outage
from tests.browser.pages import DELETED
from tests.browser.settings import asked
from tests.parked.arrivals import ticket_in
from tests.parked.made import copy_succeeded
from tests.tooling.brokers import replaced_by

LATER = ("Nonce",)
"""Error groups that are created later."""
TICKED = ("Tick", "Tock")
"""Error groups that no test changes."""
GROUPS = ("One", "All", "Canary", "Edit", "Discard", "Hold", "Plain", "Pause", "Stop")
HEADERS: dict[str, object] = {"tenant": "north", "authorization": "Bearer x", "x-death": "y"}
sent: "queue.SimpleQueue[Message]" = queue.SimpleQueue()


class Handled(Kept):
    """A broker whose consumer handles messages at once."""

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        super().send(message, done, timeout=timeout)
        sent.put(message)


class Quiet(WSGIRequestHandler):
    """Writes no log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Nothing."""


def consume(handle: Callable[[Message], None]) -> None:
    """Handle sent messages at once."""
    while True:
        handle(sent.get())


def succeed(copy: Message) -> None:
    named = copy.properties.message_id
    copy_succeeded(*ticket_in(copy.headers, queue=copy.routing_key, id=named, body=copy.body))


def fill() -> None:
    """A cause for each task, with three messages; one message that lives through everything."""
    now = timezone.now()
    lead = User.objects.create_superuser("lead", password="lead")
    support = made.person("support", "view_parkedmessage", "view_errorgroup", "requeue", "hold", "reveal_field")
    support.set_password("support")
    support.save()
    for number, name in enumerate(GROUPS):
        cause = made.group(title=f"{name}Error", note="bank confirmed the outage", noted_by="ann", noted_at=now)
        for place in range(3):
            key = f"{name.upper()}-{place}"
            made.message(cause, business_key=key, parked_at=now - timedelta(minutes=number * 7 + place))
    evil = "<img src=x onerror=alert(1)>"
    hostile = made.message(
        made.group(title=evil), type=evil, business_key=evil, queue=evil, body=evil.encode(), error_text=evil
    )
    died = {"queue": "payments.main", "reason": "rejected", "count": 2, "exchange": "", "routing-keys": ["pay"]}
    dead = made.properties({"x-death": [{**died, "time": now}]})
    whole = made.message(made.group(), business_key="WHOLE-1", keys=["WHOLE-1", "ACC-1"], properties=dead)
    for number in range(1, 6):
        made.attempt(whole, number, fingerprint=whole.group.fingerprint)
    fill_states(now)
    for name in LATER:
        cause = made.group(title=f"{name}Error")
        for place in range(3):
            made.message(cause, business_key=f"{name.upper()}-{place}")
    # Those up to here are named by their places.
    long = made.message(made.group(title="LongError"), business_key="K" * 250, keys=["K" * 255], message_id="M" * 250)
    wide = [{**made.FRAMES[-1], "code": "gateway.post(" + "order, " * 60 + ")"}]
    made.attempt(long, 5, fingerprint=long.group.fingerprint, chain=[{"error": "E", "text": "e", "frames": wide}])
    malformed = made.group(title="MalformedError", reason=Reason.PERMANENT)
    for place in range(12):
        body = f'{{"amount": "8,{50 + place}", "reference": 12345678901234567890}}'.encode()
        made.message(malformed, business_key=f"MALFORMED-{place}", body=body)
    for name in TICKED:
        cause = made.group(title=f"{name}Error")
        for _ in range(3):
            made.message(cause)
    outgoing(failed=True)
    blocked(hostile, waiting=2)
    halted("ledger.post")
    QueueControl.objects.update(halted_seen_at=now + timedelta(days=1))
    consumers(evil)
    keys = ["ONE-0", "one-1", "absent", "HOLD-0 HOLD-1", evil, State.PROCESSED.value, State.ON_HOLD.value, "ACC-1"]
    store(keys, Actor(name="lead", user_id=lead.pk), look_up(keys))
    chosen = Selection.of_ids([long.pk, whole.pk])
    wish = Wish(
        act=GatedAct.DISCARD,
        count=chosen.count,
        subject=chosen.description,
        reason="duplicate: INC-553",
        selection=chosen,
        terms={"category": "duplicate", "text": "INC-553"},
    )
    ask(wish, Actor(name="support", user_id=support.pk, source="admin"))


def consumers(evil: str) -> None:
    """A process in each state, with hostile and long texts in flight."""
    late, alive = made.in_flight(seconds=200, timeout=30.0), -86_400
    long = made.in_flight(key="K" * 255, handler="handler." * 30, queue="payments.main")
    made.consumer(seconds=alive, in_flight=[late, long, made.in_flight(key=evil, handler=evil)], number=1, waiting=7)
    made.consumer(seconds=alive, connected=False, number=2, host="H" * 60)
    made.consumer(seconds=alive, stopping=True, in_flight=[made.in_flight(key="", message_id="9f3c-1")])
    made.consumer(seconds=300, in_flight=[late, made.in_flight(queue="payments.main")], queues=["payments." * 12])
    made.consumer(seconds=300, host=evil, version=evil, deploy=evil, queues=[evil])


def fill_states(now: datetime) -> None:
    """A message and a run in each state, with all texts that appear only there; an action of each kind."""
    ann = Actor(name="ann", source="cli")
    known = []
    for state in State:
        resolved: dict[str, Any] = {
            "resolved_at": now,
            "resolution": "duplicate: INC-553",
            "held_until": now + timedelta(days=2),
        }
        one = made.message(state=state, unconfirmed=True, succeeded_at=now, copies=2, business_key=state, **resolved)
        made.attempt(one, 5)
        known.append(one)
    cause = made.group(title="EditedError", reason=Reason.PERMANENT, regressed_at=now, muted=True)
    edited = made.message(cause, business_key="EDITED", version=2, properties=made.properties(HEADERS))
    fields = {"body": b'{"amount": "2.00"}', "properties": edited.properties, "sha256": "f" * 64}
    MessageVersion.objects.create(message=edited, number=2, at=now, by="ann", reason="wrong amount", **fields)
    known += [edited, *ParkedMessage.objects.filter(business_key__startswith="PLAIN")]
    for run_state in RunState:
        counts = {"total": 9, "sent": 4, "processed": 1, "failed": 1, "skipped": 1, "unconfirmed": 1}
        run = RequeueRun.objects.create(
            by="ann",
            created_at=now,
            started_at=now,
            state=run_state,
            wait=RunWait.GUARD,
            stop_at=20,
            reason="INC-553: the bank said by phone that it is back",
            causes=[[cause.pk, 1986], [edited.group_id, 1984]],
            **counts,
        )
        for place, (kind, one) in enumerate(zip(ItemState, known, strict=False)):
            RequeueItem.objects.create(
                run=run, message=one, place=place, revision=1, state=kind, skip_code=ItemReason.LATE
            )
    sent_early(now, edited)
    for action in Action:
        log_action(ann, action, message=edited.pk, reason="INC-553", facts={"difference": ["-1", "+2"], "rate": 20})
    log_action(ann, Action.DISCARD, message=DELETED, subject="DELETED", reason="duplicate: INC-553")
    reason = "handled by hand after the maintenance of the bank's interbank clearing, see INC-553"
    longer, facts = Actor(name="ann.schneider@bank.example", source="admin"), {FINDING: "PERHAPS_TWICE"}
    log_action(longer, Action.CHECK, subject="PAY-1, PAY-2, PAY-3, …", reason=reason, facts=facts)


def sent_early(now: datetime, parked: ParkedMessage) -> None:
    """A run of waiting retries with each outcome, with harm done, and with long and hostile names."""
    run = RequeueRun.objects.create(
        by="ann", created_at=now, started_at=now, finished_at=now, state=RunState.FINISHED, retries_of="payments.main",
        reason="INC-553", total=12, sent=9, processed=6, failed=3, skipped=3, handled_twice=1, perhaps_twice=2,
        selection={"filter": {"queue": "payments.main"}, "count": 12, "delayed": 2},
    )  # fmt: skip
    evil = "<img src=x onerror=alert(1)>"
    harm: dict[str, Any] = {"handled": 1, "redelivered": True}
    outcomes: tuple[tuple[str, ItemState, dict[str, Any]], ...] = (
        ("PAY-1", ItemState.PROCESSED, {"handled": 2}),
        ("K" * 255, ItemState.PROCESSED, harm),
        (evil, ItemState.PROCESSED, harm),
        (evil, ItemState.FAILED, {"error": evil}),
        ("PAY-5", ItemState.FAILED, {"error": "Gateway" * 30}),
        ("EDITED", ItemState.FAILED, {"error": "GatewayTimeout", "identity": parked.identity}),
        ("PAY-7", ItemState.SENT, {}),
    )
    for number, (shown, state, fields) in enumerate(outcomes):
        values = {"identity": f"early {number}", "sent_at": now, "ended_at": now, **fields}
        EarlyRetry.objects.create(run=run, shown=shown, state=state, **values)


def few() -> tuple[Level, ...]:
    """A queue that nobody reads, and its parked messages."""
    return (
        Level(queue="payments.main", role=Role.WORK, ready=3, consumers=0),
        Level(queue="payments.main.parked", role=Role.PARKED, ready=3, consumers=1),
    )


def looked(levels: Callable[[], tuple[Level, ...]]) -> broker_look.Look:
    """A broker with problems; unreachable for browsers that request it."""
    now = timezone.now()
    if getattr(asked, "broker", "") == "away":
        return broker_look.Look(
            at=now,
            away=Problem(code=Code.BROKER_AWAY, values={"address": "amqp://rabbit", "reason": "connection refused"}),
            since=now,
        )
    return broker_look.Look(at=now, gauged=Gauged(levels=levels(), api_set=False))


def looked_at_waiting(form: early_form.EarlyForm) -> tuple[WaitingReport, str, str]:
    """Retries that wait because of two errors, one of them long."""
    now = timezone.now()
    causes = tuple(
        RetryCause(error=error, count=count, first=now + timedelta(minutes=1), last=now + timedelta(days=2))
        for error, count in (("GatewayTimeout", 1_800), ("Gateway" * 20, 186))
    )
    evil = "<img src=x onerror=alert(1)>"
    due = [
        DueRetry(key=key, message_id=f"9f3c-{number}", error=evil, number=3, at=now, behind=number)
        for number, key in enumerate(("PAY-7", "K" * 255, evil))
    ]
    without = set(form.wanted.without)
    waits = Waiting(key="PAY-9", ordering_key="ACC-5")
    front = (("PAY-3", waits), (evil, waits)) if without else ()
    left = LeftOutRetries(count=len(without), in_front=front, first=now if without else None)
    report = WaitingReport(
        queue=form.queue,
        count=1_986 - left.total,
        causes=causes,
        not_seen="14 others were not looked at.",
        due=tuple(one for one in due if not without & {one.key, one.name}),
        released=Released(messages=4, blockers=2),
        left=left,
    )
    return report, "", ""


SCENES = {
    "everything": (fill, succeed, few),
    "outage": (outage.fill, outage.pay, few),
    "bank": (bank.fill, succeed, bank.levels),
}
"""What fills the database, what the consumer does with a message, and the queues on the broker."""


def serve(scene: str) -> None:
    """Print the port, and serve until standard input ends with the parent process."""
    call_command("migrate", verbosity=0)
    filled, handle, levels = SCENES[scene]
    filled()
    threading.Thread(target=consume, args=(handle,), daemon=True).start()

    @handler("payments.main")
    def transfer(message: Delivery) -> None:
        """Nothing."""

    broker_look.look = partial(looked, levels)
    early_form._ask_broker = looked_at_waiting
    kept = Handled()
    with replaced_by(kept):
        server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
        server.daemon_threads = True
        server.set_app(StaticFilesHandler(get_wsgi_application()))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()
