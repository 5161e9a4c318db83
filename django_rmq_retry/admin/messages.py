"""The admin of parked messages."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper, wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotFound, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from django_rmq_retry.admin import (
    decisions,
    exports,
    key_lists,
    labels,
    message_list,
    message_page,
    pages,
    requeue_form,
)
from django_rmq_retry.admin.message_list import FILTERS, MessageList, MessagePaginator
from django_rmq_retry.admin.message_page import PLACE
from django_rmq_retry.admin.pages import Pages, frame_of, migrated
from django_rmq_retry.admin.timeline import activity
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.masking import hides, masked
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.models import Action, OperatorAction, ParkedMessage
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.operators import Actor, log_action
from django_rmq_retry.parked.selection import Selection, narrowed, number_in, numbers_of

View = Callable[..., HttpResponse]


def reveal(model_admin: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """Write the reveal to the audit log, then show the page once with the hidden value revealed."""
    message = message_page.found_or_404(str(pk))
    why = pages.refusal(request, "view", message) or pages.refusal(request, "reveal", message)
    if why:
        return model_admin.refused(request, why)
    place = request.POST.get("place", "")
    if place not in _hidden(message):
        return HttpResponseNotFound()
    with transaction.atomic(using=router.db_for_write(OperatorAction)):
        _note(request, message, Action.REVEAL, {"place": place})
    return message_page.view(model_admin, request, str(pk), shown=(place,))


def download(model_admin: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """Return the exact bytes of the body, or of an older version, as a file to save and not to display."""
    message = message_page.found_or_404(str(pk))
    why = pages.refusal(request, "view", message) or pages.refusal(request, "view_payload", message)
    if why:
        return model_admin.refused(request, why)
    number = 1 if request.POST.get("version") == "1" else message.version
    body = bytes(message.body) if number == 1 else contents(message).body
    with transaction.atomic(using=router.db_for_write(OperatorAction)):
        _note(request, message, Action.DOWNLOAD, {"version": number, "sha256": message.sha256, "bytes": len(body)})
    return HttpResponse(
        body,
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="message-{message.pk}-v{number}.bin"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        },
    )


def _hidden(message: ParkedMessage) -> set[str]:
    """Return the fields that are hidden from users who may not see the whole message."""
    paths = settings().operators.mask
    now = contents(message)
    places = {
        place for body in (now.body, bytes(message.body)) for place in masked(body, message.content_type, paths)[1]
    }
    for raw in (now.raw, bytes(message.properties)):
        try:
            names = list(decode_properties(raw).headers)
        except UndecodableHeaders:
            continue
        places |= {PLACE + name for name in names if hides([name], paths)}
    return places


def _note(request: HttpRequest, message: ParkedMessage, action: Action, facts: dict[str, object]) -> None:
    actor = Actor.of_request(request)
    log_action(actor, action, message=message.pk, group=message.group_id, subject=str(message), facts=facts)


def remembered(view: View) -> View:
    """Answer with 410 and the remaining facts for a message that retention has deleted."""

    def answered(model_admin: Pages, request: HttpRequest, pk: Any) -> HttpResponse:
        try:
            return view(model_admin, request, pk)
        except Http404:
            if _was_there(str(pk)):
                return _page(model_admin, request, int(pk))
            raise

    update_wrapper(answered, view)
    return answered


def _was_there(number: str) -> bool:
    """Return True if a message had this id: ids ascend, so there is a higher one or an action on it."""
    pk = number_in(number)
    if not pk:
        return False
    newer = ParkedMessage.objects.filter(pk__gt=pk).order_by("pk").values_list("pk", flat=True)
    acted = OperatorAction.objects.filter(message=pk).order_by("-number").values_list("pk", flat=True)
    return newer.first() is not None or acted.first() is not None


def _page(model_admin: Pages, request: HttpRequest, number: int) -> HttpResponse:
    why = pages.refusal(request, "view")
    if why:
        return model_admin.refused(request, why)
    known = activity(request, message=number)
    return model_admin.page(
        request,
        "parkedmessage/deleted.html",
        title=gettext("Message #%(number)d no longer exists") % {"number": number},
        status=410,
        name=next((action.subject for action, _why in known["activity"] if action.subject), ""),
        log="" if known["no_activity"] else f"{model_admin.address('operatoraction_changelist')}?message={number}",
        **known,
    )


PAGES: tuple[tuple[str, str, Callable[..., HttpResponseBase]], ...] = (
    ("discard/", "discard", decisions.discarding),
    ("hold/", "hold", decisions.holding),
    ("export/", "export", exports.messages),
    ("keys/", "keys", migrated(key_lists.view)),
    ("newer/", "newer", message_list.view),
    ("<int:pk>/edit/", "edit", remembered(requeue_form.edit_view)),
)

POSTED: tuple[tuple[str, str, Callable[..., HttpResponseBase]], ...] = (
    ("<int:pk>/restore/", "restore", remembered(decisions.restoring)),
    ("<int:pk>/unhold/", "unhold", remembered(decisions.unhold_view)),
    ("<int:pk>/reveal/", "reveal", remembered(reveal)),
    ("<int:pk>/body/", "body", remembered(download)),
)
"""The pages besides the list and the message itself: address, name, view."""


@admin.register(ParkedMessage)
class ParkedMessageAdmin(Pages):
    """The list of parked messages, from which operators find a message and the actions on it."""

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

    status = admin.display(description=_("Status"))(lambda _self, one: labels.status(one))
    key = admin.display(description=_("Business key"))(lambda _self, one: labels.key(one))
    kind = admin.display(description=_("Message type"))(lambda _self, one: labels.kind(one))
    failure = admin.display(description=_("Error"))(lambda _self, one: labels.failure(one))
    queue_name = admin.display(description=_("Queue"))(lambda _self, one: labels.queue(one))
    attempts_made = admin.display(description=_("Attempts"))(lambda _self, one: labels.attempts(one))
    parked = admin.display(description=_("Parked"), ordering="parked_at")(lambda _self, one: labels.parked(one))

    @wraps(admin.ModelAdmin.action_checkbox)
    def action_checkbox(self, obj: Any) -> SafeString:  # type: ignore[override]  # wraps() makes it a function
        return labels.tick(obj)

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
        return not pages.refusal(request, "requeue")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return not pages.refusal(request, "discard")

    def has_hold_permission(self, request: HttpRequest) -> bool:
        return not pages.refusal(request, "hold")

    def has_export_permission(self, request: HttpRequest) -> bool:
        return not pages.refusal(request, "export")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MessageList]:
        return MessageList

    def get_queryset(self, request: HttpRequest) -> QuerySet[ParkedMessage]:
        return super().get_queryset(request).defer(*labels.LEFT_OUT)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[ParkedMessage], search_term: str
    ) -> tuple[QuerySet[ParkedMessage], bool]:
        asked = search_term.strip()
        return (narrowed(queryset, {"search": asked}) if asked else queryset), False

    @migrated
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        why = pages.refusal(request, "view")
        if why:
            return self.refused(request, why)
        asked = request.GET.get("q", "").strip()
        if asked and request.method == "GET":
            numbers = numbers_of(asked)
            if len(numbers) == 1 and self._may_open(request, numbers[0]):
                return HttpResponseRedirect(self.address("parkedmessage_change", numbers[0]))
        more = {"title": capfirst(self.opts.verbose_name_plural), **frame_of(request)}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    def _may_open(self, request: HttpRequest, number: int) -> bool:
        """Return False for a message that a rule withholds: the refusal would reveal that it exists."""
        if not pages.rules_apart(request):
            return True
        return any(not pages.refusal(request, "view", one) for one in self.get_queryset(request).filter(pk=number))

    @migrated
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return remembered(message_page.view)(self, request, object_id)

    @migrated
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        def shown(_pages: Pages, request: HttpRequest, number: str) -> HttpResponse:
            why = pages.refusal(request, "view", message_page.found_or_404(number))
            stock = super(ParkedMessageAdmin, self).history_view
            return self.refused(request, why) if why else stock(request, number, extra_context)

        return remembered(shown)(self, request, object_id)

    def get_urls(self) -> list[Any]:
        return [*self._pages(PAGES, self.roomy), *self._pages(POSTED, require_POST), *super().get_urls()]

    def _pages(self, pages: Iterable[tuple[str, str, Any]], guard: Callable[[Any], Any]) -> Iterator[URLPattern]:
        for route, name, view in pages:
            shown = self.admin_site.admin_view(guard(partial(view, self)))
            yield path(route, shown, name=f"rmq_retry_parkedmessage_{name}")

    def _to(self, name: str, request: HttpRequest) -> HttpResponse:
        """Redirect to the confirmation page with the ticked messages, or with all messages of the list."""
        if request.POST.get("select_across") == "1":
            listed: Any = self.get_changelist_instance(request)
            selection = Selection.of_filter(listed.words())
        else:
            ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
            selection = Selection.of_ids(int(one) for one in ticked if one.isdecimal())
        return HttpResponseRedirect(f"{self.address(name)}?{urlencode({'sel': selection.token()})}")
