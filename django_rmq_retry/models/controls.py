"""Pauses, breakers and rates of queues and handlers."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class QueueControl(models.Model):
    """One queue whose messages a person, a breaker or both keep from being handled; or once did."""

    queue = models.CharField(_("queue"), max_length=255)
    paused = models.BooleanField(_("paused"), default=False)
    by = models.CharField(_("by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=255, blank=True)
    since = models.DateTimeField(_("since"), null=True, blank=True)
    until = models.DateTimeField(_("goes on by itself"), null=True, blank=True)
    """When a pause is over, whoever looks."""
    opened = models.BooleanField(_("opened by its breaker"), default=False)
    handler = models.CharField(_("handler"), max_length=255, blank=True)
    kind = models.CharField(_("error"), max_length=255, blank=True)
    cause = models.CharField(_("cause"), max_length=600, blank=True)
    opened_at = models.DateTimeField(_("opened at"), null=True, blank=True)
    failed = models.PositiveIntegerField(_("failed probes"), default=0)
    probe_at = models.DateTimeField(_("next probe"), null=True, blank=True)
    prober = models.CharField(_("probed by"), max_length=150, blank=True)
    probe_until = models.DateTimeField(_("probed until"), null=True, blank=True)
    """A lease: whoever was killed as it tried a message is followed by somebody else."""

    halted_at = models.DateTimeField(null=True, blank=True)
    """Since when an ordered line stands still, because its first message fails."""
    halted_seen_at = models.DateTimeField(null=True, blank=True)
    """When its consumer said so last: one that was killed says nothing more."""
    halted_by = models.CharField(max_length=150, blank=True, db_default="", default="")
    halted_attempt = models.PositiveIntegerField(null=True, blank=True)
    halted_error = models.CharField(max_length=600, blank=True, db_default="", default="")
    halted_message = models.CharField(max_length=255, blank=True, db_default="", default="")

    class Meta:
        verbose_name = _("queue control")
        verbose_name_plural = _("queue controls")
        default_permissions = ("view",)
        permissions = (("pause_queue", _("Can pause and resume queues")),)
        constraints = (models.UniqueConstraint(fields=["queue"], name="rmq_control_once"),)

    def __str__(self) -> str:
        return self.queue


class HandlerRate(models.Model):
    """The pace of one handler, over all processes: who runs next takes the next moment."""

    handler = models.CharField(_("handler"), max_length=255)
    next_at = models.DateTimeField(_("next run"))

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["handler"], name="rmq_rate_once"),)

    def __str__(self) -> str:
        return self.handler
