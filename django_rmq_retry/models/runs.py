"""Models for a bulk requeue: the requeue run with its selection and rate, and the state of each message."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_rmq_retry.models.audit import both_names
from django_rmq_retry.models.parked import ParkedMessage

MIN_OUTCOMES = 5
"""Smallest number of outcomes for which the share of failures is meaningful."""
MOST_OUTAGES = 5
"""The latest outages of the broker that a run keeps."""
SILENT_AFTER = timedelta(seconds=30)
"""The time without a driver's heartbeat after which a run that should send stands still."""


class RunState(models.TextChoices):
    PLANNED = "planned", _("Starts when the broker is back")
    RUNNING = "running", _("Sending")
    PAUSED = "paused", _("Paused")
    WAITING = "waiting", _("Waiting for outcomes")
    FINISHED = "finished", _("Finished")
    STOPPED = "stopped", _("Stopped")


SENDING = (RunState.PLANNED, RunState.RUNNING, RunState.PAUSED)
"""States of runs that have messages left to send."""
ACTIVE = (*SENDING, RunState.WAITING)


class RunWait(models.TextChoices):
    """The reason that a requeue run sends nothing now, as a code; its text is made when it is shown."""

    LISTING = "listing", _("The requeue run lists its messages and sends them afterwards.")
    BROKER_AWAY = "broker_away", _("No connection to the broker. The requeue run resumes automatically.")
    QUEUE_DEEP = (
        "queue_deep",
        _("The queue holds more messages than the limit of the requeue run, which resumes automatically."),
    )
    QUEUE_FULL = "queue_full", _("The queue rejected it because the queue is full.")
    DEPTH_UNKNOWN = (
        "depth_unknown",
        _("The broker does not report how many messages the queue holds. The requeue run resumes when it does."),
    )
    KEYS_WAIT = "keys_wait", _("Waits for the outcome of earlier messages with the same business key.")
    CANARY_WAITS = "canary_waits", _("One message was sent. The others follow when it has been processed.")
    CANARY_FAILED = (
        "canary_failed",
        _("The test message failed again. Check it, then send another one or stop the requeue run."),
    )
    CANARY_SILENT = (
        "canary_silent",
        _("The test message has no outcome after a minute. Check it, then send another one or stop the requeue run."),
    )
    NOT_CONFIRMED = "not_confirmed", _("The broker did not confirm it in time. It may have been delivered.")
    GUARD = "guard", _("More messages failed again than the requeue run allows. Check them, then resume or stop it.")
    NO_OUTCOME = "no_outcome", _("Some messages have no outcome after an hour.")
    NO_WAY_BACK = (
        "no_way_back",
        _("The broker does not take the retries back. Check the queues, then resume or stop it."),
    )


STOOD_STILL: Mapping[str, Any] = {
    RunWait.BROKER_AWAY: _("No connection to the broker."),
    RunWait.CANARY_FAILED: _("The test message failed again."),
    RunWait.CANARY_SILENT: _("The test message has no outcome after a minute."),
    RunWait.GUARD: _("More messages failed again than the requeue run allows."),
    RunWait.NO_WAY_BACK: _("The broker does not take the retries back."),
}
"""The same of a run that was stopped, without what follows or what to do: neither holds any more."""


