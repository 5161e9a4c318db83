"""Operators: their permissions, the refusals of their actions, and the audit log."""

import getpass
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.apps import apps
from django.db import models, router, transaction
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry import server
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Action, AuditHead, ErrorGroup, OperatorAction, ParkedMessage, RequeueRun

log = logging.getLogger("django_rmq_retry")

NAME_LIMIT = 150

LABEL = "rmq_retry"
FEW = 25
"""Largest number of messages that the permission requeue allows at once; more need bulk_requeue."""

Allowed = Callable[[ParkedMessage], str]
"""Returns an empty string, or the reason why this message must not be changed."""

CHANGE = 2
"""Copy of django.contrib.admin.models.CHANGE: that module cannot be imported where the admin is not installed."""
OBJECT_LIMIT = 200
READ_ONLY = {Action.REVEAL, Action.DOWNLOAD, Action.EXPORT}
"""Actions that only read. Not every viewer of an object may see who read it, so its admin history leaves them out."""

AUDIT_BATCH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The originator of an action, as stored in the audit log."""

    name: str
    user_id: int | str | None = None
    """The primary key of the account, if there is one."""
    behalf: str = ""
    ip: str | None = None
    source: str = "code"

    @classmethod
    def of_request(cls, request: HttpRequest) -> "Actor":
        """Return the actor for the signed-in user."""
        user = request.user
        return cls(
            name=short(user.get_username(), NAME_LIMIT),
            user_id=user.pk,
            ip=request.META.get("REMOTE_ADDR") or None,
            source="admin",
        )

    @classmethod
    def of_shell(cls) -> "Actor":
        """Return the actor for a command: the user of the operating system."""
        try:
            login = getpass.getuser()
        except (OSError, KeyError):
            login = "unknown"
        return cls(name=short(login, NAME_LIMIT), behalf=short(f"{login}@{socket.gethostname()}", 255), source="cli")

    @classmethod
    def of_code(cls, name: str) -> "Actor":
        """Return the actor for a part of the project that acts without an operator."""
        return cls(name=short(name, NAME_LIMIT))


PERMISSIONS: Mapping[str, tuple[str, Any]] = {
    "view": ("view_parkedmessage", gettext_lazy("Can view parked message")),
    "view_group": ("view_errorgroup", gettext_lazy("Can view error group")),
    "view_run": ("view_requeuerun", gettext_lazy("Can view requeue run")),
    "view_status": ("view_livestatus", gettext_lazy("Can view live status")),
    "view_queue": ("view_queuecontrol", gettext_lazy("Can view queue")),
    "view_key": ("view_blockedkey", gettext_lazy("Can view blocked key")),
    "view_outbox": ("view_outboxmessage", gettext_lazy("Can view outbox message")),
    "view_audit": ("view_operatoraction", gettext_lazy("Can view action")),
    "view_all_audit": ("view_all_operatoraction", gettext_lazy("Can view the actions of other operators")),
    "view_payload": ("view_payload", gettext_lazy("Can see message bodies and headers")),
    "reveal": ("reveal_field", gettext_lazy("Can reveal a masked field")),
    "view_traceback": ("view_traceback", gettext_lazy("Can see tracebacks")),
    "requeue": ("requeue", gettext_lazy("Can requeue messages")),
    "bulk_requeue": ("bulk_requeue", gettext_lazy("Can requeue many messages at once")),
    "edit": ("edit_requeue", gettext_lazy("Can edit a message and requeue it")),
    "discard": ("discard", gettext_lazy("Can discard and restore messages")),
    "restore": ("discard", gettext_lazy("Can discard and restore messages")),
    "hold": ("hold", gettext_lazy("Can hold messages")),
    "unhold": ("hold", gettext_lazy("Can hold messages")),
    "export": ("export", gettext_lazy("Can export messages")),
    "note": ("note_errorgroup", gettext_lazy("Can annotate and mute error groups")),
    "pause_queue": ("pause_queue", gettext_lazy("Can pause and resume queues")),
    "retry": ("retry_outboxmessage", gettext_lazy("Can retry failed messages of the outbox")),
    "unblock": ("unblock_blockedkey", gettext_lazy("Can unblock ordering keys")),
    "control": ("control_requeuerun", gettext_lazy("Can pause, slow and stop requeue runs")),
}
"""The permission that each verb needs, by its code name and its label."""


def refusal(user: Any, verb: str, message: object = None) -> str:
    """Return why the user must not do this, as a sentence; empty if the user may.

    With a message, the project's own rules are checked too.
    """
    codename, name = PERMISSIONS[verb]
    if not getattr(user, "is_active", False):
        return _("Your account is not active.")
    if not user.has_perm(f"{LABEL}.{codename}"):
        return _("You need the permission “%(name)s”.") % {"name": name} + _contact()
    return _own_rules(user, verb, message)


def requeue_refusal(user: Any, count: int) -> str:
    """Return why the user must not requeue ``count`` messages at once; empty if the user may."""
    return refusal(user, "requeue" if count <= FEW else "bulk_requeue")


def has_own_rules(user: Any) -> bool:
    """True if the project's own rules are checked for each message."""
    return settings().operators.permit is not None and not user.is_superuser


