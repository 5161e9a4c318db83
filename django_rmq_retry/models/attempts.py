"""What was tried, and how it failed: one row for each, never changed."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Attempt(models.Model):
    """One run of a handler that failed, or that succeeded after failures.

    It belongs to a message by its identity, not by a key: attempts are written long before anything is parked.
    """

    identity = models.CharField(_("identity"), max_length=160)
    queue = models.CharField(_("queue"), max_length=255)
    handler = models.CharField(_("handler"), max_length=255, blank=True)
    message_id = models.CharField(_("message id"), max_length=255, blank=True)
    cycle = models.PositiveIntegerField(_("cycle"), default=1)
    number = models.PositiveIntegerField(_("attempt"))
    started_at = models.DateTimeField(_("started"))
    seconds = models.FloatField(_("seconds"))
    verdict = models.CharField(_("verdict"), max_length=10)
    wait = models.FloatField(_("waits"), default=0)
    next_at = models.DateTimeField(_("next attempt"), null=True, blank=True)
    reason = models.CharField(_("reason"), max_length=64, blank=True)
    error = models.CharField(_("error"), max_length=255, blank=True)
    error_text = models.TextField(_("what the error says"), blank=True)
    chain = models.JSONField(_("causes"), default=list)
    """Of each exception, the newest first, its class, its text and its frames; the project's own are told apart."""
    logs = models.TextField(_("log lines"), blank=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=64, blank=True)
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process"))
    thread = models.CharField(_("thread"), max_length=100)
    deploy = models.CharField(_("version of the project"), max_length=100, blank=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ()
        indexes = (
            models.Index(fields=["identity", "started_at", "id"], name="rmq_attempt_identity"),
            models.Index(fields=["next_at"], name="rmq_attempt_next"),
            models.Index(fields=["started_at"], name="rmq_attempt_started"),
            models.Index(fields=["fingerprint", "-started_at"], name="rmq_attempt_group"),
        )

    def __str__(self) -> str:
        return f"#{self.number} {self.verdict}"
