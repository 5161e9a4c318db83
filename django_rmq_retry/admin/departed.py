"""A message that is not in the database any more: what the audit log still knows of it."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_rmq_retry.admin import allowing
from django_rmq_retry.admin.activity import activity
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.models import OperatorAction, ParkedMessage
from django_rmq_retry.operating.filtering import number_in

View = Callable[..., HttpResponse]


def remembered(view: View) -> View:
    """Answer with 410, and with what is left to tell, for a message that retention has deleted."""

    def answered(pages: Pages, request: HttpRequest, pk: Any) -> HttpResponse:
        try:
            return view(pages, request, pk)
        except Http404:
            if _was_there(str(pk)):
                return _page(pages, request, int(pk))
            raise

    update_wrapper(answered, view)
    return answered


def _was_there(number: str) -> bool:
    """Numbers are given one after another: one below the newest, or one that somebody acted on, was given."""
    pk = number_in(number)
    if not pk:
        return False
    newer = ParkedMessage.objects.filter(pk__gt=pk).order_by("pk").values_list("pk", flat=True)
    acted = OperatorAction.objects.filter(message=pk).order_by("-number").values_list("pk", flat=True)
    return newer.first() is not None or acted.first() is not None


def _page(pages: Pages, request: HttpRequest, number: int) -> HttpResponse:
    why = allowing.refusal(request, "view")
    if why:
        return pages.refused(request, why)
    known = activity(request, message=number)
    return pages.page(
        request,
        "parkedmessage/departed.html",
        title=_("Message #%(number)d is not here any more") % {"number": number},
        status=410,
        name=next((act.subject for act, _why in known["activity"] if act.subject), ""),
        log="" if known["no_activity"] else f"{pages.address('operatoraction_changelist')}?message={number}",
        **known,
    )
