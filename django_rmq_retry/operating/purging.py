"""Deletes what was resolved long ago, in batches; what waits for anybody is never touched."""

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Count, F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry.models import AuditHead, OperatorAction, ParkedMessage, Verb
from django_rmq_retry.models.messages import RESOLVED
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.locking import database, locked_messages, steadily
from django_rmq_retry.operating.refusals import Refused
from django_rmq_retry.records.counting import gone

BATCH = 1000
REST = 0.1
"""Seconds between two batches, so that others get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How many messages, by state; ``done`` is False where they were only counted."""

    counts: dict[str, int]
    done: bool

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def purge(
    actor: Actor,
    *,
    older_than: timedelta,
    states: Collection[str] = RESOLVED,
    dry: bool = True,
    batch: int = BATCH,
    rest: float = REST,
) -> Purged:
    """Delete messages that were resolved longer ago; dry: only count them."""
    wrong = sorted(set(states) - set(RESOLVED))
    if wrong or not states:
        said = _("Only what is %(resolved)s is purged: what is open or under way stays, however old.")
        raise Refused(said % {"resolved": ", ".join(RESOLVED)})
    if older_than < timedelta(0):
        raise Refused(_("An age is not below 0."))
    due = ParkedMessage.objects.using(database()).filter(
        state__in=list(states), resolved_at__lt=timezone.now() - older_than
    )
    if dry:
        found = due.order_by().values_list("state").annotate(count=Count("pk"))
        return Purged(counts=dict(found), done=False)
    counts: Counter[str] = Counter()
    pause = threading.Event()
    while part := steadily(lambda: _batch(due, actor, older_than, batch)):
        counts.update(part)
        pause.wait(rest)
    return Purged(counts=dict(counts), done=True)


def _batch(due: QuerySet[ParkedMessage], actor: Actor, older_than: timedelta, batch: int) -> dict[str, int]:
    using = database()
    ids = list(due.order_by("resolved_at", "pk").values_list("pk", flat=True)[:batch])
    with transaction.atomic(using=using):
        rows = [row for row in locked_messages(ids, whole=False).values() if row.state in RESOLVED]
        ParkedMessage.objects.using(using).filter(pk__in=[row.pk for row in rows]).only("pk").delete()
        gone(Counter((row.group_id, row.state) for row in rows))
        counts = dict(Counter(row.state for row in rows))
        if rows:
            days = older_than.total_seconds() / 86_400
            note(actor, Verb.PURGE, count=len(rows), facts={"older_than_days": round(days, 2), "counts": counts})
    return counts


def purge_audit(actor: Actor, *, older_than: timedelta, dry: bool = True) -> int:
    """Shorten the audit log from its beginning; what is left still fits together."""
    using = database()
    old = OperatorAction.objects.using(using).filter(at__lt=timezone.now() - older_than)
    last = old.order_by("-number").values_list("number", flat=True).first()
    if last is None:
        return 0
    # By number: an act with an older clock in the middle must not leave a gap.
    rows = OperatorAction.objects.using(using).filter(number__lte=last)
    count = rows.count()
    if dry:
        return count
    with transaction.atomic(using=using):
        # Whoever adds an act waits for this.
        AuditHead.objects.using(using).filter(pk=1).update(number=F("number"))
        note(actor, Verb.PURGE, subject="audit log", count=count, facts={"up_to": last})
        rows._raw_delete(using)  # noqa: SLF001 - the log's own delete() refuses, as it should for everybody else
    return count