class ItemReason(models.TextChoices):
    """The reason that a message of a requeue run was not sent or confirmed, as a code; its text is made when shown."""

    RESOLVED = "resolved", _("It is no longer open: it was resolved or handled meanwhile.")
    CHANGED = "changed", _("It was changed after it was chosen.")
    UNDER_WAY = "under_way", _("Another requeue run was about to send it.")
    SENT_BEFORE = "sent_before", _("Another requeue run had sent it.")
    NO_QUEUE = "no_queue", _("The queue that it came from is unknown.")
    ON_HOLD = "on_hold", _("It is on hold.")
    SUCCEEDED = "succeeded", _("A copy of it was handled already.")
    DISCARDED = "discarded", _("An operator had discarded it before it arrived again.")
    KEY_DISCARDED = "key_discarded", _("An operator discarded another message with its business key.")
    DISCARD_MISSED = "discard_missed", _("A discard of it was approved, but not done.")
    BLOCKS_LISTED = "blocks_listed", _("A message of the keys to leave out waits behind it.")
    COPIES = "copies", _("It is a copy of another message that was sent or discarded, is on hold, or goes first.")
    UNCONFIRMED = "unconfirmed", _("It may have been delivered: an earlier requeue was not confirmed.")
    PERMANENT = "permanent", _("Its error is permanent: requeueing alone will not help.")
    LATE = "late", _("It is older than the age limit for requeues.")
    UNHANDLED = "unhandled", _("No handler of this project takes messages of its queue.")
    UNWRITABLE = "unwritable", _("It cannot be published: its headers or its body are too large for the broker.")
    UNROUTABLE = "unroutable", _("Its queue does not exist.")
    REFUSED = "refused", _("The project's rules do not allow the operator who started the requeue run to requeue it.")
    ACCOUNT_GONE = (
        "account_gone",
        _("The account that started the requeue run no longer exists, so its permissions cannot be checked."),
    )
    NOT_SENT = "not_sent", _("The connection to the broker was lost before it was sent.")
    QUEUE_FULL = "queue_full", _("The queue rejected it because the queue is full.")
    NOT_CONFIRMED = "not_confirmed", _("The broker did not confirm it in time. It may have been delivered.")
    KEY_FAILED = "key_failed", _("An earlier message with the same business key failed again or has no outcome.")
    STOPPED = "stopped", _("The requeue run was stopped before it was sent.")


