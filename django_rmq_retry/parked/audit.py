"""Writes and verifies the audit log."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from django.apps import apps
from django.db import models, router, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from django_rmq_retry import server
from django_rmq_retry.messages.tracebacks import short
from django_rmq_retry.models import Action, AuditHead, ErrorGroup, OperatorAction, ParkedMessage, RequeueRun
from django_rmq_retry.parked.operators import Actor

log = logging.getLogger("django_rmq_retry")

CHANGE = 2
"""Copy of django.contrib.admin.models.CHANGE: that module cannot be imported where the admin is not installed."""
OBJECT_LIMIT = 200
LOOKING = {Action.REVEAL, Action.DOWNLOAD, Action.EXPORT}
"""Actions that only read. Not every viewer of an object may see who read it, so its admin history leaves them out."""


def tell(action: OperatorAction, using: str) -> None:
    """Add the admin entry of an action in the caller's transaction, and log the action once that has committed."""
    _enter(action, using)
    transaction.on_commit(partial(_write, action), using=using, robust=True)


def _enter(action: OperatorAction, using: str) -> None:
    """Add an entry to Django's admin history, if the actor has an account and that history is in the same database."""
    if action.actor_id is None or not apps.is_installed("django.contrib.admin"):
        return
    entries: Any = apps.get_model("admin", "LogEntry")
    types: Any = apps.get_model("contenttypes", "ContentType")
    if router.db_for_write(entries) != using:
        return
    model, number = _about(action)
    entries.objects.using(using).create(
        user_id=action.actor_id,
        content_type=types.objects.db_manager(using).get_for_model(model),
        object_id=str(number),
        object_repr=(action.subject or f"#{number}")[:OBJECT_LIMIT],
        action_flag=CHANGE,
        change_message=_said(action),
    )


def _about(action: OperatorAction) -> tuple[type[models.Model], int]:
    """Return the model and primary key of the changed object; those of the action itself if there is no single one."""
    if action.action not in LOOKING:
        things: tuple[tuple[type[models.Model], int | None], ...] = (
            (ParkedMessage, action.message),
            (RequeueRun, action.run),
            (ErrorGroup, action.group),
        )
        for model, number in things:
            if number is not None:
                return model, number
    return OperatorAction, action.pk


def _said(action: OperatorAction) -> str:
    """Return the text of the admin entry, untranslated: it is written once and read in many languages."""
    count = f"{action.count} messages" if action.count > 1 else ""
    return " · ".join(part for part in (str(action.action), count, action.reason) if part)


def _write(action: OperatorAction) -> None:
    names = ("action", "behalf", "reason", "group", "run", "subject", "count", "source")
    said = {name: getattr(action, name) for name in names}
    # The name `message` is reserved by logging.
    extra = {"event": "rmq.operator", "who": action.actor_name, "record": action.message, **said}
    what = action.subject or f"{action.count} messages"
    log.info("%s %s by %s", action.action, what, action.actor_name, extra=extra)


BATCH = 2000


def note(
    actor: Actor,
    action: Action,
    *,
    reason: str = "",
    message: int | None = None,
    group: int | None = None,
    run: int | None = None,
    subject: str = "",
    count: int = 1,
    facts: Mapping[str, object] | None = None,
) -> OperatorAction:
    """Add an action to the audit log; call this in the transaction of the action itself."""
    using = router.db_for_write(OperatorAction)
    with transaction.atomic(using=using):
        previous = _advance(using)
        row = OperatorAction(
            number=previous.number,
            at=server.now(using),
            actor_id=actor.user_id,
            actor_name=actor.name,
            actor_key="" if actor.user_id is None else str(actor.user_id),
            behalf=actor.behalf,
            action=action,
            reason=short(reason, 255),
            message=message,
            group=group,
            run=run,
            subject=short(subject, 255),
            count=count,
            facts=dict(facts or {}),
            ip=actor.ip,
            source=actor.source,
            previous=previous.seal,
        )
        row.seal = seal_of(row)
        row.save(using=using)
        AuditHead.objects.using(using).filter(pk=1).update(seal=row.seal)
        tell(row, using)
    return row


def verify() -> Iterator[str]:
    """Yield a sentence for each break in the audit log; nothing if the log is intact."""
    using = router.db_for_read(OperatorAction)
    known: OperatorAction | None = None
    begins, purged = 1, 0
    for action in _rows(using):
        yield from _breaks(known, action)
        begins = begins if known else action.number
        purged = max(purged, _purged_by(action))
        known = action
    if begins != purged + 1:
        yield f"The log begins at {begins}, and rows were purged up to {purged}: the first ones are missing."
    head = AuditHead.objects.using(using).filter(pk=1).first()
    end = (known.number, known.seal) if known else (0, "")
    if head is not None and (head.number, head.seal) != end:
        yield f"The log ends at {end[0]}, and {head.number} rows were written: the last ones are missing."


def _breaks(known: OperatorAction | None, action: OperatorAction) -> Iterator[str]:
    if known is not None and action.number != known.number + 1:
        yield f"Between {known.number} and {action.number} rows are missing."
    elif known is not None and action.previous != known.seal:
        yield f"{action.number} does not follow {known.number}: one of them was changed or put in later."
    if action.seal != seal_of(action):
        yield f"{action.number} was changed after it was written."
    if action.actor_id is not None and str(action.actor_id) != action.actor_key:
        yield f"{action.number} names another account than when it was written."


def _purged_by(action: OperatorAction) -> int:
    """Return the number up to which this action purged the audit log; 0 if it did not."""
    up_to = action.details.get("up_to") if action.action == Action.PURGE else None
    return up_to if isinstance(up_to, int) else 0


def seal_of(action: OperatorAction) -> str:
    """Return the SHA-256 of a row's values and the seal before it, without the account, which may be deleted."""
    at = action.at.astimezone(timezone.get_fixed_timezone(0)).isoformat(timespec="milliseconds")
    said = {name: getattr(action, name) for name in SEALED} | {"at": at, "action": str(action.action)}
    text = json.dumps(said, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


SEALED = (
    *("number", "actor_name", "actor_key", "behalf", "reason", "message", "group", "run", "subject", "count"),
    *("facts", "ip", "source", "previous"),
)


def _advance(using: str) -> AuditHead:
    """Return the next number and the seal before it. The update comes first, so that concurrent actions wait for it."""
    heads = AuditHead.objects.using(using)
    if not heads.filter(pk=1).update(number=F("number") + 1):
        heads.get_or_create(pk=1)
        heads.filter(pk=1).update(number=F("number") + 1)
    return heads.get(pk=1)


def _rows(using: str) -> Iterator[OperatorAction]:
    after = 0
    while True:
        found: QuerySet[OperatorAction] = OperatorAction.objects.using(using).filter(number__gt=after)
        rows = list(found.order_by("number")[:BATCH])
        yield from rows
        if len(rows) < BATCH:
            return
        after = rows[-1].number
