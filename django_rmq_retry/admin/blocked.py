"""The admin of blocked ordering keys."""

from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.translation import gettext as _

from django_rmq_retry.admin import pages
from django_rmq_retry.admin.pages import Pages, migrated
from django_rmq_retry.models import BlockedKey, ParkedMessage
from django_rmq_retry.ordering.keys import blocked_figures, record_of, records_of
from django_rmq_retry.parked.controls import blocked, unblock
from django_rmq_retry.parked.operators import Actor, Outdated, Refused

SHOWN = 200
"""Keys on one page; more than an operator resolves one by one."""


@admin.register(BlockedKey)
class BlockedKeyAdmin(Pages):
    """The list of blocked keys, and a page that asks before it unblocks one."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not pages.refusal(request, "view_key")

    def get_urls(self) -> list[Any]:
        """Offer no page for a key except the one that asks before it unblocks the key."""
        ask = path(
            "<int:pk>/unblock/", self.admin_site.admin_view(self.unblock_view), name="rmq_retry_blockedkey_unblock"
        )
        return [ask, *(url for url in super().get_urls() if url.name == "rmq_retry_blockedkey_changelist")]

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        why = pages.refusal(request, "view_key")
        if why:
            return self.refused(request, why)
        handler = request.GET.get("handler", "")
        rows = list(blocked(handler=handler)[:SHOWN])
        records = records_of(rows)
        return self.page(
            request,
            "blockedkey/keys.html",
            part="parts/blocked.html",
            title=_("Blocked keys"),
            rows=[(row, _seen(request, records.get(row.pk))) for row in rows],
            standing=blocked_figures(),
            more=blocked(handler=handler).count() - len(rows) if len(rows) == SHOWN else 0,
            why_not=pages.refusal(request, "unblock"),
        )

    @migrated
    def unblock_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a reason, then let the next message of the key go first."""
        why = pages.refusal(request, "view_key") or pages.refusal(request, "unblock")
        if why:
            return self.refused(request, why)
        row = blocked().filter(pk=pk).first()
        if row is None:
            raise Http404(_("This key is no longer blocked."))
        wrong = ""
        if request.method == "POST":
            try:
                self._unblock(request, row)
                return HttpResponseRedirect(self.address("blockedkey_changelist"))
            except Outdated as refusal:
                messages.warning(request, str(refusal))
                return HttpResponseRedirect(self.address("blockedkey_changelist"))
            except Refused as refusal:
                wrong = str(refusal)
        return self.page(
            request,
            "blockedkey/unblock.html",
            title=_("Unblock key %(key)s") % {"key": row.key},
            status=422 if wrong else 200,
            row=row,
            record=_seen(request, record_of(row) if row.parked else None),
            typed=request.POST,
            wrong={"all": wrong} if wrong else {},
        )

    def _unblock(self, request: HttpRequest, row: BlockedKey) -> None:
        if request.POST.get("first") != row.name:
            raise Outdated(_("Nothing was changed: another message now goes first on this key."))
        now = unblock(row, Actor.of_request(request), reason=request.POST.get("text", ""))
        if now is None:
            messages.success(request, _("Key %(key)s is unblocked: no message waits behind it.") % {"key": row.key})
        else:
            text = _("Key %(key)s is unblocked: %(message)s now goes first.")
            messages.success(request, text % {"key": row.key, "message": now.blocker})


def _seen(request: HttpRequest, record: ParkedMessage | None) -> ParkedMessage | None:
    """Return the parked message that goes first, if the user may see it."""
    return None if record is None or pages.refusal(request, "view", record) else record
