"""Blocked ordering keys and the messages that wait behind them."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class BlockedKey(models.Model):
    """One key of one handler: what failed there goes first, everything after it waits."""

    handler = models.CharField(_("handler"), max_length=255)
    key = models.CharField(_("key"), max_length=255)
    """As people read it: shortened, and without what no database takes."""
    digest = models.CharField(max_length=64, editable=False)
    """Of handler and key, which some databases would take for another that differs in case."""
    queue = models.CharField(_("queue"), max_length=255)
    blocker = models.CharField(_("goes first"), max_length=255)
    """The message that goes first, as people read its name."""
    name = models.CharField(max_length=64, editable=False)
    """The digest of its name and its body."""
    identity = models.CharField(max_length=160, editable=False)
    """Of its record, if it is parked."""
    parked = models.BooleanField(_("parked"), default=False)
    """Whether a person has to decide; else it waits for its next attempt."""
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
    """One message that waits for those before it; in the order of arrival."""

    block = models.ForeignKey(BlockedKey, on_delete=models.PROTECT, related_name="messages", db_index=False)
    shown = models.CharField(_("message"), max_length=255)
    name = models.CharField(max_length=64, editable=False)
    identity = models.CharField(max_length=160, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    """Of its name and its body: the same where it is delivered twice."""
    exchange = models.CharField(_("exchange"), max_length=255, blank=True)
    routing_key = models.CharField(_("routing key"), max_length=255, blank=True)
    body = models.BinaryField(_("body"))
    properties = models.BinaryField(_("properties"))
    """Those of the copy that goes back to its queue: the ones it came with, and where it came in."""
    waiting_since = models.DateTimeField(_("waiting since"))

    class Meta:
        verbose_name = _("blocked message")
        verbose_name_plural = _("blocked messages")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["block", "digest"], name="rmq_waiting_once"),)
        indexes = (models.Index(fields=["block", "id"], name="rmq_waiting_next"),)

    def __str__(self) -> str:
        return self.shown
