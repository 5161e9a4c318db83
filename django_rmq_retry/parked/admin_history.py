"""Django's admin history: an entry for each action of an operator with an account."""

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db import models, router

from django_rmq_retry.models import Action, ErrorGroup, OperatorAction, ParkedMessage, RequeueRun

CHANGE = 2
"""Copy of django.contrib.admin.models.CHANGE: that module cannot be imported where the admin is not installed."""
OBJECT_LIMIT = 200
READ_ONLY = {Action.REVEAL, Action.DOWNLOAD, Action.EXPORT}
"""Actions that only read. Not every viewer of an object may see who read it, so its admin history leaves them out."""


def add_entry(action: OperatorAction, using: str) -> None:
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
        object_repr=_name(action, model, number, using),
        action_flag=CHANGE,
        change_message=_change_message(action),
    )


def forget(actions: Iterable[OperatorAction], using: str) -> None:
    """Take the names and reasons of these actions out of Django's history."""
    if not apps.is_installed("django.contrib.admin"):
        return
    entries: Any = apps.get_model("admin", "LogEntry")
    types: Any = apps.get_model("contenttypes", "ContentType")
    if router.db_for_write(entries) != using:
        return
    for action in actions:
        model, number = _changed_object(action)
        kind = types.objects.db_manager(using).get_for_model(model)
        written = _change_message(action)
        known = entries.objects.using(using).filter(content_type=kind, object_id=str(number), change_message=written)
        known.update(object_repr=f"#{number}", change_message=str(action.action))


def _name(action: OperatorAction, model: type[models.Model], number: int, using: str) -> str:
    """Return the name of the changed object as its page has it; the subject of an action may be a filter or a path."""
    if model is RequeueRun:
        return str(RequeueRun(pk=number))
    group = ErrorGroup.objects.using(using).filter(pk=number).first() if model is ErrorGroup else None
    return str(group or action.subject or f"#{number}")[:OBJECT_LIMIT]


def _changed_object(action: OperatorAction) -> tuple[type[models.Model], int]:
    """Return the model and primary key of the changed object; those of the action itself if there is no single one."""
    things = ((ParkedMessage, action.message), (RequeueRun, action.run), (ErrorGroup, action.group))
    for model, number in things if action.action not in READ_ONLY else ():
        if number is not None:
            return model, number
    return OperatorAction, action.pk


def _change_message(action: OperatorAction) -> str:
    """Return the text of the admin entry, untranslated: it is written once and read in many languages."""
    count = f"{action.count} messages" if action.count > 1 else ""
    return " · ".join(part for part in (str(action.action), count, action.reason) if part)
