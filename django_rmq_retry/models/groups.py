"""Parked messages with one cause."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class ErrorGroup(models.Model):
    """One cause, found by its fingerprint; its counters follow its messages and can be counted again at any time."""

    fingerprint = models.CharField(_("fingerprint"), max_length=64, unique=True)
    rule = models.PositiveSmallIntegerField(_("grouping rule"), default=1)
    title = models.CharField(_("title"), max_length=255)
    culprit = models.CharField(_("place in the code"), max_length=255, blank=True)
    reason = models.CharField(_("reason"), max_length=64)
    first_seen = models.DateTimeField(_("first seen"))
    last_seen = models.DateTimeField(_("last seen"))
    # Counters of messages by state; "arrived" counts every time that one was parked.
    parked = models.PositiveIntegerField(_("parked"), default=0)
    requeued = models.PositiveIntegerField(_("waiting for outcome"), default=0)
    processed = models.PositiveIntegerField(_("processed"), default=0)
    discarded = models.PositiveIntegerField(_("discarded"), default=0)
    arrived = models.PositiveIntegerField(_("arrived"), default=0)
    failed_again = models.PositiveIntegerField(_("failed again"), default=0)
    regressed_at = models.DateTimeField(_("came back"), null=True, blank=True)
    muted = models.BooleanField(_("muted"), default=False)
    plain = models.CharField(_("in plain words"), max_length=255, blank=True)
    note = models.TextField(_("note"), blank=True)
    owner = models.CharField(_("owner"), max_length=150, blank=True)
    ticket = models.CharField(_("ticket"), max_length=150, blank=True)
    noted_at = models.DateTimeField(_("noted"), null=True, blank=True)
    noted_by = models.CharField(_("noted by"), max_length=150, blank=True)

    class Meta:
        verbose_name = _("error group")
        verbose_name_plural = _("error groups")
        default_permissions = ("view",)
        permissions = (("note_errorgroup", _("Can note on and mute error groups")),)
        indexes = (
            models.Index(fields=["-last_seen", "-id"], name="rmq_group_last"),
            models.Index(fields=["-parked", "-last_seen"], name="rmq_group_parked"),
        )

    def __str__(self) -> str:
        return f"{self.title} · {self.culprit}" if self.culprit else self.title
