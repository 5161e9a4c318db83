"""Deletes resolved messages, old attempts and results, what ended approval requests hold, old rows of the audit log."""

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import router, transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.identity import NAMELESS
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    AttemptName,
    AuditHead,
    BusinessKey,
    EarlyRetry,
    ErrorGroup,
    FormerName,
    OperatorAction,
    ParkedMessage,
    ParkedMinute,
    ParkedOrigin,
    RequeueItem,
    StoredResult,
)
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.parked.approvals import empty_ended
from django_rmq_retry.parked.audit import WHOLE_LOG, log_action
from django_rmq_retry.parked.database import locked_messages, records_alias, transaction_of
from django_rmq_retry.parked.groups import MINUTES_KEPT
from django_rmq_retry.parked.key_lists import delete_before
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.statements import lock, locking, writing
from django_rmq_retry.wording import span

DELETED_AT_ONCE = 500
BATCHES_PER_TURN = 4
"""Batches of each kind per turn, after which the thread does other work."""
PURGED_AT_ONCE = 1000
REST_SECONDS = 0.1
"""Seconds between two batches, so that other transactions get their turn."""


def delete_old() -> bool:
    """Delete a part of the messages and attempts that are too old by the settings; return True if there may be more.

    So are the minutes that no trend shows any more, and ended requests for a second person let go of what they hold.
    """
    now, current = database_clock.trusted(router.db_for_write(ParkedMessage)), settings()
    if now is None:
        return False
    messages = [delete_resolved(now - timedelta(days=current.operators.resolved_days)) for _ in range(BATCHES_PER_TURN)]
    attempts = [delete_attempts(now - timedelta(days=current.operators.attempt_days)) for _ in range(BATCHES_PER_TURN)]
    names = [delete_names(now - timedelta(days=current.operators.attempt_days)) for _ in range(BATCHES_PER_TURN)]
    delete_minutes(now - MINUTES_KEPT)
    empty_ended()
    results = [delete_expired_results(now) for _ in range(BATCHES_PER_TURN)]
    return DELETED_AT_ONCE in (messages[-1], attempts[-1], names[-1], results[-1])


def delete_resolved(before: datetime) -> int:
    """Delete one batch of messages resolved before a time; open and requeued messages stay, however old."""
    using = router.db_for_write(ParkedMessage)
    rows = ParkedMessage.objects.using(using)
    due = rows.filter(state__in=RESOLVED, resolved_at__lt=before).order_by("resolved_at", "pk")
    with writing(ParkedMessage, using=using):
        numbers = list(due.values_list("pk", flat=True)[:DELETED_AT_ONCE])
        if not numbers:
            return 0
        # Lock in one order, and check the states again: an operator may have reopened a message.
        locked = locking(rows.filter(pk__in=numbers).order_by("pk")).values_list("pk", "state", "group")
        old = [row for row in locked if row[1] in RESOLVED]
        _keep_names([pk for pk, _, _ in old], using)
        rows.filter(pk__in=[pk for pk, _, _ in old]).delete()
        for (group, state), count in sorted(Counter((group, state) for _, state, group in old).items()):
            ErrorGroup.objects.count_moved(group, state, None, count)
        ParkedOrigin.objects.delete_empty({group for _pk, _state, group in old}, using=using)
    return len(numbers)


def _keep_names(messages: Collection[int], using: str) -> None:
    """Store the names and requeue runs of messages that are to be deleted, for searches of the audit log."""
    rows = ParkedMessage.objects.using(using).filter(pk__in=messages).exclude(message_id="").order_by()
    keys = BusinessKey.objects.using(using).filter(message__in=messages).order_by("pk")
    named: list[tuple[int, str]] = [*keys.values_list("message_id", "value"), *rows.values_list("pk", "message_id")]
    items = RequeueItem.objects.using(using).filter(message__in=messages)
    names, runs, now = dict[int, dict[str, None]](), dict[int, set[int | None]](), database_clock.now(using)
    for pk, name in named:
        names.setdefault(pk, {})[name] = None
    for pk, run in items.values_list("message_id", "run_id"):
        runs.setdefault(pk, set()).add(run)
    former = [
        FormerName(value=name, message=pk, run=run, deleted_at=now)
        for pk in messages
        for name in names.get(pk) or {""}
        for run in runs.get(pk) or {None}
    ]
    FormerName.objects.using(using).bulk_create(former, batch_size=500)


def delete_minutes(before: datetime) -> None:
    """Delete the counts of parked messages by the minute from before a time."""
    rows = ParkedMinute.objects.using(router.db_for_write(ParkedMessage))
    # By number: a DELETE that looks for them would wait on MariaDB for each row that a drainer counts in.
    while numbers := list(rows.filter(minute__lt=before).values_list("pk", flat=True)[:DELETED_AT_ONCE]):
        rows.filter(pk__in=numbers).delete()


def delete_attempts(before: datetime) -> int:
    """Delete one batch of attempts from before a time whose message is not kept."""
    using = router.db_for_write(Attempt)
    kept = ParkedMessage.objects.filter(identity=OuterRef("identity"))
    # Without a message ID, an attempt's identity is a hash of the body, which differs from its record's identity.
    nameless = Q(*[("identity__startswith", prefix) for prefix in NAMELESS], _connector=Q.OR)
    kept_nameless = nameless & Exists(ParkedMessage.objects.filter(message_id="", queue=OuterRef("queue")))
    rows = Attempt.objects.using(using).filter(~Exists(kept), ~kept_nameless, started_at__lt=before)
    numbers = list(rows.order_by("started_at").values_list("pk", flat=True)[:DELETED_AT_ONCE])
    Attempt.objects.using(using).filter(pk__in=numbers).delete()
    # Nothing but attempts belongs to them.
    EarlyRetry.objects.using(using).filter(sent_at__lt=before).delete()
    return len(numbers)


