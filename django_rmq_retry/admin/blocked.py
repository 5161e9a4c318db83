"""The admin of blocked ordering keys."""

from functools import reduce
from operator import or_
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_rmq_retry.admin.pages import Pages, migrated, refusal, requires
from django_rmq_retry.models import BlockedKey, ParkedMessage
from django_rmq_retry.ordering.keys import blocked_figures, record_of, records_of
from django_rmq_retry.parked.blocked_keys import blocked, unblock
from django_rmq_retry.parked.operators import Actor, Outdated, Refused

KEYS_ON_PAGE = 200
"""Keys on one page; more than an operator resolves one by one."""


@admin.register(BlockedKey)
class BlockedKeyAdmin(Pages):
    """The list of blocked keys, and a page that asks before it unblocks one."""

    sees = "view_key"
    one_page = True

    def own_urls(self) -> list[URLPattern]:
        return [self.own_url("<int:pk>/unblock/", "unblock", self.unblock_view)]

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        asked = request.GET.get("q", "").strip()
        found = blocked(handler=request.GET.get("handler", ""))
        if asked:
            texts = ("key", "handler", "queue", "blocker")
            found = found.filter(reduce(or_, (Q(**{f"{name}__icontains": asked}) for name in texts)))
        rows = list(found[:KEYS_ON_PAGE])
        records = records_of(rows)
        return self.page(
            request,
            "blockedkey/keys.html",
            part="parts/blocked.html",
            title=_("Blocked keys"),
            rows=[(row, _seen(request, records.get(row.pk))) for row in rows],
            figures=blocked_figures(),
            asked=asked,
            more=found.count() - len(rows) if len(rows) == KEYS_ON_PAGE else 0,
            why_not=refusal(request, "unblock"),
        )

    @migrated
    @requires("view_key", "unblock")
    def unblock_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a reason, then let the next message of the key go first."""
        row = blocked().filter(pk=pk).first()
        if row is None:
            raise Http404(_("This key is no longer blocked."))
        wrong = ""
        if request.method == "POST":
            try:
                self._unblock(request, row)
            except Outdated as refusal:
                messages.warning(request, str(refusal))
            except Refused as refusal:
                wrong = str(refusal)
            if not wrong:
                return HttpResponseRedirect(self.address("blockedkey_changelist"))
        record = _seen(request, record_of(row) if row.parked else None)
        return self.page(
            request,
            "blockedkey/unblock.html",
            title=_("Unblock key %(key)s") % {"key": row.key},
            status=422 if wrong else 200,
            row=row,
            record=record,
            first=str(record or row.blocker),
            typed=request.POST,
            wrong={"all": wrong} if wrong else {},
        )

    def _unblock(self, request: HttpRequest, row: BlockedKey) -> None:
        if request.POST.get("first") != row.name:
            raise Outdated(_("Nothing was changed: another message now goes first on this key."))
        now = unblock(row, Actor.of_request(request), reason=request.POST.get("text", ""))
        text = _("Key %(key)s is unblocked: no message waits behind it.")
        if now is not None:
            text = _("Key %(key)s is unblocked: %(message)s now goes first.")
        messages.success(request, text % {"key": row.key, "message": now and now.blocker})


def _seen(request: HttpRequest, record: ParkedMessage | None) -> ParkedMessage | None:
    """Return the parked message that goes first, if the user may see it."""
    return None if record is None or refusal(request, "view", message=record) else record
