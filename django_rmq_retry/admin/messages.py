"""Parked messages: the list with its filters and actions. Each action leads to a page that asks."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_rmq_retry.admin import allowing, deciding, detail, editing, exporting, newer, opening, rows
from django_rmq_retry.admin.departed import remembered
from django_rmq_retry.admin.filters import FILTERS
from django_rmq_retry.admin.listing import MessageList, MessagePaginator
from django_rmq_retry.admin.pages import Pages, frame_of, migrated
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.operating.filtering import narrowed, numbers_of
from django_rmq_retry.operating.selecting import Selection

PAGES: tuple[tuple[str, str, Callable[..., HttpResponseBase]], ...] = (
    ("discard/", "discard", deciding.discarding),
    ("hold/", "hold", deciding.holding),
    ("export/", "export", exporting.messages),
    ("newer/", "newer", newer.view),
    ("<int:pk>/edit/", "edit", remembered(editing.view)),
)
POSTED: tuple[tuple[str, str, Callable[..., HttpResponseBase]], ...] = (
    ("<int:pk>/restore/", "restore", remembered(deciding.restoring)),
    ("<int:pk>/release/", "release", remembered(deciding.releasing)),
    ("<int:pk>/reveal/", "reveal", remembered(opening.reveal)),
    ("<int:pk>/body/", "body", remembered(opening.download)),
)
"""The pages besides the list and the message itself: address, name, view."""


@admin.register(ParkedMessage)
class ParkedMessageAdmin(Pages):
    """One list for people who look for a message, and the way from there to what may be done."""

    list_display = ("status", "key", "kind", "failure", "queue_name", "attempts_made", "parked")
    list_display_links = ("key",)
    list_filter = FILTERS
    search_fields = ("message_id__exact",)
    search_help_text = _("A business key, message id or correlation id, written out. One match opens the message.")
    ordering = ("-parked_at", "-pk")
    sortable_by = ("parked",)
    paginator = MessagePaginator
    actions = ("requeue", "discard", "hold", "export")
    change_list_template = "admin/rmq_retry/parkedmessage/list.html"

    status = admin.display(description=_("Status"))(lambda _self, one: rows.status(one))
    key = admin.display(description=_("Business key"))(lambda _self, one: rows.key(one))
    kind = admin.display(description=_("Message type"))(lambda _self, one: rows.kind(one))
    failure = admin.display(description=_("Error"))(lambda _self, one: rows.failure(one))
    queue_name = admin.display(description=_("Queue"))(lambda _self, one: rows.queue(one))
    attempts_made = admin.display(description=_("Attempts"))(lambda _self, one: rows.attempts(one))
    parked = admin.display(description=_("Parked"), ordering="parked_at")(lambda _self, one: rows.parked(one))

    @wraps(admin.ModelAdmin.action_checkbox)
    def action_checkbox(self, obj: Any) -> SafeString:  # type: ignore[override]  # wraps() makes a function of it
        return rows.tick(obj)

    @admin.action(description=_("Requeue…"), permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: QuerySet[ParkedMessage]) -> HttpResponse:
        return self._to("requeuerun_preview", request)

    @admin.action(description=_("Discard…"), permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[ParkedMessage]) -> HttpResponse:
        return self._to("parkedmessage_discard", request)

    @admin.action(description=_("Hold…"), permissions=["hold"])
    def hold(self, request: HttpRequest, queryset: QuerySet[ParkedMessage]) -> HttpResponse:
        return self._to("parkedmessage_hold", request)

    @admin.action(description=_("Export…"), permissions=["export"])
    def export(self, request: HttpRequest, queryset: QuerySet[ParkedMessage]) -> HttpResponse:
        return self._to("parkedmessage_export", request)

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return not allowing.refusal(request, "requeue")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return not allowing.refusal(request, "discard")

    def has_hold_permission(self, request: HttpRequest) -> bool:
        return not allowing.refusal(request, "hold")

    def has_export_permission(self, request: HttpRequest) -> bool:
        return not allowing.refusal(request, "export")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MessageList]:
        return MessageList

    def get_queryset(self, request: HttpRequest) -> QuerySet[ParkedMessage]:
        return super().get_queryset(request).defer(*rows.LEFT_OUT)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ParkedMessage], search_term: str
    ) -> tuple[QuerySet[ParkedMessage], bool]:
        asked = search_term.strip()
        return (narrowed(queryset, {"search": asked}) if asked else queryset), False

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        why = allowing.refusal(request, "view")
        if why:
            return self.refused(request, why)
        asked = request.GET.get("q", "").strip()
        if asked and request.method == "GET":
            found = numbers_of(asked)
            if len(found) == 1:
                return HttpResponseRedirect(self.address("parkedmessage_change", found[0]))
        more = {"title": capfirst(self.opts.verbose_name_plural), **frame_of(request)}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    @migrated
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return remembered(detail.view)(self, request, object_id)

    @migrated
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        def shown(_pages: Pages, request: HttpRequest, number: str) -> HttpResponse:
            why = allowing.refusal(request, "view", detail.found_or_404(number))
            stock = super(ParkedMessageAdmin, self).history_view
            return self.refused(request, why) if why else stock(request, number, extra_context)

        return remembered(shown)(self, request, object_id)

    def get_urls(self) -> list[Any]:
        return [*self._pages(PAGES, lambda view: view), *self._pages(POSTED, require_POST), *super().get_urls()]

    def _pages(self, pages: Iterable[tuple[str, str, Any]], guard: Callable[[Any], Any]) -> Iterator[URLPattern]:
        for route, name, view in pages:
            shown = self.admin_site.admin_view(guard(partial(view, self)))
            yield path(route, shown, name=f"rmq_retry_parkedmessage_{name}")

    def _to(self, name: str, request: HttpRequest) -> HttpResponse:
        """Carry what was ticked, or everything that the list means, to the page that asks."""
        if request.POST.get("select_across") == "1":
            listed: Any = self.get_changelist_instance(request)
            selection = Selection.of_filter(listed.words())
        else:
            ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
            selection = Selection.of_ids(int(one) for one in ticked if one.isdecimal())
        return HttpResponseRedirect(f"{self.address(name)}?{urlencode({'sel': selection.token()})}")
