"""The model for acts that wait for a second person."""

from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_rmq_retry.models.parked import ParkedMessage, resolution_text


class GatedAct(models.TextChoices):
    """What an operator asks for, as one of the acts of the setting FOUR_EYES."""

    EDIT = "edit", _("Edit a message")
    EDIT_MANY = "edit_many", _("Edit many messages")
    DISCARD = "discard", pgettext_lazy("action", "Discard")
    DISCARD_OUTBOX = "discard_outbox", _("Discard messages of the outbox")
    REQUEUE = "requeue", pgettext_lazy("action", "Requeue")
    CLOSE_BREAKER = "close_breaker", _("Close a breaker")

    @property
    def of_messages(self) -> bool:
        """False for an act on a queue."""
        return self is not GatedAct.CLOSE_BREAKER


class RequestState(models.TextChoices):
    WAITING = "waiting", _("Waits for a second person")
    APPROVED = "approved", _("Approved, not finished yet")
    DONE = "done", _("Approved and carried out")
    REJECTED = "rejected", _("Rejected")
    OVER = "over", _("Over: the breaker closed by itself")


class ApprovalRows(models.QuerySet["ApprovalRequest"]):
    """A queryset of requests."""

    def open(self, now: datetime) -> "ApprovalRows":
        """Return those that can still be approved, the oldest first."""
        return self.filter(state=RequestState.WAITING, expires_at__gt=now).order_by("pk")

    def breaker_closed(self, queue: str, now: datetime) -> int:
        """End those to close the breaker of a queue, which has closed by itself; return their number."""
        asked = self.open(now).filter(act=GatedAct.CLOSE_BREAKER, subject=queue)
        return asked.order_by().update(state=RequestState.OVER, decided_at=now)


class ApprovalRequest(models.Model):
    """An act that one operator asked for and that a second one approves or rejects.

    The row says exactly what is done if it is approved; the audit log has its seal.
    """

    act = models.CharField(max_length=14, choices=GatedAct.choices)
    state = models.CharField(max_length=8, choices=RequestState.choices, default=RequestState.WAITING)
    count = models.PositiveIntegerField(default=1)
    subject = models.CharField(max_length=255, blank=True)
    reason = models.CharField(max_length=255, blank=True)
    wish = models.TextField(editable=False)
    """The selection and the terms, as JSON: the text, and not its values, is sealed. Of an edit it keeps the change."""
    body = models.BinaryField(default=b"", editable=False)
    properties = models.BinaryField(default=b"", editable=False)
    """The edited message, until the request is decided."""
    seal = models.CharField(max_length=64, editable=False)
    asked = models.PositiveBigIntegerField(default=0, editable=False)
    """The number of the action in the audit log that holds the same seal."""
    acted = models.PositiveBigIntegerField(default=0, db_default=0, editable=False)
    """The number of the action in the audit log that carried it out, of a discard in parts the first; 0 if none did."""

    by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    by_key = models.CharField(max_length=64, blank=True, editable=False)
    """The account that asked, also after it was deleted; empty if a shell named none."""
    by = models.CharField(max_length=150)
    behalf = models.CharField(max_length=255, blank=True)
    ip = models.GenericIPAddressField(null=True, blank=True)
    source = models.CharField(max_length=10)
    asked_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    decided_by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    decided_by = models.CharField(max_length=150, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    remark = models.CharField(max_length=255, blank=True)
    """The reason of a rejection, or the remark of an approval."""
    place = models.PositiveBigIntegerField(default=0, editable=False)
    """The last message that was looked at; a discard goes on behind it after its process was killed."""
    changed = models.PositiveIntegerField(default=0)
    run = models.PositiveBigIntegerField(null=True, blank=True)

    objects = ApprovalRows.as_manager()

    class Meta:
        verbose_name = _("approval request")
        verbose_name_plural = _("approval requests")
        default_permissions = ("view",)
        permissions = (("approve_approvalrequest", _("Can approve and reject the acts of other operators")),)
        indexes = (models.Index(fields=["state", "expires_at"], name="rmq_approval_state"),)

    def __str__(self) -> str:
        return str(_("Request %(number)s") % {"number": self.pk})

    @property
    def messages(self) -> int | None:
        """The number of messages that it is about; None if it is about a queue."""
        return self.count if GatedAct(self.act).of_messages else None

    @property
    def reason_in_words(self) -> str:
        """Return the reason in the reader's language; only the category of a discard has one."""
        return resolution_text(self.reason) if self.act == GatedAct.DISCARD else self.reason

    def waits(self, now: datetime) -> bool:
        """Return True if it can still be approved: it expires without a process that ends it."""
        return self.state == RequestState.WAITING and self.expires_at > now

    @property
    def withdrawn(self) -> bool:
        """True if whoever asked for it ended it."""
        return self.state == RequestState.REJECTED and self.decided_by == self.by

    @property
    def ended_at(self) -> datetime:
        """Return when it was decided, or else when it expires."""
        return self.decided_at or self.expires_at

    def state_at(self, now: datetime) -> str:
        """Return its state in the reader's language."""
        if self.state == RequestState.WAITING and not self.waits(now):
            return str(_("Expired"))
        if self.withdrawn:
            return str(_("Withdrawn"))
        return str(self.get_state_display())


class MissedDiscard(models.Model):
    """A message that an approved discard left out: whoever requeues it may do what was done in another way."""

    request = models.ForeignKey(ApprovalRequest, on_delete=models.CASCADE, related_name="missed", db_index=False)
    message = models.ForeignKey(ParkedMessage, on_delete=models.CASCADE, related_name="missed_discards")
    refused = models.BooleanField(default=False)
    """True if a rule of the project forbade it; otherwise the message had changed."""
    settled = models.BooleanField(default=False)
    """True if the message was discarded all the same, before or after."""

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["request", "message"], name="rmq_missed_once"),)

    def __str__(self) -> str:
        return f"{self.request_id}/{self.message_id}"


class RequestMember(models.Model):
    """A message of a request by a filter, with its revision when it was asked for: no other takes its place."""

    request = models.ForeignKey(ApprovalRequest, on_delete=models.CASCADE, related_name="members", db_index=False)
    place = models.PositiveIntegerField()
    """Its place by the time of parking, in which order a requeue sends."""
    message = models.PositiveBigIntegerField()
    """The id of a message, without a foreign key: a member whose message was purged is of no effect."""
    revision = models.PositiveIntegerField()

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["request", "message"], name="rmq_member_once"),
            models.UniqueConstraint(fields=["request", "place"], name="rmq_member_place"),
        )

    def __str__(self) -> str:
        return f"{self.request_id}/{self.place}"
