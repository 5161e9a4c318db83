"""Tells of an act beside the audit log: in the admin's own history of what it was about, and in a line of the log."""

import logging
from functools import partial
from typing import Any

from django.apps import apps
from django.db import models, router, transaction

from django_rmq_retry.models import ErrorGroup, OperatorAction, ParkedMessage, RequeueRun, Verb

log = logging.getLogger("django_rmq_retry")

CHANGE = 2
"""django.contrib.admin.models.CHANGE: that module cannot be imported where the admin is not installed."""
OBJECT_LIMIT = 200
LOOKING = {Verb.REVEAL, Verb.DOWNLOAD, Verb.EXPORT}
"""Who looked is for those who may see what others did: the history of a message is for all who may see it."""


def tell(action: OperatorAction, using: str) -> None:
    """To be called in the transaction of the act: its entry comes with it, and its line when it is committed."""
    _enter(action, using)
    transaction.on_commit(partial(_write, action), using=using, robust=True)


def _enter(action: OperatorAction, using: str) -> None:
    """Django's own history of the admin keeps accounts only, and is one of this database or none."""
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
    """What the act was on; where that is no single thing, the act itself."""
    if action.verb not in LOOKING:
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
    """Not translated: it is written once, and read in many languages."""
    count = f"{action.count} messages" if action.count > 1 else ""
    return " · ".join(part for part in (str(action.verb), count, action.reason) if part)


def _write(action: OperatorAction) -> None:
    names = ("verb", "behalf", "reason", "group", "run", "subject", "count", "source")
    said = {name: getattr(action, name) for name in names}
    # `message` is a word of logging's own.
    extra = {"event": "rmq.operator", "who": action.actor_name, "record": action.message, **said}
    what = action.subject or f"{action.count} messages"
    log.info("%s %s by %s", action.verb, what, action.actor_name, extra=extra)
