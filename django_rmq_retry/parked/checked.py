"""Doubts that operators have checked, such as what was perhaps handled twice: nobody is told of them again."""

import hashlib
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from django.db import router
from django.utils.translation import gettext as _

from django_rmq_retry.models import Action, AuditHead, OperatorAction, ParkedMessage, RequeueRun
from django_rmq_retry.wording import minute

MOST_CHECKED = 3000
"""The most doubts that are remembered: of one that is forgotten operators are told again."""
MARK_DIGITS = 16


def mark(*parts: object) -> str:
    """Return the digest by which a doubt is recognized; with more evidence than before it is another doubt."""
    texts = (part.astimezone(UTC).isoformat() if isinstance(part, datetime) else str(part) for part in parts)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:MARK_DIGITS]


def mark_of_run(run: RequeueRun) -> str:
    """Return the digest of what a run has handled twice, or perhaps: what is added to its numbers is a new doubt."""
    return mark("run", run.pk, run.handled_twice, run.perhaps_twice)


def checked(*, using: str = "") -> dict[str, int]:
    """Return the digests of what was checked, each with the number of the action that says so; one query."""
    heads = AuditHead.objects.using(using or router.db_for_read(OperatorAction)).filter(pk=1)
    return dict(heads.values_list("checked", flat=True).first() or ())


def remember(doubts: Collection[str], action: int) -> None:
    """Note that this action says that these were checked; call it after ``take_turns``."""
    using = router.db_for_write(OperatorAction)
    known = [one for one in checked(using=using).items() if one[0] not in doubts]
    new = [(one, action) for one in doubts]
    AuditHead.objects.using(using).filter(pk=1).update(checked=[*known, *new][-MOST_CHECKED:])


def checked_in_words(act: OperatorAction) -> str:
    """Return who has checked something, when and why; the reason may be erased."""
    told = {"name": act.who, "time": minute(act.at), "reason": act.reason}
    return (
        _("Checked by %(name)s at %(time)s (%(reason)s)") if act.reason else _("Checked by %(name)s at %(time)s")
    ) % told


def check_of(message: ParkedMessage, acts: Iterable[OperatorAction]) -> OperatorAction | None:
    """Return the check of a message among its actions, newest first; None if it was handled after that."""
    act = next((one for one in acts if one.action == Action.CHECK), None)
    return None if act and message.succeeded_at and message.succeeded_at > act.at else act
