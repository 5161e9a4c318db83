"""What the pages that ask are about: a selection out of the address, frozen at the first look, signed from then on."""

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.db.models import BigIntegerField
from django.http import HttpRequest, HttpResponseRedirect

from django_rmq_retry.admin import allowing
from django_rmq_retry.conf import settings
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.operating.checking import Finding
from django_rmq_retry.operating.selecting import Selection

CARRIED = ("canary",)
"""What an address says besides the messages."""


def frozen(request: HttpRequest) -> HttpResponseRedirect | None:
    """To the same page with a signed selection, where the address names a group, a message or a run instead."""
    if request.method != "GET" or request.GET.get("sel"):
        return None
    selection = _named(request)
    if selection is None:
        return None
    words = {"sel": selection.token(), **{name: request.GET[name] for name in CARRIED if name in request.GET}}
    return HttpResponseRedirect(f"{request.path}?{urlencode(words)}")


def chosen(request: HttpRequest) -> Selection:
    """The selection that the page is about; Outdated where its token is too old or not ours."""
    return Selection.read(request.POST.get("sel") or request.GET.get("sel") or "")


def again(request: HttpRequest, selection: Selection) -> str:
    """The address that freezes the same choice anew."""
    words: dict[str, Any] = {"sel": _anew(selection).token()}
    words |= {name: request.GET[name] for name in CARRIED if name in request.GET}
    return f"{request.path}?{urlencode(words)}"


def forbidden(request: HttpRequest, verb: str, selection: Selection) -> str:
    """Why the person may not do this to these messages; the project's rules are asked for those that are named."""
    count = selection.count if verb == "requeue" else None
    why = allowing.refusal(request, verb, count=count)
    if why or not selection.revisions:
        return why
    for message in ParkedMessage.objects.filter(pk__in=list(selection.revisions)).defer("body", "properties"):
        why = allowing.refusal(request, verb, message)
        if why:
            return named(request, message, why)
    return ""


def named(request: HttpRequest, message: ParkedMessage, why: str) -> str:
    """Why not, and which message it is about; by its number alone where the person may not see it."""
    name = f"#{message.pk}" if allowing.refusal(request, "view", message) else str(message)
    return f"{name}: {why}"


def seen(request: HttpRequest, finding: Finding) -> Finding:
    """A finding with those of its examples that the person may see."""
    if settings().can is None and not allowing.refusal(request, "view"):
        return finding
    rows = ParkedMessage.objects.filter(pk__in=[pk for pk, _name in finding.examples]).defer("body", "properties")
    known = {row.pk for row in rows if not allowing.refusal(request, "view", row)}
    return replace(finding, examples=tuple(one for one in finding.examples if one[0] in known))


def sample(request: HttpRequest, selection: Selection, count: int = 10) -> list[ParkedMessage]:
    """The first few, the oldest first, as far as the person may see them."""
    rows = selection.queryset().defer("body", "properties").order_by("parked_at", "pk")[:count]
    return [row for row in rows if not allowing.refusal(request, "view", row)]


def _named(request: HttpRequest) -> Selection | None:
    group, message, run = (_number(request.GET.get(name, "")) for name in ("group", "message", "failed_of_run"))
    if group is not None:
        return Selection.of_filter({"group": group, "state": [State.PARKED]})
    if message is not None:
        return Selection.of_ids([message])
    if run is not None:
        return Selection.of_filter({"failed_of_run": run, "state": [State.PARKED]})
    return None


def _number(text: str) -> int | None:
    """One that a column can hold: SQLite refuses to look for others."""
    return int(text) if text.isdecimal() and int(text[:30]) <= BigIntegerField.MAX_BIGINT else None


def _anew(selection: Selection) -> Selection:
    return Selection.of_filter(selection.filter) if selection.filter else Selection.of_ids(selection.revisions)