class RequeueRun(models.Model):
    """A requeue run: a frozen selection of parked messages that is sent back to their queues.

    With ``retries_of`` it sends the retries that wait on the broker for that work queue, before they are due.
    """

    state = models.CharField(_("state"), max_length=10, choices=RunState.choices, default=RunState.RUNNING)
    wait = models.CharField(_("reason for waiting"), max_length=16, choices=RunWait.choices, blank=True)
    """The reason that it sends nothing now, or that it paused itself."""
    outages = models.JSONField(null=True, blank=True, editable=False)
    """When it waited for the broker, the latest last: the begin and the end of each, which is null while it does."""
    note = models.CharField(_("note"), max_length=255, blank=True)
    """The operator's reason for the pause or the stop, or what the broker said."""
    created_at = models.DateTimeField(_("created"))
    by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    by = models.CharField(_("by"), max_length=150)
    approved_by_user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    approved_by = models.CharField(_("approved by"), max_length=150, blank=True)
    """The second person, if the act needed one."""
    source = models.CharField(_("source"), max_length=10, default="code")
    reason = models.CharField(_("reason"), max_length=255, blank=True)
    selection = models.JSONField(_("selection"), default=dict)
    description = models.CharField(_("description of the selection"), max_length=255, blank=True)
    causes = models.JSONField(default=list, editable=False)
    """The error groups that most of its messages were in, each with their number, largest first."""
    excluded = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """The number of messages that it does not have because their keys were left out."""
    retries_of = models.CharField(max_length=255, blank=True, editable=False)
    """The work queue whose waiting retries it sends; empty if it sends parked messages."""
    target = models.CharField(_("target"), max_length=255, blank=True)
    """A queue to use in place of the one that each message failed in; empty if there is none."""
    rate = models.FloatField(_("messages per second"), default=20)
    max_depth = models.PositiveIntegerField(_("waits while the queue holds more than"), null=True, blank=True)
    stop_at = models.FloatField(_("pauses when more percent fail again than"), null=True, blank=True)
    one_by_one = models.BooleanField(_("one at a time for each business key"), default=False)
    canary = models.BooleanField(_("sends one message first"), default=False)
    canary_since = models.DateTimeField(null=True, blank=True, editable=False)
    """When another canary was asked for: messages sent before do not decide. Null for the first one, or without any."""

    total = models.PositiveIntegerField(_("messages"), default=0)
    sent = models.PositiveIntegerField(_("sent"), default=0)
    processed = models.PositiveIntegerField(_("processed"), default=0)
    failed = models.PositiveIntegerField(_("failed again"), default=0)
    skipped = models.PositiveIntegerField(_("left out"), default=0)
    unconfirmed = models.PositiveIntegerField(_("not confirmed"), default=0)
    handled_twice = models.PositiveIntegerField(_("handled twice"), db_default=0, default=0)
    """The number of its messages whose handler did its work again, because the broker delivered the copy again."""

    spared_processed = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    spared_failed = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """The outcomes before the operator resumed a run that its guard had paused; the guard counts only later ones."""
    paced_at = models.DateTimeField(null=True, blank=True, editable=False)
    paced_sent = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """The start of the current uninterrupted sending, and the messages sent before it; both give the measured rate."""

    include = models.JSONField(default=list, editable=False)
    """Names of the findings whose messages are sent all the same."""
    permanent_confirmed = models.BooleanField(default=False, editable=False)
    """True if the operator fixed the cause: messages with a permanent error are sent too."""
    listing_limit = models.PositiveIntegerField(null=True, blank=True, editable=False)
    """The number of messages to list; null once all items are written."""
    listing_count = models.PositiveIntegerField(default=0, editable=False)
    listing_place = models.PositiveIntegerField(default=0, editable=False)
    listing_after_at = models.DateTimeField(null=True, blank=True, editable=False)
    listing_after_id = models.PositiveBigIntegerField(null=True, blank=True, editable=False)
    """The listing continues after the message parked at this time with this id."""

    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    driver = models.CharField(_("sent by"), max_length=255, blank=True)
    leased_until = models.DateTimeField(null=True, blank=True, editable=False)
    beat_at = models.DateTimeField(_("last heartbeat"), null=True, blank=True)

    class Meta:
        verbose_name = _("requeue run")
        verbose_name_plural = _("requeue runs")
        default_permissions = ("view",)
        permissions = (("control_requeuerun", _("Can pause, slow and stop requeue runs")),)
        indexes = (models.Index(fields=["state", "-id"], name="rmq_run_state"),)

    def __str__(self) -> str:
        return str(_("Requeue run %(number)s") % {"number": self.pk})

    @property
    def who(self) -> str:
        """Who started it and, if that needed a second person, who approved it."""
        return both_names(self.by, self.approved_by)

    @property
    def parts(self) -> "models.QuerySet[Any]":
        """The rows of its messages: of parked ones, or of retries; both have a state."""
        return self.retries.all() if self.retries_of else self.items.all()

    @property
    def not_taken(self) -> int:
        """The retries that it leaves out without a row: they were due meanwhile, or did not fail before."""
        return max(self.total - self.sent, 0) if self.retries_of and self.state not in SENDING else 0

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    def is_silent(self, now: datetime) -> bool:
        """True if no driver has been at it lately, though it may have messages to send."""
        driven = self.leased_until is not None and self.leased_until >= now
        return not driven and (self.beat_at or self.created_at) < now - SILENT_AFTER

    @property
    def awaits_canary(self) -> bool:
        """True if its messages are sent one by one until one was processed."""
        return self.canary and (self.canary_since is not None or not self.processed)

    @property
    def listing(self) -> bool:
        """True if some of its items are not written yet."""
        return self.listing_limit is not None

    @property
    def unsent(self) -> int:
        """The number of messages that it may still send."""
        return max(self.total - self.sent - self.skipped - self.unconfirmed, 0)

    @property
    def settled(self) -> int:
        """The number of messages that were sent, to which a run that has finished adds those that it left out."""
        return self.total - self.unsent if self.state == RunState.FINISHED else self.sent

    @property
    def left_out(self) -> int:
        """The number of messages that it does not send, with those left out by their keys."""
        return self.skipped + self.excluded

    @property
    def guarded_outcomes(self) -> tuple[int, int]:
        """The number of outcomes that the guard counts, and how many of them failed again."""
        failed = max(self.failed - self.spared_failed, 0)
        return failed + max(self.processed - self.spared_processed, 0), failed

    @property
    def guard_exceeded(self) -> bool:
        """True if more messages failed again than the run allows, since the last resume after a pause by this guard."""
        ended, failed = self.guarded_outcomes
        return self.stop_at is not None and ended >= MIN_OUTCOMES and failed * 100 > self.stop_at * ended

    @property
    def explanation(self) -> str:
        """The reason that it waits or has stopped, in the reader's language, and the note."""
        why = str(self.get_wait_display()) if self.wait else ""
        if self.state == RunState.STOPPED:
            why = str(STOOD_STILL.get(self.wait, why))
        return " ".join(filter(None, (why, self.note)))

    def waits(self, wait: str, now: datetime) -> dict[str, Any]:
        """Give it another reason to wait, or none, and return the columns that change."""
        away, self.wait = self.wait == RunWait.BROKER_AWAY, wait
        if away == (wait == RunWait.BROKER_AWAY):
            return {"wait": wait}
        known = self.outages or []
        if away and known:
            known = [*known[:-1], [known[-1][0], now.isoformat()]]
        elif not away:
            known = [*known, [now.isoformat(), None]][-MOST_OUTAGES:]
        self.outages = known
        return {"wait": wait, "outages": known}

    @property
    def ended_outages(self) -> list[tuple[datetime, datetime]]:
        """When it waited for the broker, the latest last."""
        return [
            (datetime.fromisoformat(begun), datetime.fromisoformat(ended))
            for begun, ended in self.outages or []
            if ended
        ]

    def end_listing(self) -> None:
        """End the listing where it is: a message without an item is no longer part of the requeue run."""
        self.total, self.listing_limit = self.listing_count, None


