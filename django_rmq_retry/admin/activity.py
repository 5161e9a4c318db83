"""What people did, as the pages of groups, messages and the live status show it."""

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest

from django_rmq_retry.admin import allowing, labels
from django_rmq_retry.models import OperatorAction

LISTED = 20


def activity(request: HttpRequest, *, most: int = LISTED, **about: int) -> dict[str, Any]:
    """The newest acts, as many as the person may see; and why they see none."""
    why = allowing.refusal(request, "view_audit")
    if why:
        return {"activity": (), "no_activity": why}
    acts = OperatorAction.objects.filter(**about).order_by("-number")
    seen = acts if not allowing.refusal(request, "view_all_audit") else acts.filter(actor=request.user.pk)
    return {"activity": told(seen[:most]), "no_activity": ""}


def told(acts: Iterable[OperatorAction]) -> list[tuple[OperatorAction, str]]:
    """Each with its reason in words."""
    return [(act, labels.act_reason(act)) for act in acts]
