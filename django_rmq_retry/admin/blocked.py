"""The admin of blocked ordering keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_rmq_retry.admin.pages import Pages, migrated, refusal, requires
from django_rmq_retry.attempts.history import first_keys, last_attempts
from django_rmq_retry.models import BlockedKey, ParkedMessage
from django_rmq_retry.ordering.keys import blocked_figures, record_of, records_of
from django_rmq_retry.parked.blocked_keys import blocked, unblock
from django_rmq_retry.parked.operators import Actor, Outdated, Refused, has_own_rules

KEYS_ON_PAGE = 200
"""Keys on one page; more than an operator resolves one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A blocked key, and what is known of the message that goes first: its id alone tells an operator nothing."""

    row: BlockedKey
    record: ParkedMessage | None = None
    """The parked message, if the user may see it."""
    business_key: str = ""
    failure: str = ""
    """Its error and what that says, or what the handler said that parked it."""
    next_at: datetime | None = None
    """When its retry is due, or was."""

    @property
    def name(self) -> str:
        """Its business key, or else what kind of message it is, or else its id."""
        return self.business_key or (self.record.type if self.record else "") or self.row.blocker

    @property
    def id(self) -> str:
        """Its id, if that is not the name."""
        known = self.record.message_id if self.record else self.row.blocker
        return "" if known == self.name else known


def key_rows(request: HttpRequest, rows: Sequence[BlockedKey]) -> list[KeyRow]:
    """Return the rows of the page; two queries more if a message waits for its retry.

    With rules of the project only a record tells whether a user may see a message, so without one its id is all.
    """
    records = records_of(rows)
    hidden = bool(refusal(request, "view")) or has_own_rules(request.user)
    retried = {row.identity: row.blocker for row in rows if not row.parked and not hidden}
    keys = first_keys(retried)
    last = {one.identity: one for one in last_attempts(retried)} if retried else {}

    def shown(row: BlockedKey) -> KeyRow:
        record, attempt = _seen(request, records.get(row.pk)), last.get(row.identity)
        if record is not None:
            return KeyRow(row=row, record=record, business_key=record.business_key, failure=record.failure)
        failure, next_at = (attempt.failure, attempt.next_at) if attempt else ("", None)
        return KeyRow(row=row, business_key=keys.get(row.identity, ""), failure=failure, next_at=next_at)

    return [shown(row) for row in rows]


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
        return self.page(
            request,
            "blockedkey/keys.html",
            part="parts/blocked.html",
            title=_("Blocked keys"),
            rows=key_rows(request, rows),
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
            first=key_rows(request, [row])[0].name,
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
