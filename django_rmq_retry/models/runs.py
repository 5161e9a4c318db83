"""Models for a bulk requeue: the requeue run with its selection and rate, and the state of each message."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models, router
from django.utils.translation import gettext_lazy as _

from django_rmq_retry import database_clock
from django_rmq_retry.models.audit import both_names
from django_rmq_retry.models.parked import ParkedMessage
from django_rmq_retry.wording import number, second

MIN_OUTCOMES = 5
"""Smallest number of outcomes for which the share of failures is meaningful."""
MOST_UNJUDGED = 20
"""The most messages that a run with a guard sends before it has so many outcomes."""
MOST_OUTAGES = 5
"""The latest outages of the broker that a run keeps, and the latest times in which nothing was heard of it."""
MOST_GUARD_PAUSES = 5
"""The latest pauses by its guard that a run keeps."""
SILENT_AFTER = timedelta(seconds=12)
"""The time without a driver's heartbeat after which a run counts as standing still; usually one comes within 5 s."""
SENT_LATELY = timedelta(seconds=10)
"""The time after a message in which a run counts as sending, unless its messages are known to come more slowly."""
LONGEST_GAP = timedelta(minutes=1)
"""The longest time between two messages of a run that counts as sending."""


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
    """The reason that a requeue run sends nothing now, as a code; its text is made when it is shown.

    Those in ``PACED`` stay while the run sends as fast as its queue empties, or as outcomes come.
    """

    LISTING = "listing", _("The requeue run lists its messages and sends them afterwards.")
    BROKER_AWAY = "broker_away", _("No connection to the broker. The requeue run resumes automatically.")
    QUEUE_DEEP = "queue_deep", _("It sends whenever its queue has at most %(most)s ready.")
    QUEUE_FULL = "queue_full", _("Its queue is full: it sends whenever there is room.")
    DEPTH_UNKNOWN = (
        "depth_unknown",
        _("The broker does not report how many messages the queue holds. The requeue run resumes when it does."),
    )
    KEYS_WAIT = "keys_wait", _("It sends each message after the outcome of the one before with its business key.")
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
    OUTCOMES_WAIT = (
        "outcomes_wait",
        _("The rest waits for the first outcomes: if too many of the messages fail again, it is not sent."),
    )
    NO_CONSUMER = (
        "no_consumer",
        _(
            "The rest waits for the first outcomes, and no consumer reads the queue: start one, or resume the queue if "
            "it is paused. The requeue run resumes automatically."
        ),
    )
    OUTCOMES_SILENT = (
        "outcomes_silent",
        _(
            "The first messages had no outcome after 5 minutes, so it is unknown whether the rest would fail again. "
            "Check them, then resume or stop the requeue run."
        ),
    )
    NO_OUTCOME = "no_outcome", _("Some messages have no outcome after an hour.")
    NO_WAY_BACK = (
        "no_way_back",
        _("The broker does not take the retries back. Check the queues, then resume or stop it."),
    )


