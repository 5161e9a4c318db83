"""The admin of the outbox: what waits to be sent, and what failed and has to be sent again or discarded."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db import router
from django.db.models import BinaryField, Case, Exists, F, OuterRef, QuerySet, Value, When
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext
from django.views.decorators.http import require_POST

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.contents import body_of, heading_of
from django_rmq_retry.admin.labels import LONGEST_KEY, cut_line, labelled, one_short_line, short_key, tick
from django_rmq_retry.admin.message_list import CappedPaginator
from django_rmq_retry.admin.outbox_outlook import Outlook, lack_of
from django_rmq_retry.admin.pages import Button, Listed, Pages, migrated, refusal, requires
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.health.senders import TAKEN_WITHIN, Senders, Untaken
from django_rmq_retry.markup import NOTHING, badge, name, time_ago
from django_rmq_retry.messages.properties import Properties, decode_properties
from django_rmq_retry.models import OutboxMessage, State
from django_rmq_retry.models.boxes import NO_ROUTE
from django_rmq_retry.parked import outbox_shelf
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, Refused, has_own_rules, own_rules_refusal
from django_rmq_retry.parked.outbox_actions import discard_outbox, failing, retry_outbox
from django_rmq_retry.parked.selection import number_in
from django_rmq_retry.parked.stored_keys import MOST_LISTED_BYTES, keys_of
from django_rmq_retry.wording import counted, number

OutboxRows = QuerySet[OutboxMessage]
MOST_DISCARDED = 500
"""The most rows that are discarded at once."""
MOST_SHOWN = 20
"""The most of them that the page names."""


class ByOutboxState(admin.SimpleListFilter):
    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("failed", pgettext("outbox", "failed")), ("waiting", _("waiting to be sent"))]

    def queryset(self, request: HttpRequest, queryset: OutboxRows) -> OutboxRows:
        return queryset.filter(failed_at__isnull=self.value() == "waiting") if self.value() else queryset


def state_of(row: OutboxMessage) -> SafeString:
    """Return a badge for what has become of the row, and when it is sent next or was due."""
    attempts = counted(ngettext("%(count)d attempt", "%(count)d attempts", row.attempts), count=row.attempts)
    details: list[str] = [attempts] if row.attempts else []
    late = database_clock.reckoned(records_alias()) - row.due_at
    if row.failed_at:
        shown = badge(State.PARKED, pgettext("outbox", "failed"))
    elif row.attempts:
        shown = badge(State.ON_HOLD, pgettext("outbox", "refused"))
        details += [format_html(_("next {}"), time_ago(row.due_at))] if late < timedelta() else []
    else:
        shown = badge(State.REQUEUEING, _("waiting to be sent"))
    if getattr(row, "behind", False) and not (row.failed_at or row.attempts):
        details.append(_("behind an earlier one"))
    elif late > TAKEN_WITHIN and not row.failed_at:
        details.append(format_html(_("due {}"), time_ago(row.due_at)))
    return format_html('{} <span class="rmq-quiet">{}</span>', shown, format_html_join(", ", "{}", zip(details)))


def said_of(row: OutboxMessage) -> str:
    """Return why the row was not sent: the broker's answer, in words if it is that no queue takes the message."""
    if not row.error.startswith(NO_ROUTE):
        return row.error
    if row.exchange:
        text = _("No queue took “%(key)s” from the exchange “%(exchange)s” (%(answer)s)")
    else:
        text = _("No queue took “%(key)s” (%(answer)s)")
    return text % {"key": row.routing_key, "exchange": row.exchange, "answer": row.error}


def target_of(row: OutboxMessage) -> str:
    return f"{row.exchange} {row.routing_key}".strip()


def properties_of(row: OutboxMessage) -> Properties:
    try:
        return decode_properties(bytes(row.properties))
    except UndecodableHeaders:
        return Properties()


def withheld(request: HttpRequest) -> str:
    """Return why the user sees no content of the outbox; empty if the user does.

    The project's own rules are about parked messages: they cannot say of a row who may see it.
    """
    return refusal(request, "view") or (own_rules_refusal() if has_own_rules(request.user) else "")


