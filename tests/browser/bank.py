"""A bank with many queues, each column of which holds something in one of them, and with long names."""

from dataclasses import replace
from datetime import timedelta

from django.contrib.auth.models import User
from django.utils import timezone

from django_rmq_retry import handler
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.models import QueueControl
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.stopped import trip

HALTED, BUSY, OPEN, PAUSED, UNREAD = (
    *("payments.transfers.instant", "payments.main", "cards.authorisations"),
    *("bookings.ledger.postings", "refunds.customers"),
)
FINE = [
    f"{area}.{act}"
    for area in ("accounts", "cards", "notifications", "reports", "statements", "limits", "fraud", "kyc")
    for act in ("created", "changed", "closed", "exported", "archived")
]
"""Queues that hold nothing."""


def work(name: str, *, ready: int, consumers: int) -> Level:
    fixed = Level(queue=name, role=Role.WORK, unacked=12, arriving=2.5, leaving=12.5)
    return replace(fixed, ready=ready, consumers=consumers)


def levels() -> tuple[Level, ...]:
    ready = {HALTED: 4_312, BUSY: 17, OPEN: 0, PAUSED: 120, UNREAD: 3}
    return (
        *(work(name, ready=count, consumers=0 if name == UNREAD else 14) for name, count in ready.items()),
        *(Level(queue=name, role=Role.WORK, ready=0, unacked=0, consumers=2) for name in FINE),
        Level(queue=f"{BUSY}.quarantine", role=Role.QUARANTINE, ready=2, consumers=14),
        Level(queue=f"{BUSY}.retry.9m", role=Role.WAITING, ready=7_152, abandoned=True, home=BUSY),
    )


def fill() -> None:
    """Work for the lead: a queue is halted, others are paused or wait, and most are fine."""
    User.objects.create_superuser("lead", password="lead")
    now = timezone.now()
    for name in (HALTED, OPEN, PAUSED, UNREAD, *FINE):
        handler(name, name=name)(print)
    made.message(queue=BUSY)
    made.blocked_key(queue=BUSY, waiting=13)
    trip(OPEN, handler="cards.authorise", cause="BankDown: no answer within 30 s", failed=3)
    halt = {"halted_at": now - timedelta(minutes=40), "halted_seen_at": now + timedelta(days=1)}
    facts = {"halted_attempt": 14, "halted_error": "NotCovered: ACC-7", "halted_message": "9" * 32}
    QueueControl.objects.create(queue=HALTED, halted_key="PAY-88121", **halt, **facts)
    pause = {"by": "ann.schneider", "reason": "ledger migration", "since": now, "until": now + timedelta(hours=2)}
    QueueControl.objects.create(queue=PAUSED, paused=True, **pause)
    consumers()


def consumers() -> None:
    """Twelve processes on three hosts, and one that has vanished with a message."""
    for number in range(12):
        some = [made.in_flight(seconds=5, key=f"PAY-{number}{place}") for place in range(number % 4)]
        where = {"host": f"worker-{number % 3}.payments.svc.local", "pid": 800 + number, "number": number}
        what = {"queues": [HALTED, BUSY, *FINE], "deploy": "2026.11.28-a1b2c3d", "in_flight": some}
        made.consumer(seconds=-86_400, **where, **what)
    made.consumer(seconds=300, host="worker-4.payments.svc.local", queues=["old"], in_flight=[made.in_flight()])