def own_rules_refusal() -> str:
    """Return the refusal by the project's rules where they give no text, or cannot be checked without a message."""
    return _("The project's rules do not allow it.") + _contact()


def _own_rules(user: Any, verb: str, message: object) -> str:
    permit = settings().operators.permit
    if permit is None or message is None or not has_own_rules(user):
        return ""
    answer = permit(user, verb, message)
    if answer is True or answer == "":
        return ""
    return answer + _contact() if isinstance(answer, str) else own_rules_refusal()


def _contact() -> str:
    contact = settings().operators.contact
    return " " + _("Contact: %(contact)s.") % {"contact": contact} if contact else ""


class Refused(Exception):
    """The action was refused, and nothing was changed; the text gives the reason and the remedy."""


class NothingChosen(Refused):
    """No message is chosen, or none of the chosen ones is left."""


class Outdated(Refused):
    """The operator saw an earlier state: a token has expired, or a record has changed since."""


class NotAllowed(Refused):
    """A permission is missing, or the project's own rules refuse."""


def _announce(action: OperatorAction, using: str) -> None:
    """Add the admin entry of an action in the caller's transaction, and log the action once that has committed."""
    _add_admin_entry(action, using)
    transaction.on_commit(partial(_log, action), using=using, robust=True)


def _add_admin_entry(action: OperatorAction, using: str) -> None:
    """Add an entry to Django's admin history, if the actor has an account and that history is in the same database."""
    if action.actor_id is None or not apps.is_installed("django.contrib.admin"):
        return
    entries: Any = apps.get_model("admin", "LogEntry")
    types: Any = apps.get_model("contenttypes", "ContentType")
    if router.db_for_write(entries) != using:
        return
    model, number = _changed_object(action)
    entries.objects.using(using).create(
        user_id=action.actor_id,
        content_type=types.objects.db_manager(using).get_for_model(model),
        object_id=str(number),
        object_repr=(action.subject or f"#{number}")[:OBJECT_LIMIT],
        action_flag=CHANGE,
        change_message=_change_message(action),
    )


def _changed_object(action: OperatorAction) -> tuple[type[models.Model], int]:
    """Return the model and primary key of the changed object; those of the action itself if there is no single one."""
    if action.action not in READ_ONLY:
        things: tuple[tuple[type[models.Model], int | None], ...] = (
            (ParkedMessage, action.message),
            (RequeueRun, action.run),
            (ErrorGroup, action.group),
        )
        for model, number in things:
            if number is not None:
                return model, number
    return OperatorAction, action.pk


def _change_message(action: OperatorAction) -> str:
    """Return the text of the admin entry, untranslated: it is written once and read in many languages."""
    count = f"{action.count} messages" if action.count > 1 else ""
    return " · ".join(part for part in (str(action.action), count, action.reason) if part)


def _log(action: OperatorAction) -> None:
    names = ("action", "behalf", "reason", "group", "run", "subject", "count", "source")
    facts = {name: getattr(action, name) for name in names}
    # The name `message` is reserved by logging.
    extra = {"event": "rmq.operator", "who": action.actor_name, "record": action.message, **facts}
    what = action.subject or f"{action.count} messages"
    log.info("%s %s by %s", action.action, what, action.actor_name, extra=extra)


