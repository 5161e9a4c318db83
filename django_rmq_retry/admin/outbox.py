"""The admin of the outbox. Bodies are not shown.

Only the command discards, because it requires a reason: a payment that is not sent is not made.
"""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from django_rmq_retry.admin.labels import column, one_short_line
from django_rmq_retry.admin.message_list import CappedPaginator
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.markup import time_exact
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.outbox_actions import retry_outbox

OutboxRows = QuerySet[OutboxMessage]


class ByOutboxState(admin.SimpleListFilter):
    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("failed", pgettext("outbox", "failed")), ("waiting", _("waiting to be sent"))]

    def queryset(self, request: HttpRequest, queryset: OutboxRows) -> OutboxRows:
        return queryset.filter(failed_at__isnull=self.value() == "waiting") if self.value() else queryset


@admin.register(OutboxMessage)
class OutboxMessageAdmin(Pages):
    """The rows of the outbox, oldest first."""

    sees = "view_outbox"
    list_display = ("name", "written", "state", "of_tries", "to", "order", "why")
    list_display_links = ("name",)
    list_filter = (ByOutboxState,)
    search_fields = ("message_id__exact",)
    search_help_text = gettext_lazy("The id of a message.")
    ordering = ("pk",)
    sortable_by = ()
    paginator = CappedPaginator
    actions = ("retry",)
    change_list_template = "admin/rmq_retry/outboxmessage/list.html"
    fields = (
        *("message_id", "exchange", "routing_key", "size", "order_key", "created_at", "due_at"),
        *("attempts", "error", "failed_at"),
    )

    name = admin.display(description=gettext_lazy("Message"))(lambda _self, row: one_short_line(str(row)))
    written = admin.display(description=gettext_lazy("Written"))(lambda _self, row: time_exact(row.created_at))
    of_tries = column(OutboxMessage, "attempts")
    order = admin.display(description=gettext_lazy("Ordering key"))(lambda _self, row: one_short_line(row.order_key))
    why = admin.display(description=gettext_lazy("Last error"))(lambda _self, row: one_short_line(row.error))

    @admin.display(description=gettext_lazy("To"))
    def to(self, row: OutboxMessage) -> str:
        return one_short_line(f"{row.exchange} {row.routing_key}".strip())

    @admin.display(description=gettext_lazy("State"))
    def state(self, row: OutboxMessage) -> str:
        return pgettext("outbox", "failed") if row.failed_at else _("waiting to be sent")

    def get_queryset(self, request: HttpRequest) -> OutboxRows:
        return super().get_queryset(request).defer("body", "properties")

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponseBase:
        return super().list_page(request, title=_("Outbox: messages not sent yet"), **more)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return not refusal(request, "retry")

    @admin.action(description=gettext_lazy("Retry failed messages"), permissions=["retry"])
    def retry(self, request: HttpRequest, rows: OutboxRows) -> None:
        """Send failed rows again; rows that the relay will send anyway are left out."""
        chosen = list(rows.values_list("pk", flat=True))
        count = retry_outbox(Actor.of_request(request), chosen, using=rows.db)
        text = ngettext("%d message will be sent again.", "%d messages will be sent again.", count)
        self.message_user(request, text % count, messages.SUCCESS if count == len(chosen) else messages.WARNING)
