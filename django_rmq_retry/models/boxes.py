"""The outbox, published after the commit that wrote it, and the inbox of handlers that run once for each message."""

from dataclasses import dataclass
from datetime import datetime

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
    oldest: datetime | None = None
    """The time of the oldest that waits."""
    answer: str = ""
    """What the broker answered to the oldest of those that it did not take; empty if it was asked for none."""


NO_ROUTE = "312 "
"""The beginning of the broker's answer to a message that no queue takes."""


class OutboxRows(models.QuerySet["OutboxMessage"]):
    """A queryset of outbox messages."""

    def pending(self) -> PendingRows:
        """Count the rows that wait to be sent and the rows that wait for an operator."""
        waiting = Q(failed_at__isnull=True)
        first = self.exclude(waiting).order_by("failed_at", "pk")
        figures = self.aggregate(
            waiting=Count("pk", filter=waiting),
            oldest=Min("created_at", filter=waiting),
            failed=Count("pk", filter=~waiting),
            failed_since=Min("failed_at"),
            failed_answer=Max(Subquery(first.values("error")[:1])),
            failed_first=Max(Subquery(first.values("message_id")[:1])),
            failed_number=Max(Subquery(first.values("pk")[:1])),
            failed_exchange=Max(Subquery(first.values("exchange")[:1])),
            failed_key=Max(Subquery(first.values("routing_key")[:1])),
            untaken=Count("pk", filter=~waiting & Q(error__startswith=NO_ROUTE)),
            answer=Max(Subquery(self.filter(waiting).exclude(error="").order_by("pk").values("error")[:1])),
        )
        number = figures.pop("failed_number")
        names = ("answer", "failed_answer", "failed_first", "failed_exchange", "failed_key")
        texts = {name: figures[name] or "" for name in names}
        texts["failed_first"] = texts["failed_first"] or (f"#{number}" if number else "")
        return PendingRows(**{**figures, **texts})


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
