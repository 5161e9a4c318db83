"""Blocked ordering keys and the messages that wait behind them."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class BlockedKey(models.Model):
    """One blocked ordering key of one handler: the failed message goes first and every later one waits behind it."""

    handler = models.CharField(_("handler"), max_length=255)
    key = models.CharField(_("key"), max_length=255)
    """The key for display: shortened, without characters that a database cannot store."""
    digest = models.CharField(max_length=64, editable=False)
    """SHA-256 of handler and key, because some databases treat texts that differ only in case as equal."""
    queue = models.CharField(_("queue"), max_length=255)
    blocker = models.CharField(_("goes first"), max_length=255)
    """The display name of the message that goes first."""
    name = models.CharField(max_length=64, editable=False)
    """The digest of that message's name and body."""
    identity = models.CharField(max_length=160, editable=False)
    """The identity of its parked message, if it is parked."""
    parked = models.BooleanField(_("parked"), default=False)
    """True if an operator has to decide; false while the message waits for its next attempt."""
    since = models.DateTimeField(_("since"))
    waiting = models.PositiveIntegerField(_("waiting behind it"), default=0)

    class Meta:
        verbose_name = _("blocked key")
        verbose_name_plural = _("blocked keys")
        default_permissions = ("view",)
        permissions = (("unblock_blockedkey", _("Can unblock ordering keys")),)
        constraints = (models.UniqueConstraint(fields=["digest"], name="rmq_blocked_once"),)
        indexes = (
            models.Index(fields=["identity"], name="rmq_blocked_by"),
            models.Index(fields=["queue", "since"], name="rmq_blocked_queue"),
        )

    def __str__(self) -> str:
        return f"{self.handler} {self.key}"


class BlockedMessage(models.Model):
    """One message that waits behind a blocked key; rows are in the order of arrival."""

    block = models.ForeignKey(BlockedKey, on_delete=models.PROTECT, related_name="messages", db_index=False)
    shown = models.CharField(_("message"), max_length=255)
    name = models.CharField(max_length=64, editable=False)
    identity = models.CharField(max_length=160, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    """The digest of the message's name and body: the same for two deliveries of one message."""
    exchange = models.CharField(_("exchange"), max_length=255, blank=True)
    routing_key = models.CharField(_("routing key"), max_length=255, blank=True)
    body = models.BinaryField(_("body"))
    properties = models.BinaryField(_("properties"))
    """The properties of the copy that returns to the queue: the original ones, with the exchange and key of arrival."""
    waiting_since = models.DateTimeField(_("waiting since"))

    class Meta:
        verbose_name = _("blocked message")
        verbose_name_plural = _("blocked messages")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["block", "digest"], name="rmq_waiting_once"),)
        indexes = (models.Index(fields=["block", "id"], name="rmq_waiting_next"),)

    def __str__(self) -> str:
        return self.shown
