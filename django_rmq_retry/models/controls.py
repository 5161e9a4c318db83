"""Models for the pauses and breakers of queues, rates, blocked ordering keys, and the topology declared on a broker."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext_lazy as _

SILENT_AFTER = timedelta(seconds=8)
"""The time without a heartbeat, of which one was due, after which nobody says of a process that it runs."""
CONNECTS_WITHIN = timedelta(seconds=5)
"""The time that a process has for its first connection: one that is heard of earlier is only starting."""
VANISHED_AFTER = timedelta(seconds=30)
"""The time without a heartbeat after which a process counts as vanished, unless its end is known before."""
LET_GO_KNOWN_FOR = timedelta(minutes=1)
"""The time after its last heartbeat in which a process that cannot reach its database takes nothing unnoticed."""
IS_GONE = gettext_noop("its process is gone")
"""The fault of a process of which nobody knows how it ended."""


def has_vanished(now: datetime) -> Q:
    """Match the processes of which ``ConsumerProcess.vanished`` is true."""
    return Q(ended_at__isnull=False) | Q(beat_at__lt=now - VANISHED_AFTER)


class QueueControls(models.QuerySet["QueueControl"]):
    def stopped(self, now: datetime) -> "QueueControls":
        """Return the queues that a pause or a breaker stops, as ``QueueState.state`` tells it of one row."""
        paused = Q(paused=True) & (Q(until=None) | Q(until__gt=now))
        return self.filter(paused | Q(opened=True))

    def not_flowing(self) -> "QueueControls":
        """Return the queues that are stopped or halted, and those whose pause has ended."""
        return self.filter(Q(paused=True) | Q(opened=True) | Q(halted_at__isnull=False))


class QueueControl(models.Model):
    """The pause, breaker and halt of one queue; the row stays after all of them have ended."""

    queue = models.CharField(_("queue"), max_length=255)
    paused = models.BooleanField(_("paused"), default=False)
    by = models.CharField(_("by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=255, blank=True)
    since = models.DateTimeField(_("since"), null=True, blank=True)
    until = models.DateTimeField(_("resumes at"), null=True, blank=True)
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
    halted_key = models.CharField(max_length=255, blank=True, db_default="", default="")
    """The first business key of that message."""

    objects = QueueControls.as_manager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = (
            ("pause_queue", _("Can pause and resume queues")),
            ("send_waiting", _("Can send waiting retries before they are due")),
        )
        constraints = (models.UniqueConstraint(fields=["queue"], name="rmq_control_once"),)

    def __str__(self) -> str:
        return self.queue


class HandlerRate(models.Model):
    """The rate of one handler across all processes: each attempt takes the next free start time."""

    handler = models.CharField(_("handler"), max_length=255)
    next_at = models.DateTimeField(_("next attempt"))

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


class ConsumerProcesses(models.QuerySet["ConsumerProcess"]):
    def living(self, now: datetime) -> "ConsumerProcesses":
        return self.filter(~has_vanished(now), stopping=False)


class ConsumerProcess(models.Model):
    """The heartbeat of one consuming process. Its row is deleted when it ends in good order, and kept after a fault."""

    name = models.CharField(max_length=150, editable=False)
    """A name that no other process has, also not a restarted one on the same host with the same pid."""
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process"))
    place = models.CharField(max_length=100, blank=True, db_default="", default="", editable=False)
    """The boot of its machine, the namespace of its process id, and its start; empty if they are not known."""
    number = models.PositiveIntegerField(default=0)
    """The number of the child of a supervisor, from 1; 0 without a supervisor."""
    version = models.CharField(_("version of django-rmq-retry"), max_length=32, blank=True)
    deploy = models.CharField(_("version of the project"), max_length=100, blank=True)
    broker = models.CharField(_("broker"), max_length=255, blank=True)
    """The name of the broker with its virtual host; never a password."""
    connected = models.BooleanField(_("connected"), default=False)
    lost_at = models.DateTimeField(null=True, blank=True, editable=False)
    """The time at which it lost its connection to the broker; None while it has one, and before its first one."""
    stopping = models.BooleanField(_("stopping"), default=False)
    queues = models.JSONField(_("queues"), default=list)
    let_go = models.JSONField(null=True, blank=True, editable=False)
    """Those of its queues that are paused, or whose breaker is open, if it gave back all that it had not begun of them.

    Each has the ids of the messages that it had begun: of these the broker may not have all acks. It writes that it
    takes some again before it does.
    """
    idle = models.JSONField(null=True, blank=True, editable=False)
    """By queue the time at which it last had nothing of it while it consumed it: nothing waited there either."""
    threads = models.PositiveIntegerField(_("threads"), default=0)
    waiting = models.PositiveIntegerField(_("waiting for a thread"), default=0)
    """Messages that have arrived and wait for a thread."""
    in_flight = models.JSONField(_("in flight"), default=list)
    """One entry for each handler that runs: queue, handler, business key, message id, attempt, start and deadline."""
    unlisted = models.PositiveIntegerField(default=0, editable=False)
    """The handlers that run without an entry, because there are too many."""
    replaced = models.BooleanField(default=False, editable=False)
    """True if it vanished and another process took its queues over: it stays so after that one has ended, too."""
    stuck_at = models.DateTimeField(null=True, blank=True, editable=False)
    """The time since when all of its threads run handlers beyond their deadline."""
    late = models.JSONField(default=list, editable=False)
    """The handlers with messages beyond their deadline: handler, queue, how many, deadline, when their process ends."""
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)
    """The time at which it ended with a fault, or was found to be gone; None if neither is known."""
    fault = models.CharField(max_length=1000, blank=True, editable=False)
    """The reason for its end, with the exit code."""
    ended_by = models.CharField(max_length=150, blank=True, db_default="", default="", editable=False)
    """The operator who says that it has ended; empty if nobody has said so."""
    gave_back = models.BooleanField(default=False, db_default=False, editable=False)
    """True if it was told to end, and gave back messages whose handlers did not finish in time: it has not crashed."""
    started_at = models.DateTimeField(_("started"))
    beat_at = models.DateTimeField(_("last heartbeat"))

    objects = ConsumerProcesses.as_manager()

    class Meta:
        verbose_name = _("consumer")
        verbose_name_plural = _("consumers")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["name"], name="rmq_consumer_once"),)
        indexes = (models.Index(fields=["beat_at"], name="rmq_consumer_beat"),)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @property
    def why_ended(self) -> str:
        """Why it ended: in the reader's language, unless it wrote that itself."""
        if self.ended_by:
            return gettext("as %(name)s says") % {"name": self.ended_by}
        return gettext(self.fault) if self.fault == IS_GONE else self.fault

    @property
    def machine(self) -> str:
        """What it has in common with the processes that can tell whether it exists; empty if that is not known."""
        return self.place.rpartition("/")[0]

    def silent(self, now: datetime) -> bool:
        """Return True if heartbeats are missing, even if it is too early to say that they have ended."""
        return now - self.beat_at > SILENT_AFTER

    def vanished(self, now: datetime) -> bool:
        """Return True if it ended without a good end: by a fault, as others found out, or as heartbeats are missing."""
        return self.ended_at is not None or now - self.beat_at > VANISHED_AFTER

    def left_of(self, queue: str) -> Sequence[str] | None:
        """Return the ids of all messages of a work queue that it may have had as it ended; None if they are not known.

        One that ran on without its database, which it needs to tell what it takes, was seen to be gone much later.
        """
        soon = self.ended_at is not None and self.ended_at - self.beat_at <= LET_GO_KNOWN_FOR
        told = self.let_go if soon and isinstance(self.let_go, dict) else {}
        left: Sequence[str] | None = told.get(queue)
        return left

    def idle_in(self, queue: str) -> datetime | None:
        """Return when it last had nothing of a queue that it consumed; None if it always had, or does not tell."""
        known = (self.idle or {}).get(queue)
        return datetime.fromisoformat(known) if known else None

    def ran(self, now: datetime) -> timedelta:
        """Return for how long it has run, as far as its heartbeats tell."""
        return (now if self.living(now) else self.beat_at) - self.started_at

    @property
    def end_noticed(self) -> bool:
        """True if others noticed its end, or an operator told of it: it ended at some time after its last heartbeat."""
        return self.ended_at is not None and (self.fault == IS_GONE or bool(self.ended_by))

    @property
    def told_all(self) -> bool:
        """True if it reported what it had as it ended: it has begun no other message since its last heartbeat."""
        return self.ended_at is not None and self.ended_at <= self.beat_at

    @property
    def starting(self) -> bool:
        """True if it had not connected at its last heartbeat, and had no time for it: it may have died since."""
        early = self.beat_at - self.started_at < CONNECTS_WITHIN
        return early and not self.connected and self.lost_at is None

    @property
    def told_to_end(self) -> bool:
        """True if it is missed by nobody: it was told to end, and may have been killed on its way, or gave back."""
        return self.gave_back or (self.stopping and self.ended_at is None)

    def living(self, now: datetime) -> bool:
        """Return True if it takes messages: a stopping process only ends those that it has."""
        return not (self.vanished(now) or self.stopping)


class BlockedKey(models.Model):
    """One blocked ordering key of one handler: the failed message goes first and every later one waits behind it."""

    handler = models.CharField(_("handler"), max_length=255)
    key = models.CharField(_("ordering key"), max_length=255)
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
    """The digest of the message's id and body, the same for two deliveries; without an id, of this delivery."""
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
