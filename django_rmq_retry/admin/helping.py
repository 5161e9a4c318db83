"""What the person at the page may do, verb by verb, and why not where they may not: for the help on every page."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_rmq_retry.admin import allowing
from django_rmq_retry.conf import settings
from django_rmq_retry.operating.permitting import PERMISSIONS

NEEDED = {"bulk_requeue": ("requeue", "bulk_requeue"), "edit": ("edit", "view_payload", "requeue")}
"""Verbs that need more than their own permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """One of them, in the words of Django's own pages; ``why`` it is missing, else nothing."""

    name: str
    why: str


def permissions(request: HttpRequest) -> list[Permission]:
    """Each once, also where two verbs need the same."""
    found: dict[str, Permission] = {}
    for verb, (codename, name) in PERMISSIONS.items():
        if codename not in found:
            found[codename] = Permission(name=str(name), why=_why_not(request, verb))
    return list(found.values())


def rules_apart(request: HttpRequest) -> bool:
    """Whether the project may forbid for single messages what is allowed here."""
    return settings().can is not None and not getattr(request.user, "is_superuser", False)


def _why_not(request: HttpRequest, verb: str) -> str:
    why = next((why for one in NEEDED.get(verb, (verb,)) if (why := allowing.refusal(request, one))), "")
    if verb == "edit" and not why and True not in settings().editable.values():
        return _("No message is to be edited in this project (EDITABLE).")
    return why