def log_action(
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
        previous = _next_head(using)
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
        row.seal = row.compute_seal()
        row.save(using=using)
        AuditHead.objects.using(using).filter(pk=1).update(seal=row.seal)
        _announce(row, using)
    return row


def audit_head() -> str:
    """Return the end of the audit log as ``number:seal``, to be kept where nobody can change it."""
    head = _head(router.db_for_read(OperatorAction))
    return f"{head.number}:{head.seal}" if head is not None else "0:"


def verify(kept: str = "") -> Iterator[str]:
    """Yield a sentence for each break in the audit log; nothing if the log is intact.

    Who can write to the tables can compute a whole new log. Only ``kept``, an earlier ``audit_head()``, detects that.
    """
    yield from _breaks()
    if kept:
        yield from _breaks_from(kept)


def _breaks_from(kept: str) -> Iterator[str]:
    """Yield a sentence if the row of an earlier head is not the row of today."""
    number, _, seal = kept.partition(":")
    if not int(number):
        # The log was empty.
        return
    rows = OperatorAction.objects.using(router.db_for_read(OperatorAction))
    now = rows.filter(number=int(number)).values_list("seal", flat=True).first()
    if now is None:
        # The row after a purged one still contains its seal.
        now = rows.filter(number=int(number) + 1).values_list("previous", flat=True).first()
    if now is None:
        purged = rows.filter(number__gt=int(number)).exists()
        missing = f"Row {number}, whose seal was kept, does not exist: the last rows are missing."
        yield f"Row {number} was purged, so its seal cannot be compared. Keep a later head." if purged else missing
    elif now != seal:
        yield f"The seal of row {number} differs from the one that was kept: the log was rewritten."


def _breaks() -> Iterator[str]:
    using = router.db_for_read(OperatorAction)
    # Read before the rows: an action that is logged meanwhile adds a row above this head, and no break.
    head = _head(using)
    known: OperatorAction | None = None
    begins, purged, end = 1, 0, (0, "")
    for action in _in_order(using):
        yield from _breaks_between(known, action)
        begins = begins if known else action.number
        purged = max(purged, _purged_by(action))
        known = action
        if head is not None and action.number <= head.number:
            end = (action.number, action.seal)
    if begins != purged + 1:
        yield f"The log begins at row {begins}, but was purged up to row {purged}: the rows between are missing."
    if known is not None and head is not None and known.number > head.number:
        now = _head(using)
        if now is None or known.number > now.number:
            # No action has written this row.
            end = (known.number, known.seal)
    if head is not None and (head.number, head.seal) != end:
        yield f"The log ends at row {end[0]}, but {head.number} rows were written: the last rows are missing."


def _head(using: str) -> AuditHead | None:
    return AuditHead.objects.using(using).filter(pk=1).first()


def _breaks_between(known: OperatorAction | None, action: OperatorAction) -> Iterator[str]:
    if known is not None and action.number != known.number + 1:
        yield f"The rows between {known.number} and {action.number} are missing."
    elif known is not None and action.previous != known.seal:
        yield f"Row {action.number} does not follow row {known.number}: one of them was changed or inserted later."
    if action.seal != action.compute_seal():
        yield f"Row {action.number} was changed after it was written."
    if action.actor_id is not None and str(action.actor_id) != action.actor_key:
        yield f"Row {action.number} names another account than when it was written."


def _purged_by(action: OperatorAction) -> int:
    """Return the number up to which this action purged the audit log; 0 if it did not."""
    up_to = action.details.get("up_to") if action.action == Action.PURGE else None
    return up_to if isinstance(up_to, int) else 0


def _next_head(using: str) -> AuditHead:
    """Return the next number and the seal before it. The update comes first, so that concurrent actions wait for it."""
    heads = AuditHead.objects.using(using)
    if not heads.filter(pk=1).update(number=F("number") + 1):
        heads.get_or_create(pk=1)
        heads.filter(pk=1).update(number=F("number") + 1)
    return heads.get(pk=1)


def _in_order(using: str) -> Iterator[OperatorAction]:
    after = 0
    while True:
        actions: QuerySet[OperatorAction] = OperatorAction.objects.using(using).filter(number__gt=after)
        rows = list(actions.order_by("number")[:AUDIT_BATCH])
        yield from rows
        if len(rows) < AUDIT_BATCH:
            return
        after = rows[-1].number