def _found(pk: int) -> OutboxMessage:
    row = OutboxMessage.objects.filter(pk=pk).first()
    if row is None:
        raise Http404(_("There is no such message in the outbox: it was sent meanwhile, or discarded."))
    return row


class OutboxList(Listed):
    """The list of rows, each with its type, and with its business keys if its body is small."""

    framed = False
    placeholder = gettext_lazy("key or id")
    unread = 0
    """If a search has not read all contents: how many it has read, the latest ones."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        hidden = withheld(request)
        for row in self.result_list:
            row.kind = "" if hidden else properties_of(row).type
            row.keys = keys_of(row, bytes(row.small_body)) if row.small_body and not hidden else []
        # An empty outbox has nothing to search: there the field in the frame finds parked messages, as elsewhere.
        self.framed = bool(self.result_count or self.query or self.params)
        self.unread = request.__dict__.get("rmq_outbox_unread", 0)
        self.untaken = Untaken.now() if self.result_count else None
        self.senders = Senders.now().sentence if self.untaken and self.untaken.count else ""
        columns = {"order": "order_key", "kind": "kind"}
        self.same = [
            name for name, field in columns.items() if not any(getattr(row, field) for row in self.result_list)
        ]


@admin.register(OutboxMessage)
class OutboxMessageAdmin(Pages):
    """The rows of the outbox, oldest first."""

    sees = "view_outbox"
    list_display = ("key", "kind", "written", "status", "order", "failure")
    list_display_links = ("key",)
    list_filter = (ByOutboxState,)
    search_fields = ("message_id__iexact",)
    search_help_text = gettext_lazy("A business key, message id or ordering key, or how it begins.")
    ordering = ("pk",)
    sortable_by = ()
    paginator = CappedPaginator
    actions = ("retry", "discard")
    change_list_template = "admin/rmq_retry/outboxmessage/list.html"

    @wraps(admin.ModelAdmin.action_checkbox)
    def action_checkbox(self, obj: Any) -> SafeString:  # type: ignore[override]  # wraps() makes it a function
        return tick(obj)

    @admin.display(description=gettext_lazy("Key or id"))
    def key(self, row: OutboxMessage) -> SafeString:
        shown = next(iter(getattr(row, "keys", ())), "") or str(row)
        return format_html('<span title="{}">{}</span>', one_short_line(str(row)), short_key(shown))

    @admin.display(description=gettext_lazy("Message type"))
    def kind(self, row: OutboxMessage) -> SafeString:
        return labelled(_("Message type"), name(one_short_line(getattr(row, "kind", "") or NOTHING)))

    @admin.display(description=gettext_lazy("Written"))
    def written(self, row: OutboxMessage) -> SafeString:
        return labelled(_("Written"), time_ago(row.created_at))

    @admin.display(description=gettext_lazy("State"))
    def status(self, row: OutboxMessage) -> SafeString:
        return state_of(row)

    @admin.display(description=gettext_lazy("Ordering key"))
    def order(self, row: OutboxMessage) -> SafeString:
        return labelled(_("Ordering key"), one_short_line(row.order_key, LONGEST_KEY) or NOTHING)

    @admin.display(description=gettext_lazy("To, or last error"))
    def failure(self, row: OutboxMessage) -> SafeString:
        said = said_of(row)
        return labelled(_("Last error") if said else _("To"), cut_line(said or target_of(row)))

    def get_queryset(self, request: HttpRequest) -> OutboxRows:
        small = Case(When(size__lte=MOST_LISTED_BYTES, then=F("body")), default=Value(b""), output_field=BinaryField())
        earlier = OutboxMessage.objects.filter(order_key=OuterRef("order_key"), pk__lt=OuterRef("pk"))
        behind = Case(When(order_key="", then=Value(value=False)), default=Exists(earlier))
        rows: OutboxRows = super().get_queryset(request)
        return rows.defer("body").annotate(small_body=small, behind=behind)

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return OutboxList

    def get_search_results(
        self, request: HttpRequest, queryset: OutboxRows, search_term: str
    ) -> tuple[OutboxRows, bool]:
        """Find rows as the search of all pages does: by key, id or number, or by their contents."""
        asked = search_term.strip()
        pk = number_in(asked.removeprefix("#"))
        if not asked or withheld(request):
            return super().get_search_results(request, queryset, search_term)
        look = outbox_shelf.look_for(asked, using=router.db_for_read(OutboxMessage))
        numbers = {row.pk for _key, row, _why in look.rows()} | ({pk} if pk is not None else set())
        vars(request)["rmq_outbox_unread"] = look.read if look.stopped else 0
        return queryset.filter(pk__in=numbers), False

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponseBase:
        return super().list_page(request, title=_("Outbox: messages not sent yet"), **more)

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponseBase:
        row = _found(number_in(object_id) or 0)
        why_withheld = withheld(request)
        properties, whole = properties_of(row), not refusal(request, "view_payload")
        contents: dict[str, Any] = {}
        kind, look = "", broker_look.look()
        lack, outlook = lack_of(row, look), Outlook.of(row, look)
        vars(row)["behind"] = outlook.ahead is not None
        if not why_withheld:
            kind = properties.type or ""
            body = body_of(bytes(row.body), properties.content_type or "", whole=whole)
            heading = heading_of(bytes(row.properties), whole=whole)
            # A hidden value has a button only on the page of a parked message, which writes a reveal to the audit log.
            headers = tuple(replace(one, place="") for one in heading.headers)
            contents = {"body": replace(body, hidden=(), unnamed=0), "heading": replace(heading, headers=headers)}
        return self.page(
            request,
            "outboxmessage/message.html",
            title=f"{kind} {row}".strip(),
            row=row,
            kind=kind,
            business_keys=[] if why_withheld else keys_of(row, bytes(row.body)),
            state=state_of(row),
            said=said_of(row),
            lack=lack,
            outlook=outlook,
            why_withheld=why_withheld,
            buttons=[
                *self._button_in_front(outlook),
                *self._buttons(request, row, sendable=lack is None or lack.ended),
            ],
            **contents,
        )

    def _button_in_front(self, outlook: Outlook) -> Iterator[Button]:
        """Yield the button to the message in front of this one, if it stays there until an operator acts."""
        if outlook.ahead is not None and outlook.ahead.failed_at:
            address = self.address("outboxmessage_change", outlook.ahead.pk)
            yield Button(label=_("Open the message in front"), address=address, kind="main")

    def _buttons(self, request: HttpRequest, row: OutboxMessage, *, sendable: bool) -> list[Button]:
        """Return the actions on a row; none leads while the broker would refuse it again."""
        if not (row.failed_at or row.attempts):
            return []
        values = (("action", "retry"), (ACTION_CHECKBOX_NAME, str(row.pk)))
        address, why = self.address("outboxmessage_changelist"), refusal(request, "retry")
        discard = self.address("outboxmessage_discard", row.pk)
        return [
            Button(
                label=_("Send again"),
                address=address,
                why=why,
                post=True,
                values=values,
                kind="main" if sendable else "",
            ),
            Button(label=_("Discard…"), address=discard, why=refusal(request, "discard_outbox"), kind="danger"),
        ]

    def own_urls(self) -> list[URLPattern]:
        several = require_POST(self.discard_several_view)
        return [
            self.own_url("<int:pk>/discard/", "discard", self.discard_view),
            self.own_url("discard/", "discard_several", several),
        ]

    @migrated
    @requires("view_outbox", "discard_outbox")
    def discard_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """Ask for a reason, then delete the row: a payment that is not sent is not made."""
        row = _found(pk)
        return self._discard(request, [row.pk]) if request.method == "POST" else self._discard_page(request, [row.pk])

    @migrated
    @requires("view_outbox", "discard_outbox")
    def discard_several_view(self, request: HttpRequest) -> HttpResponseBase:
        """Delete the rows that the page before has shown."""
        numbers = [
            number for text in request.POST.get("rows", "").split(",") if (number := number_in(text)) is not None
        ]
        return self._discard(request, numbers[:MOST_DISCARDED])

    def _discard_page(self, request: HttpRequest, numbers: Sequence[int], wrong: str = "") -> HttpResponseBase:
        """Show what a discard of these rows deletes, what it lets pass, and which of them it leaves."""
        using = router.db_for_read(OutboxMessage)
        rows = list(failing(using).filter(pk__in=numbers).order_by("pk").defer("body", "properties"))
        known = OutboxMessage.objects.using(using)
        keys = {row.order_key for row in rows} - {""}
        behind = known.filter(order_key__in=keys).exclude(pk__in=numbers).count() if keys else 0
        alone = known.filter(pk__in=numbers).first() if len(numbers) == 1 else None
        if not (rows or wrong):
            wrong = _("Only what the broker has refused can be discarded: this message may be on its way.")
        title = ngettext("Discard %(count)d message", "Discard %(count)d messages", len(rows))
        return self.page(
            request,
            "outboxmessage/discard.html",
            title=_("Discard %(name)s") % {"name": alone} if alone else counted(title, count=len(rows)),
            status=422 if wrong else 200,
            alone=alone,
            said=said_of(alone) if alone else "",
            shown=rows[:MOST_SHOWN],
            numbers=",".join(str(row.pk) for row in rows),
            count=len(rows),
            left=len(numbers) - len(rows),
            behind=behind,
            typed=request.POST,
            wrong={"all": wrong} if wrong else {},
        )

    def _discard(self, request: HttpRequest, numbers: Sequence[int]) -> HttpResponseBase:
        using, reason = router.db_for_read(OutboxMessage), request.POST.get("text", "")
        try:
            count = discard_outbox(Actor.of_request(request), numbers, using=using, reason=reason)
        except SecondPersonNeeded as needed:
            return self.ask(request, needed)
        except Refused as refused:
            return self._discard_page(request, numbers, wrong=str(refused))
        if count:
            said = ngettext(
                "%(count)d message was discarded and is never sent.",
                "%(count)d messages were discarded and are never sent.",
                count,
            )
            messages.success(request, counted(said, count=count))
        if count < len(numbers):
            gone = ngettext(
                "%(count)d message was not discarded: it was sent or discarded meanwhile, or may be on its way.",
                "%(count)d messages were not discarded: they were sent or discarded meanwhile, or may be on their way.",
                len(numbers) - count,
            )
            messages.warning(request, counted(gone, count=len(numbers) - count))
        return HttpResponseRedirect(self.address("outboxmessage_changelist"))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return not refusal(request, "retry")

    @admin.action(description=gettext_lazy("Send again"), permissions=["retry"])
    def retry(self, request: HttpRequest, rows: OutboxRows) -> None:
        """Send failed rows again; rows that the relay will send anyway are left out."""
        chosen = list(rows.values_list("pk", flat=True))
        count = retry_outbox(Actor.of_request(request), chosen, using=rows.db)
        text = ngettext("%d message will be sent again.", "%d messages will be sent again.", count)
        self.message_user(request, text % count, messages.SUCCESS if count == len(chosen) else messages.WARNING)

    def has_discard_outbox_permission(self, request: HttpRequest) -> bool:
        return not refusal(request, "discard_outbox")

    @admin.action(description=gettext_lazy("Discard…"), permissions=["discard_outbox"])
    def discard(self, request: HttpRequest, rows: OutboxRows) -> HttpResponseBase | None:
        """Show what would be discarded, and ask for a reason."""
        numbers = list(rows.order_by("pk").values_list("pk", flat=True)[: MOST_DISCARDED + 1])
        if len(numbers) > MOST_DISCARDED:
            text = _("At most %(most)s messages can be discarded at once. Select fewer.")
            self.message_user(request, text % {"most": number(MOST_DISCARDED)}, messages.WARNING)
            return None
        return self._discard_page(request, numbers)
