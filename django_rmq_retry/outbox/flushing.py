"""For tests: what commits have left in the outbox is sent when the test kit drains, as by a relay after a while."""

import threading

from django.db import connections
from django.db.models import Q
from django.utils import timezone

from django_rmq_retry import wiring
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.outbox import placing
from django_rmq_retry.outbox.keeping import touched
from django_rmq_retry.outbox.relaying import Relay


def send_left() -> int:
    """Send it all, as if the waits after failures were over; return how many were sent."""
    # Only where this test has written: it may have no database at all.
    for one in [one for one in touched if one[1] is not wiring.publisher()]:
        touched.discard(one)
    return sum(_sent(using) for using, _publisher in list(touched))


def _sent(using: str) -> int:
    if connections[using].needs_rollback or not placing.allowed(using) or not placing.made(using):
        return 0
    # Others are still their writers': inside a TestCase no commit has come yet.
    left = Q(tries__gt=0) | Q(due_at__lte=timezone.now())
    rows = OutboxMessage.objects.using(using).filter(left, stuck_at__isnull=True)
    if not rows.exists():
        return 0
    rows.update(due_at=timezone.now())
    relay, sent = Relay(using, ended=threading.Event()), 0
    while (turn := relay.turn()).sent:
        sent += turn.sent
    return sent
