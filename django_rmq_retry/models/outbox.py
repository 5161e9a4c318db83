"""The outbox: messages written in a transaction and published after its commit."""

from datetime import datetime
from typing import NamedTuple

from django.db import models
from django.db.models import Count, Min, Q
from django.utils.translation import gettext_lazy as _


class OutboxMessage(models.Model):
    """One message on its way to the broker. Rows of one transaction leave in the order of their keys."""

    message_id = models.CharField(_("message id"), max_length=255, blank=True)
    exchange = models.CharField(_("exchange"), max_length=255, blank=True)
    routing_key = models.CharField(_("routing key"), max_length=255, blank=True)
    mandatory = models.BooleanField(_("must reach a queue"), default=True)
    body = models.BinaryField(_("body"))
    size = models.PositiveIntegerField(_("size"), default=0)
    properties = models.BinaryField(_("properties"))
    """As the broker reads them."""
    order_key = models.CharField(_("order"), max_length=255, blank=True)
    """Rows with the same one leave one after the other."""
    created_at = models.DateTimeField(_("written"))
    due_at = models.DateTimeField(_("sent after"))
    """Until then somebody is believed to be sending it, or it waits after a failure."""
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    error = models.TextField(_("why it was not sent"), blank=True)
    failed_at = models.DateTimeField(_("given up"), null=True, blank=True)
    """What the broker can never take is kept for a person."""

    class Meta:
        verbose_name = _("message to be published")
        verbose_name_plural = _("messages to be published")
        default_permissions = ("view",)
        permissions = (("retry_outboxmessage", _("Can retry failed messages of the outbox")),)
        indexes = (
            models.Index(fields=["failed_at", "due_at", "id"], name="rmq_outbox_due"),
            models.Index(fields=["order_key", "id"], name="rmq_outbox_order"),
        )

    def __str__(self) -> str:
        return self.message_id or f"#{self.pk}"


class Pending(NamedTuple):
    """Rows that wait to be sent, since when the oldest does, and rows that wait for a person."""

    waiting: int
    oldest: datetime | None
    stuck: int


def pending(using: str) -> Pending:
    """What lies in the outbox of this database."""
    open_ = Q(failed_at__isnull=True)
    rows = OutboxMessage.objects.using(using)
    found = rows.aggregate(
        waiting=Count("pk", filter=open_),
        oldest=Min("created_at", filter=open_),
        stuck=Count("pk", filter=~open_),
    )
    return Pending(**found)