def delete_names(before: datetime) -> int:
    """Delete one batch of the names of attempts from before a time; the records have names of their own."""
    rows = AttemptName.objects.using(router.db_for_write(AttemptName))
    # Read by number, nearly in the order of their time, for which there is no index.
    oldest = rows.order_by("pk").values_list("pk", "at")[:DELETED_AT_ONCE]
    numbers = [pk for pk, at in oldest if at < before]
    rows.filter(pk__in=numbers).delete()
    return len(numbers)


def delete_expired_results(now: datetime) -> int:
    """Delete one batch of the results of tasks whose time is over."""
    rows = StoredResult.objects.using(router.db_for_write(StoredResult))
    numbers = list(
        rows.filter(expires_at__lt=now).order_by("expires_at").values_list("pk", flat=True)[:DELETED_AT_ONCE]
    )
    rows.filter(pk__in=numbers).delete()
    return len(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Numbers of messages, by state; ``done`` is False if they were only counted."""

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
    batch: int = PURGED_AT_ONCE,
    rest: float = REST_SECONDS,
) -> Purged:
    """Delete messages that were resolved longer ago than ``older_than``; with ``dry``, only count them."""
    wrong = sorted(set(states) - set(RESOLVED))
    if wrong or not states:
        text = _(
            "Only messages with the status %(resolved)s can be purged. Messages that are open or being "
            "requeued are kept, whatever their age."
        )
        raise Refused(text % {"resolved": ", ".join(RESOLVED)})
    if older_than < timedelta(0):
        raise Refused(_("The age must not be negative."))
    before = _agreed_time() - older_than
    due = ParkedMessage.objects.using(records_alias()).filter(state__in=list(states), resolved_at__lt=before)
    if dry:
        counted = due.order_by().values_list("state").annotate(count=Count("pk"))
        return Purged(counts=dict(counted), done=False)
    counts: Counter[str] = Counter()
    pause = threading.Event()
    while part := _batch(due, actor, older_than, batch):
        counts.update(part)
        pause.wait(rest)
    return Purged(counts=dict(counts), done=True)


def clocks_differ() -> str:
    """Return a sentence if this host's clock and the database's differ too much to delete by age; else empty."""
    apart = abs(database_clock.ahead(records_alias()))
    if apart <= database_clock.CLOCK_TOLERANCE:
        return ""
    text = _(
        "The clock of this host differs from the clock of the database by %(span)s. Nothing is deleted by age "
        "until they agree: synchronize both by NTP."
    )
    return text % {"span": span(apart)}


def _agreed_time() -> datetime:
    why = clocks_differ()
    if why:
        raise Refused(why)
    return database_clock.now(records_alias())


@transaction_of(ParkedMessage)
def _batch(due: QuerySet[ParkedMessage], actor: Actor, older_than: timedelta, batch: int) -> dict[str, int]:
    using = records_alias()
    ids = list(due.order_by("resolved_at", "pk").values_list("pk", flat=True)[:batch])
    rows = [row for row in locked_messages(ids, whole=False).values() if row.state in RESOLVED]
    _keep_names([row.pk for row in rows], using)
    ParkedMessage.objects.using(using).filter(pk__in=[row.pk for row in rows]).only("pk").delete()
    ErrorGroup.objects.count_deleted(Counter((row.group_id, row.state) for row in rows))
    ParkedOrigin.objects.delete_empty({row.group_id for row in rows}, using=using)
    counts = dict(Counter(row.state for row in rows))
    if rows:
        days = older_than.total_seconds() / 86_400
        log_action(actor, Action.PURGE, count=len(rows), facts={"older_than_days": round(days, 2), "counts": counts})
    return counts


def purge_audit(actor: Actor, *, older_than: timedelta, dry: bool = True) -> int:
    """Delete the oldest rows of the audit log, so that the rest can still be verified; return their number."""
    using = records_alias()
    before = _agreed_time() - older_than
    old = OperatorAction.objects.using(using).filter(at__lt=before)
    last = old.order_by("-number").values_list("number", flat=True).first()
    if last is None:
        return 0
    # Delete by number: a row in the middle may have an earlier time, because clocks differ, and must not leave a gap.
    rows = OperatorAction.objects.using(using).filter(number__lte=last)
    count = rows.count()
    if dry:
        return count
    with transaction.atomic(using=using):
        # Concurrent actions wait for the lock on the head.
        lock(AuditHead.objects.using(using))
        log_action(actor, Action.PURGE, subject=WHOLE_LOG, count=count, facts={"up_to": last})
        delete_before(before, using)
        # All actions on a message are older than its deletion.
        FormerName.objects.using(using).filter(deleted_at__lt=before).delete()
        requests = ApprovalRequest.objects.using(using).filter(asked_at__lt=before)
        requests.filter(expires_at__lt=database_clock.now(using)).delete()
        rows._raw_delete(using)  # noqa: SLF001 - the log's own delete() refuses on purpose
    return count
