"""Models for the pauses and breakers of queues, the rates of handlers, and the topology declared on a broker."""

import hashlib

from django.db import models
from django.utils.translation import gettext_lazy as _


class QueueControl(models.Model):
    """The pause, breaker and halt of one queue; the row stays after all of them have ended."""

    queue = models.CharField(_("queue"), max_length=255)
    paused = models.BooleanField(_("paused"), default=False)
    by = models.CharField(_("by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=255, blank=True)
    since = models.DateTimeField(_("since"), null=True, blank=True)
    until = models.DateTimeField(_("goes on by itself"), null=True, blank=True)
    """The end of the pause; it needs no process to end it."""
    opened = models.BooleanField(_("opened by its breaker"), default=False)
    handler = models.CharField(_("handler"), max_length=255, blank=True)
    kind = models.CharField(_("error"), max_length=255, blank=True)
    cause = models.CharField(_("cause"), max_length=600, blank=True)
    opened_at = models.DateTimeField(_("opened at"), null=True, blank=True)
    failed = models.PositiveIntegerField(_("failed probes"), default=0)
    probe_at = models.DateTimeField(_("next probe"), null=True, blank=True)
    prober = models.CharField(_("probed by"), max_length=150, blank=True)
    probe_until = models.DateTimeField(_("probed until"), null=True, blank=True)
    """A lease: if the probing process is killed, another process may probe after this time."""

    halted_at = models.DateTimeField(null=True, blank=True)
    """The time since when an ordered queue has been halted because its first message fails."""
    halted_seen_at = models.DateTimeField(null=True, blank=True)
    """The time of the consumer's last report of the halt; a killed consumer stops reporting."""
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
    """The rate of one handler across all processes: each attempt takes the next free start time."""

    handler = models.CharField(_("handler"), max_length=255)
    next_at = models.DateTimeField(_("next run"))

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["handler"], name="rmq_rate_once"),)

    def __str__(self) -> str:
        return self.handler


class Declared(models.Model):
    """A queue or exchange that the project declared on a virtual host; the row stays after its handler is removed."""

    digest = models.CharField(max_length=64, editable=False)
    """A digest of all names of the row, because some databases treat names that differ only in case as equal."""
    project = models.CharField(max_length=255)
    broker = models.CharField(max_length=255)
    """The name of the broker's cluster, or its hosts; never a password."""
    vhost = models.CharField(max_length=255)
    kind = models.CharField(max_length=8)
    """``queue`` or ``exchange``."""
    name = models.CharField(max_length=255)
    role = models.CharField(max_length=16, blank=True)
    home = models.CharField(max_length=255, blank=True)
    """The work queue to which a waiting, quarantine or parked queue belongs, if it belongs to only one."""
    arguments = models.JSONField(default=dict)
    bindings = models.JSONField(default=list)
    """The bindings of a queue: source, routing key and arguments of each."""
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    version = models.CharField(max_length=32, blank=True)
    """The version of this package that declared it last."""

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["digest"], name="rmq_declared_once"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @staticmethod
    def digest_of(*names: str) -> str:
        """Return the digest of project, broker, virtual host, kind and name."""
        return hashlib.sha256("\0".join(names).encode()).hexdigest()
