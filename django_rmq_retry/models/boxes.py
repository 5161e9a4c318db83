"""The outbox, published after the commit that wrote it, and the inbox of handlers that run once for each message."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Count, Max, Min, Q, Subquery
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRows:
    """The messages that are written but not published yet."""

    waiting: int = 0
    failed: int = 0
    """Messages that the broker refused time after time: they need an operator."""
    failed_since: datetime | None = None
    """The time at which the first of them failed."""
    failed_answer: str = ""
    """What the broker answered to the first of them."""
    failed_first: str = ""
    """The id of the first of them, or its number."""
    failed_exchange: str = ""
    failed_key: str = ""
    """The exchange and the routing key of the first of them; without an exchange the key is its queue."""
    untaken: int = 0
    """Those of them that no queue takes."""
    behind: int = 0
    """Those that wait for a failed one with their ordering key: no relay sends them before."""
    oldest: datetime | None = None
    """The time of the oldest that waits for a relay."""
    refused: int = 0
    """Those that wait and that the broker did not take when a relay sent them."""
    answer: str = ""
    """What the broker answered to the oldest of them."""
    answer_exchange: str = ""
    answer_key: str = ""
    """Where that one is sent; without an exchange the key is its queue."""


ANSWERED = {"answer": "error", "answer_exchange": "exchange", "answer_key": "routing_key"}
NO_ROUTE = "312 "
"""The beginning of the broker's answer to a message that no queue takes."""


class OutboxRows(models.QuerySet["OutboxMessage"]):
    """A queryset of outbox messages."""

    def pending(self) -> PendingRows:
        """Count the rows that wait to be sent and the rows that wait for an operator.

        One query if there are none, which open pages ask every few seconds, and one more for each of the two.
        """
        waiting, failed = self.filter(failed_at__isnull=True), self.filter(failed_at__isnull=False)
        untaken = Q(failed_at__isnull=False, error__startswith=NO_ROUTE)
        figures: dict[str, Any] = self.aggregate(
            every=Count("pk"),
            failed=Count("failed_at"),
            failed_since=Min("failed_at"),
            untaken=Count("pk", filter=untaken),
        )
        figures["waiting"] = figures.pop("every") - figures["failed"]
        if figures["failed"]:
            figures |= _told_of_first(failed.order_by("failed_at", "pk"))
        if figures["waiting"]:
            keys = failed.exclude(order_key="").values("order_key")
            behind = Q(order_key__in=keys) if figures["failed"] else Q(pk__in=[])
            answered = waiting.exclude(error="").order_by("pk")
            figures |= waiting.aggregate(
                behind=Count("pk", filter=behind),
                oldest=Min("created_at", filter=~behind),
                refused=Count("pk", filter=~Q(error="")),
                **{name: Max(Subquery(answered.values(field)[:1])) for name, field in ANSWERED.items()},
            )
            figures |= {name: figures[name] or "" for name in ANSWERED}
        return PendingRows(**figures)


def _told_of_first(rows: OutboxRows) -> dict[str, str]:
    """Return what is told of the first of these failed rows; nothing if they were sent meanwhile."""
    first = rows.only("message_id", "exchange", "routing_key", "error").first()
    if first is None:
        return {}
    where = {"failed_exchange": first.exchange, "failed_key": first.routing_key}
    return {"failed_first": str(first), "failed_answer": first.error, **where}


class OutboxMessage(models.Model):
    """One message waiting to be published. Rows of one transaction are sent in the order of their primary keys."""

    message_id = models.CharField(_("message id"), max_length=255, blank=True)
    exchange = models.CharField(_("exchange"), max_length=255, blank=True)
    routing_key = models.CharField(_("routing key"), max_length=255, blank=True)
    mandatory = models.BooleanField(_("mandatory"), default=True)
    body = models.BinaryField(_("body"))
    size = models.PositiveIntegerField(_("size"), default=0)
    properties = models.BinaryField(_("properties"))
    """The AMQP properties, encoded for the broker."""
    order_key = models.CharField(_("ordering key"), max_length=255, blank=True)
    """The ordering key: rows with the same one are sent one after another."""
    created_at = models.DateTimeField(_("written"))
    due_at = models.DateTimeField(_("due at"))
    """No relay takes the row before this time: another relay is sending it, or it waits after a failure."""
    attempts = models.PositiveIntegerField(_("attempts"), default=0, db_default=0)
    alone = models.BooleanField(default=False, db_default=False)
    """True if the channel or the connection was lost while the row was in flight: it is sent with no other row."""
    error = models.TextField(_("last error"), blank=True, default="", db_default="")
    failed_at = models.DateTimeField(pgettext_lazy("outbox", "failed"), null=True, blank=True)
    """Set if the broker has refused the message too often; the row is kept for an operator."""

    objects = OutboxRows.as_manager()

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        default_permissions = ("view",)
        permissions = (
            ("retry_outboxmessage", _("Can retry failed messages of the outbox")),
            ("discard_outboxmessage", _("Can discard failed messages of the outbox")),
        )
        indexes = (
            models.Index(fields=["failed_at", "alone", "due_at", "id"], name="rmq_outbox_due"),
            models.Index(fields=["order_key", "id"], name="rmq_outbox_order"),
        )

    def __str__(self) -> str:
        return self.message_id or f"#{self.pk}"


class InboxEntry(models.Model):
    """One message that one handler has handled."""

    key = models.UUIDField(primary_key=True)
    """A digest of the handler and the message's name: the index takes 16 bytes however long the names are."""
    handler = models.CharField(_("handler"), max_length=255)
    name = models.CharField(_("message"), max_length=255)
    digest = models.UUIDField()
    """A digest of the body: the same name with another body is a different message, which an operator has to check."""
    handled_at = models.DateTimeField(_("handled"))

    class Meta:
        verbose_name = _("handled message")
        verbose_name_plural = _("handled messages")
        default_permissions = ()
        indexes = (models.Index(fields=["handled_at"], name="rmq_inbox_handled"),)

    def __str__(self) -> str:
        return f"{self.handler} {self.name}"