class ItemState(models.TextChoices):
    PENDING = "pending", _("Waiting to be sent")
    CLAIMED = "claimed", _("Being sent")
    SENT = "sent", _("Waiting for outcome")
    PROCESSED = "processed", _("Processed")
    FAILED = "failed", _("Failed again")
    SKIPPED = "skipped", _("Left out")
    UNCONFIRMED = "unconfirmed", _("Not confirmed")


NOTHING_SENT = (ItemState.PENDING, ItemState.SKIPPED)
"""States of messages of which no copy was sent."""
STILL_TO_SEND = (ItemState.PENDING, ItemState.CLAIMED)
"""States of messages that the run has to send, or is just sending."""
UNDATED = (*STILL_TO_SEND, ItemState.SKIPPED)
"""States of messages that were not sent, or of which a driver will still note when."""
MAY_BE_DELIVERED = (ItemState.CLAIMED, ItemState.SENT, ItemState.UNCONFIRMED)
"""States of messages of which a copy may have been delivered, and whose outcome is not known."""
NOT_ENDED = (*STILL_TO_SEND, ItemState.SENT)
"""States of messages that keep their run active."""
RUN_COUNTERS = ("sent", "processed", "failed", "skipped", "unconfirmed")
"""The columns of a run that count its messages. Three have the names of states: processed, failed and unconfirmed."""


class RequeueItem(models.Model):
    """One message of a requeue run, as it was when the requeue run was started."""

    run = models.ForeignKey(RequeueRun, on_delete=models.CASCADE, related_name="items", db_index=False)
    message = models.ForeignKey(ParkedMessage, on_delete=models.CASCADE, related_name="items", db_index=False)
    place = models.PositiveIntegerField()
    revision = models.PositiveIntegerField()
    """The revision of the parked message when it was chosen; a message that has changed since is left out."""
    state = models.CharField(max_length=12, choices=ItemState.choices, default=ItemState.PENDING)
    cycle = models.PositiveIntegerField(default=0)
    """The cycle that this requeue run began; outcomes are counted by it."""
    handled = models.PositiveIntegerField(db_default=0, default=0)
    """How often the handler is known to have done its work in this cycle."""
    skip_code = models.CharField(max_length=16, choices=ItemReason.choices, blank=True)
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


class EarlyRetry(models.Model):
    """One retry that a run sends before it is due. The broker has the message; this row tells which one it is."""

    run = models.ForeignKey(RequeueRun, on_delete=models.CASCADE, related_name="retries", db_index=False)
    identity = models.CharField(max_length=160)
    """The identity of the message, as its attempts have it."""
    shown = models.CharField(max_length=255, blank=True)
    """Its business key or message id."""
    state = models.CharField(max_length=12, choices=ItemState.choices, default=ItemState.CLAIMED)
    sent_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["run", "identity"], name="rmq_early_once"),)
        indexes = (
            models.Index(fields=["run", "state"], name="rmq_early_state"),
            models.Index(fields=["identity"], name="rmq_early_identity"),
            models.Index(fields=["sent_at"], name="rmq_early_sent"),
        )

    def __str__(self) -> str:
        return self.shown or self.identity
