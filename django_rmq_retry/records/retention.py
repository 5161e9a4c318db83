"""Lets go of what is over: messages that were resolved long ago, and attempts of messages that nobody kept."""

from collections import Counter
from datetime import datetime, timedelta

from django.db import connections, router, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from django_rmq_retry.conf import settings
from django_rmq_retry.models import Attempt, ParkedMessage
from django_rmq_retry.models.messages import RESOLVED
from django_rmq_retry.records.counting import moved
from django_rmq_retry.records.rows import NAMELESS

BATCH = 500
TURN = 4
"""So many batches of each, then others get the thread."""


def age_out() -> bool:
    """Delete a part of what is old enough by the settings; tell whether there may be more."""
    now, told = timezone.now(), settings()
    messages = [resolved(now - timedelta(days=told.resolved_days)) for _ in range(TURN)]
    attempts = [unkept(now - timedelta(days=told.attempt_days)) for _ in range(TURN)]
    return BATCH in (messages[-1], attempts[-1])


def resolved(before: datetime) -> int:
    """Delete one batch of messages that were resolved before; what is open or under way stays, however old."""
    using = router.db_for_write(ParkedMessage)
    features = connections[using].features
    rows = ParkedMessage.objects.using(using)
    due = rows.filter(state__in=RESOLVED, resolved_at__lt=before).order_by("resolved_at", "pk")
    with transaction.atomic(using=using):
        if not features.has_select_for_update:
            # SQLite refuses a transaction that has read when another one has written since: it writes first.
            rows.filter(pk=0).update(revision=F("revision"))
        numbers = list(due.values_list("pk", flat=True)[:BATCH])
        if not numbers:
            return 0
        # Locked in one order, and looked at once more: somebody may have opened one again.
        found = rows.filter(pk__in=numbers).order_by("pk").select_for_update().values_list("pk", "state", "group")
        old = [row for row in found if row[1] in RESOLVED]
        rows.filter(pk__in=[pk for pk, _, _ in old]).delete()
        for (group, state), count in sorted(Counter((group, state) for _, state, group in old).items()):
            moved(group, state, None, count)
    return len(numbers)


def unkept(before: datetime) -> int:
    """Delete one batch of older attempts of which no message is kept."""
    using = router.db_for_write(Attempt)
    kept = ParkedMessage.objects.filter(identity=OuterRef("identity"))
    # Without an id they are known by their bytes alone, which a record's own identity does not tell.
    nameless = Q(identity__startswith=NAMELESS) & Exists(
        ParkedMessage.objects.filter(message_id="", queue=OuterRef("queue"))
    )
    old = Attempt.objects.using(using).filter(~Exists(kept), ~nameless, started_at__lt=before).order_by("started_at")
    numbers = list(old.values_list("pk", flat=True)[:BATCH])
    Attempt.objects.using(using).filter(pk__in=numbers).delete()
    return len(numbers)
