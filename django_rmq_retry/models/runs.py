"""One requeue of many messages, kept as a record: what was chosen, how fast it goes, what became of each."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_rmq_retry.models.parked import ParkedMessage


class RunState(models.TextChoices):
    """Where a run stands."""

    PLANNED = "planned", _("Starts when the broker is back")
    RUNNING = "running", _("Sending")
    PAUSED = "paused", _("Paused")
    WAITING = "waiting", _("Waiting for outcomes")
    FINISHED = "finished", _("Finished")
    STOPPED = "stopped", _("Stopped")


ACTIVE = (RunState.PLANNED, RunState.RUNNING, RunState.PAUSED, RunState.WAITING)


class RequeueRun(models.Model):
    """A frozen selection on its way back to its queues."""

    state = models.CharField(_("state"), max_length=10, choices=RunState.choices, default=RunState.RUNNING)
    why = models.CharField(_("why"), max_length=255, blank=True)
    """Why it is paused or stopped: a person's word or a guard's."""
    created_at = models.DateTimeField(_("created"))
    by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    by = models.CharField(_("by"), max_length=150)
    source = models.CharField(_("source"), max_length=10, default="code")
    reason = models.CharField(_("reason"), max_length=255, blank=True)
    selection = models.JSONField(_("selection"), default=dict)
    description = models.CharField(_("what was chosen"), max_length=255, blank=True)
    target = models.CharField(_("target"), max_length=255, blank=True)
    """Another queue than the one each message failed in; empty where there is none."""
    rate = models.FloatField(_("messages per second"), default=20)
    max_depth = models.PositiveIntegerField(_("waits while the queue holds more than"), null=True, blank=True)
    stop_at = models.FloatField(_("stops when so many percent fail again"), null=True, blank=True)
    one_by_one = models.BooleanField(_("one at a time for each business key"), default=False)
    canary = models.BooleanField(_("tries one first"), default=False)

    total = models.PositiveIntegerField(_("messages"), default=0)
    sent = models.PositiveIntegerField(_("sent"), default=0)
    processed = models.PositiveIntegerField(_("processed"), default=0)
    failed = models.PositiveIntegerField(_("failed again"), default=0)
    skipped = models.PositiveIntegerField(_("left out"), default=0)
    unconfirmed = models.PositiveIntegerField(_("not confirmed"), default=0)

    spared_processed = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    spared_failed = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """Outcomes that the guard stopped it for: whoever resumed it has seen them, those that follow count."""
    paced_at = models.DateTimeField(null=True, blank=True, editable=False)
    paced_sent = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """When it last began to send without a break, and how many were sent by then: its real rate is told by them."""

    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    driver = models.CharField(_("driven by"), max_length=255, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True, editable=False)
    beat_at = models.DateTimeField(_("last reported"), null=True, blank=True)

    class Meta:
        verbose_name = _("requeue run")
        verbose_name_plural = _("requeue runs")
        default_permissions = ("view",)
        permissions = (("control_requeuerun", _("Can pause, slow and stop requeue runs")),)
        indexes = (models.Index(fields=["state", "-id"], name="rmq_run_state"),)

    def __str__(self) -> str:
        return str(_("Run %(number)s") % {"number": self.pk})

    @property
    def active(self) -> bool:
        return self.state in ACTIVE


class ItemState(models.TextChoices):
    """What has become of one message of a run."""

    PENDING = "pending", _("Waiting to be sent")
    CLAIMED = "claimed", _("Being sent")
    SENT = "sent", _("Waiting for outcome")
    PROCESSED = "processed", _("Processed")
    FAILED = "failed", _("Failed again")
    SKIPPED = "skipped", _("Left out")
    UNCONFIRMED = "unconfirmed", _("Not confirmed")


class RequeueItem(models.Model):
    """One message of a run, as it was when the run was started."""

    run = models.ForeignKey(RequeueRun, on_delete=models.CASCADE, related_name="items", db_index=False)
    message = models.ForeignKey(ParkedMessage, on_delete=models.CASCADE, related_name="items", db_index=False)
    place = models.PositiveIntegerField()
    revision = models.PositiveIntegerField()
    """Of the record when it was chosen: one that has changed since is left out."""
    state = models.CharField(max_length=12, choices=ItemState.choices, default=ItemState.PENDING)
    cycle = models.PositiveIntegerField(default=0)
    """The cycle that this run has begun; outcomes are counted by it."""
    why = models.CharField(max_length=255, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["run", "message"], name="rmq_item_once"),)
        indexes = (
            models.Index(fields=["run", "state", "place"], name="rmq_item_next"),
            models.Index(fields=["message", "cycle"], name="rmq_item_outcome"),
        )

    def __str__(self) -> str:
        return f"{self.run_id}/{self.place} {self.state}"