PACED = (RunWait.QUEUE_DEEP, RunWait.QUEUE_FULL, RunWait.KEYS_WAIT)
"""Waits of a run that sends, but more slowly than its rate."""
HELD = (RunWait.OUTCOMES_WAIT, RunWait.NO_CONSUMER)
"""Waits of a run that sends the rest once it has outcomes, or at once if an operator resumes it."""
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
    SUCCEEDED = "succeeded", _("It, or a copy of it, was handled already.")
    DISCARDED = "discarded", _("An operator had discarded it before it arrived again.")
    RESTORED = "restored", _("It was discarded and restored: somebody may have done what it requests.")
    KEY_DISCARDED = "key_discarded", _("An operator discarded another message with its business key.")
    DISCARD_MISSED = "discard_missed", _("A discard of it was approved, but not done.")
    DISCARD_ASKED = "discard_asked", _("A discard of it waited for a second person.")
    EDIT_ASKED = "edit_asked", _("An edit of it waited for a second person.")
    BLOCKS_LISTED = "blocks_listed", _("A message of the keys to leave out waits behind it.")
    COPIES = "copies", _("It is a copy of another message that was sent or discarded, is on hold, or goes first.")
    UNCONFIRMED = "unconfirmed", _("It may have been delivered: an earlier requeue was not confirmed.")
    WORKER_STOPPED = (
        "worker_stopped",
        _("It may have been handled: a worker stopped or lost its connection before it could say so."),
    )
    OTHER_HANDLER = "other_handler", _("It would have gone to a handler that it was not made for.")
    PERMANENT = "permanent", _("Its error is permanent: requeueing alone will not help.")
    LATE = "late", _("It is older than the age limit for requeues.")
    UNHANDLED = "unhandled", _("No handler of this project takes messages of its queue.")
    UNTAKEN = "untaken", _("No handler of its queue takes messages of its type.")
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
    silences = models.JSONField(null=True, blank=True, editable=False)
    """When no driver was heard of though none had lost the broker, the latest last: the begin and the end of each."""
    guard_pauses = models.JSONField(null=True, blank=True, editable=False)
    """When its guard paused it, the latest last, after how many outcomes, and when a test has ended the pause."""
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
    """The messages beside its own ones that were not chosen, because their keys were left out."""
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
    edited = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """The number of those that it sent as operators had edited them."""
    handled_twice = models.PositiveIntegerField(_("handled twice"), db_default=0, default=0)
    """The number of its messages whose handler did its work again, because the broker delivered the copy again."""
    perhaps_twice = models.PositiveIntegerField(_("perhaps handled twice"), db_default=0, default=0)
    """The number of those that a consumer had and did not acknowledge, so that it may have done their work, too."""

    spared_processed = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    spared_failed = models.PositiveIntegerField(db_default=0, default=0, editable=False)
    """The outcomes before an operator resumed a run that had failed, or a test passed; the guard counts later ones."""
    held_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Since when it has waited for its first outcomes, with a broker and a consumer from whom they can come.

    With a canary, or once all is sent, the last time that a queue was stopped in which some of it waits: the time for
    an outcome begins anew then.
    """
    unheld = models.BooleanField(db_default=False, default=False, editable=False)
    """True if an operator has let it send the rest before it has outcomes."""
    sent_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When it sent a message last."""
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
    def complete(self) -> bool:
        """True if each message that it may still send has a row; those of others have left before it came to them."""
        return not self.listing and not (self.retries_of and self.state in SENDING)

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def heard_at(self) -> datetime:
        """When a driver was at it last, or when it was created."""
        return self.beat_at or self.created_at

    def is_silent(self, now: datetime) -> bool:
        """True if no driver was heard of lately: nobody sends what is left, or its database does not answer."""
        return not self.is_sent and self.heard_at < now - SILENT_AFTER

    def idle_since(self, now: datetime) -> datetime | None:
        """Return since when a run has sent nothing because no room or no outcome comes; None if it sends as they come.

        With a slow handler they come slowly: three times the usual time between two messages has to pass.
        """
        if self.state != RunState.RUNNING or self.wait not in PACED:
            return None
        begun, sent = self.paced_at or self.started_at or self.created_at, self.sent - self.paced_sent
        if self.sent_at is None:
            return begun
        usual = 3 * (self.sent_at - begun) / sent if sent > 0 else SENT_LATELY
        over = now - self.sent_at > min(max(usual, SENT_LATELY), LONGEST_GAP)
        return max(self.sent_at, begun) if over else None

    def nothing_sent_since(self, now: datetime) -> datetime | None:
        """Return when a run that is to send has sent last, or has begun, if it sends nothing now; None otherwise."""
        if self.state != RunState.RUNNING:
            return None
        stands = self.is_silent(now) or (self.wait and self.wait not in PACED)
        return self.sent_at or self.started_at or self.created_at if stands else self.idle_since(now)

    def with_silence(self, now: datetime) -> list[list[str]]:
        """Return the times in which nothing was heard of it, with the one that ends now."""
        return [*(self.silences or []), [self.heard_at.isoformat(), now.isoformat()]][-MOST_OUTAGES:]

    @property
    def awaits_canary(self) -> bool:
        """True if its messages are sent one by one until one was processed."""
        return self.canary_since is not None or (self.canary and not self.processed)

    @property
    def listing(self) -> bool:
        """True if some of its items are not written yet."""
        return self.listing_limit is not None

    @property
    def tally(self) -> "dict[ItemState, int]":
        """Where its messages are, which add up to ``total``. What it sends right now is not sent yet."""
        return {
            ItemState.PROCESSED: self.processed,
            ItemState.FAILED: self.failed,
            ItemState.SENT: self.sent - self.processed - self.failed,
            ItemState.UNCONFIRMED: self.unconfirmed,
            ItemState.SKIPPED: self.skipped,
            ItemState.PENDING: self.unsent,
        }

    @property
    def unsent(self) -> int:
        """The number of messages that it may still send."""
        return self.total - self.sent - self.skipped - self.unconfirmed

    @property
    def is_sent(self) -> bool:
        """True if only outcomes are waited for, which consumers count without a driver."""
        return not (self.unsent or self.listing)

    @property
    def guarded_outcomes(self) -> tuple[int, int]:
        """The number of outcomes that the guard counts, and how many of them failed again."""
        failed = max(self.failed - self.spared_failed, 0)
        return failed + max(self.processed - self.spared_processed, 0), failed

    @property
    def guard_exceeded(self) -> bool:
        """True if more messages failed again than the run allows, since it was resumed after it had failed."""
        ended, failed = self.guarded_outcomes
        return self.stop_at is not None and ended >= MIN_OUTCOMES and failed * 100 > self.stop_at * ended

    @property
    def room_before_outcomes(self) -> int | None:
        """How many messages it may send before more outcomes are known; None if it need not wait for them.

        Without this limit a fast run had sent all its messages before its guard could judge any.
        """
        ended, _failed = self.guarded_outcomes
        if self.stop_at is None or self.unheld or ended >= MIN_OUTCOMES or not self.unsent:
            return None
        return max(MOST_UNJUDGED - ended - self.tally[ItemState.SENT], 0)

    def with_guard_pause(self, now: datetime) -> list[dict[str, Any]]:
        """Return the pauses by its guard with one that begins now."""
        ended, failed = self.guarded_outcomes
        begun = {"at": now.isoformat(), "failed": failed, "ended": ended}
        return [*(self.guard_pauses or []), begun][-MOST_GUARD_PAUSES:]

    def with_guard_test(self, now: datetime) -> list[dict[str, Any]] | None:
        """Return the pauses by its guard, the last of them ended now by a message that was processed."""
        known = self.guard_pauses
        return [*known[:-1], {"tested": now.isoformat(), **known[-1]}] if known else None

    @property
    def tested_late(self) -> datetime | None:
        """When the test message was processed for which it had waited too long; None if it has not been."""
        if self.state != RunState.PAUSED or self.wait != RunWait.CANARY_SILENT:
            return None
        done = self.parts.filter(state=ItemState.PROCESSED)
        if self.canary_since is not None:
            done = done.filter(sent_at__gt=self.canary_since)
        found: datetime | None = done.order_by("-ended_at").values_list("ended_at", flat=True).first()
        return found

    @property
    def explanation(self) -> str:
        """The reason that it waits or has stopped, in the reader's language, and the note."""
        came = self.wait == RunWait.NO_OUTCOME and not self.tally[ItemState.SENT]
        why = str(self.get_wait_display()) if self.wait and not came else ""
        if (tested := self.tested_late) is not None:
            text = _("The test message was processed at %(time)s, after the requeue run had paused: resume it.")
            why = str(text) % {"time": second(tested)}
        if self.state == RunState.STOPPED:
            why = str(STOOD_STILL.get(self.wait, why))
        if self.wait == RunWait.QUEUE_DEEP:
            why %= {"most": number(self.max_depth or 0)}
        return " ".join(filter(None, (self.idle_text, why, self.note)))

    @property
    def idle_text(self) -> str:
        """Return since when it has sent nothing although it would; empty if it sends as room or outcomes come."""
        using = self._state.db or router.db_for_write(type(self))
        since = self.idle_since(database_clock.reckoned(using))
        return "" if since is None else str(_("Nothing has been sent since %(time)s.")) % {"time": second(since)}

    @property
    def unsent_text(self) -> str:
        """Say of a message that an active run has still to send what it does with it."""
        text = _("Requeue run %(number)s by %(who)s sends it.")
        if self.state == RunState.PAUSED:
            text = _("Requeue run %(number)s by %(who)s is paused and has not sent it.")
        return str(text) % {"number": self.pk, "who": self.who}

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
        return _times(self.outages)

    @property
    def ended_silences(self) -> list[tuple[datetime, datetime]]:
        """When nothing was heard of it, the latest last."""
        return _times(self.silences)

    def end_listing(self) -> None:
        """End the listing where it is: a message without an item is left out."""
        self.listing_limit = None


def _times(spans: list[list[str | None]] | None) -> list[tuple[datetime, datetime]]:
    known = [(begun, ended) for begun, ended in spans or [] if begun and ended]
    return [(datetime.fromisoformat(begun), datetime.fromisoformat(ended)) for begun, ended in known]


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
RUN_COUNTERS = ("total", "sent", "processed", "failed", "skipped", "unconfirmed")
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
    redelivered = models.BooleanField(db_default=False, default=False)
    """True if a consumer had it and did not acknowledge it: another one handled it, or it was parked therefore."""
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
    error = models.CharField(max_length=255, db_default="", default="", blank=True)
    """The error with which it failed again."""
    handled = models.PositiveIntegerField(db_default=0, default=0)
    """How often the handler is known to have done its work since."""
    redelivered = models.BooleanField(db_default=False, default=False)
    """True if a consumer had it and did not acknowledge it: another one handled it, or it failed again."""
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
