"""The admin of parked messages."""

from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_rmq_retry.admin import (
    decisions,
    edit_form,
    edit_many,
    exports,
    key_lists,
    labels,
    message_list,
    message_page,
    places,
)
from django_rmq_retry.admin.choice import seen_by
from django_rmq_retry.admin.labels import CELLS
from django_rmq_retry.admin.message_list import FILTERS, MessageList, MessagePaginator, state_shown
from django_rmq_retry.admin.pages import Pages, edits, migrated, refusal
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.elsewhere import places_of
from django_rmq_retry.parked.key_lists import alike, look_up, store
from django_rmq_retry.parked.key_text import parse
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import Selection, narrowed

FORMS = (
    ("discard/", "discard", decisions.discarding),
    ("hold/", "hold", decisions.holding),
    ("unhold/", "unhold_many", decisions.ending_holds),
    ("restore/", "restore_many", decisions.restoring_many),
    ("export/", "export", exports.messages),
    ("edit/", "edit_many", edit_many.view),
    ("keys/", "keys", key_lists.view),
    ("newer/", "newer", message_list.newer),
    ("<int:pk>/edit/", "edit", edit_form.view),
    ("<int:pk>/restore/", "restore", decisions.restoring),
    ("<int:pk>/unhold/", "unhold", decisions.ending_hold),
)
BUTTONS = (
    ("<int:pk>/reveal/", "reveal", message_page.reveal),
    ("<int:pk>/body/", "body", message_page.download),
)
"""The addresses besides the list and the message itself: address, name, view."""


def _leads_to(page: str, verb: str, label: Any) -> Any:
    """Return an action of the list that leads to the page that asks."""

    @admin.action(description=label, permissions=[verb])
    def lead(pages: "ParkedMessageAdmin", request: HttpRequest, _rows: QuerySet[ParkedMessage]) -> HttpResponse:
        carried = {"sel": pages.ticked(request).token(), "listed": request.GET.urlencode()}
        return HttpResponseRedirect(f"{pages.address(page)}?{urlencode({k: v for k, v in carried.items() if v})}")

    return lead


def _may(
    verb: str, states: Collection[str] = State.values, *, mixed: bool = True
) -> Callable[[Any, HttpRequest], bool]:
    """Offer an action where it can do something: on a list of messages in one of these states, or of all if mixed."""

    def may(_self: Any, request: HttpRequest) -> bool:
        shown = state_shown(request)
        fits = shown in states if shown in State.values else mixed
        return fits and (verb != "bulk_edit" or edits()) and not refusal(request, verb)

    return may


@admin.register(ParkedMessage)
class ParkedMessageAdmin(Pages):
    """The list of parked messages, from which operators find a message and the actions on it."""

    sees = "view"
    list_display = CELLS
    list_display_links = (CELLS[1],)
    list_filter = FILTERS
    search_fields = ("message_id__exact",)
    search_help_text = _(
        "A business key or message id, or how it begins, or a number such as #17. Several keys make a list."
    )
    ordering = ("-parked_at", "-pk")
    sortable_by = (CELLS[-1],)
    paginator = MessagePaginator
    actions = ("requeue", "edit", "discard", "hold", "unhold", "restore", "export")
    change_list_template = "admin/rmq_retry/parkedmessage/list.html"

    @wraps(admin.ModelAdmin.action_checkbox)
    def action_checkbox(self, obj: Any) -> SafeString:  # type: ignore[override]  # wraps() makes it a function
        return labels.tick(obj)

    requeue = _leads_to("requeuerun_preview", "requeue", _("Requeue…"))
    edit = _leads_to("parkedmessage_edit_many", "bulk_edit", _("Edit…"))
    discard = _leads_to("parkedmessage_discard", "discard", _("Discard…"))
    hold = _leads_to("parkedmessage_hold", "hold", _("Hold…"))
    unhold = _leads_to("parkedmessage_unhold_many", "unhold", _("Take off hold…"))
    restore = _leads_to("parkedmessage_restore_many", "restore", _("Restore…"))
    export = _leads_to("parkedmessage_export", "export", _("Export…"))
    has_requeue_permission, has_discard_permission = _may("requeue", OPEN), _may("discard", (*OPEN, State.REQUEUED))
    has_bulk_edit_permission = _may("bulk_edit", OPEN)
    has_hold_permission, has_export_permission = _may("hold", OPEN), _may("export")
    has_unhold_permission = _may("unhold", (State.ON_HOLD,), mixed=False)
    has_restore_permission = _may("restore", (State.DISCARDED,), mixed=False)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MessageList]:
        return MessageList

    def get_queryset(self, request: HttpRequest) -> QuerySet[ParkedMessage]:
        return super().get_queryset(request).defer(*labels.LEFT_OUT)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ParkedMessage], search_term: str
    ) -> tuple[QuerySet[ParkedMessage], bool]:
        return narrowed(queryset, message_list.searched(request, search_term.strip())), False

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponseBase:
        """Open the message if it is all that the search finds, else show the list.

        If nothing is found, the same key in another case is looked up, and several words as a list of keys.
        """
        asked = request.GET.get("q", "").strip()
        if asked and request.method == "GET":
            numbers = message_list.found(request, asked)
            alone = len(numbers) == 1 and self._may_open(request, numbers[0])
            # Another message with the same key may wait for its retry: the list shows both.
            if alone and not places_of([asked], places.rooms_of(request)).beside:
                return HttpResponseRedirect(self.address("parkedmessage_change", numbers[0]))
            address = "" if numbers else self._otherwise(request, asked)
            if address:
                return HttpResponseRedirect(address)
        return super().list_page(request, **more)

    def _otherwise(self, request: HttpRequest, asked: str) -> str:
        """Return the address that shows what the operator may have meant; empty if that is not found either."""
        try:
            words, seen = parse(asked, spaces=True), seen_by(request)
        except Refused:
            return ""
        spelled = alike([asked], seen).get(asked, [])
        if len(spelled) == 1:
            return f"{request.path}?{urlencode({'q': spelled[0]})}"
        found = look_up(words, seen) if len(words) > 1 else {}
        if not found:
            return ""
        listed = store(words, Actor.of_request(request), found)
        return f"{self.address('parkedmessage_keys')}?{urlencode({'list': listed.pk})}"

    def _may_open(self, request: HttpRequest, number: int) -> bool:
        """Return False for a message that a rule withholds: the refusal would reveal that it exists."""
        if not operators.has_own_rules(request.user):
            return True
        rows = self.get_queryset(request).filter(pk=number)
        return any(not refusal(request, "view", message=one) for one in rows)

    @migrated
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponseBase:
        return message_page.view(self, request, object_id)

    @migrated
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponseBase:
        def shown(_pages: Pages, request: HttpRequest, message: ParkedMessage) -> HttpResponse:
            return super(ParkedMessageAdmin, self).history_view(request, str(message.pk))

        return message_page.of_message("view")(shown)(self, request, object_id)

    def own_urls(self) -> list[URLPattern]:
        guarded = ((FORMS, self.roomy), (BUTTONS, require_POST))
        return [
            self.own_url(route, name, guard(partial(view, self)))
            for some, guard in guarded
            for route, name, view in some
        ]

    def ticked(self, request: HttpRequest) -> Selection:
        """Return the ticked messages, or all messages of the list."""
        if request.POST.get("select_across") == "1":
            listed: Any = self.get_changelist_instance(request)
            return Selection.of_filter(listed.words())
        ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
        return Selection.of_ids(int(one) for one in ticked if one.isdecimal())
