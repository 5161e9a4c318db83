"""Models for parked messages: error groups and trends, versions, attempts, business keys, and lists of keys."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from django.db import models, router
from django.db.models import Case, F, Func, IntegerField, Q, Subquery, Value, When
from django.db.models.expressions import Combinable
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_rmq_retry.messages.reasons import UNEXPLAINED, Reason
from django_rmq_retry.statements import ROWS_AT_ONCE, BulkCount, in_slices, lock

REASON_TEXTS: Mapping[str, Any] = {
    Reason.EXHAUSTED: pgettext_lazy("reason", "retries exhausted"),
    Reason.PERMANENT: pgettext_lazy("reason", "permanent error"),
    Reason.REQUESTED: pgettext_lazy("reason", "parked by the handler"),
    Reason.UNDECODABLE_BODY: pgettext_lazy("reason", "cannot decode body"),
    Reason.INVALID: pgettext_lazy("reason", "data do not fit the type"),
    Reason.UNDECODABLE_HEADERS: pgettext_lazy("reason", "cannot decode headers"),
    Reason.UNHANDLED: pgettext_lazy("reason", "no handler"),
    Reason.CRASHED: pgettext_lazy("reason", "worker died"),
    Reason.EXPIRED: pgettext_lazy("reason", "expired"),
    Reason.DELIVERY_LIMIT: pgettext_lazy("reason", "delivery limit"),
    Reason.OVERFLOWN: pgettext_lazy("reason", "queue overflow"),
    Reason.REJECTED: pgettext_lazy("reason", "rejected"),
    Reason.CONFLICT: pgettext_lazy("reason", "identity conflict"),
    Reason.ALIKE: pgettext_lazy("reason", "may be a duplicate"),
    Reason.UNNAMED: pgettext_lazy("reason", "no usable name for once"),
    Reason.UNSETTLED: pgettext_lazy("reason", "cannot be settled"),
    Reason.FOREIGN: pgettext_lazy("reason", "parked by another program"),
    Reason.HANDLED: pgettext_lazy("reason", "handled, but not settled"),
}
COUNTERS = ("parked", "requeued", "processed", "discarded")
SAID = Case(
    When(~Q(detail=UNEXPLAINED), error="", reason=Reason.REQUESTED.value, then=F("detail")), default=F("error_text")
)
"""``ParkedMessage.said``, for queries."""


def reason_text(code: str) -> str:
    """Return the reason for parking in the reader's language; return an unknown code of a later version unchanged."""
    return str(REASON_TEXTS.get(code, code))


def resolution_text(text: str) -> str:
    """Return the reason of a discard with the operator's remark, in the reader's language."""
    category, colon, more = text.partition(": ")
    return f"{DiscardCategory(category).label}{colon}{more}" if category in DiscardCategory.values else text


def reduced(counter: str, count: int = 1) -> Case:
    """Return a counter minus ``count``, at least 0: a wrong counter must not block a message's change of state."""
    enough = When(**{f"{counter}__gte": count}, then=F(counter) - count)
    return Case(enough, default=Value(0), output_field=IntegerField())


class ErrorGroups(models.Manager["ErrorGroup"]):
    """The error groups; their counters change in the transaction that changes their messages."""

    def count_moved(self, group: int, before: str | None, after: str | None, count: int = 1) -> None:
        """Update the counters of a group after ``count`` of its messages changed state.

        As a state, None means that they were not in the group before, or are not in it any more. Call this in the
        transaction that changed the messages, after the change: messages are locked before groups.
        """
        left, entered = COUNTED_AS[before] if before else None, COUNTED_AS[after] if after else None
        if before == after or not count:
            return
        if left == entered:
            # A hold changes no counter of the group, but those of its origins, for which the group is locked.
            lock(self.using(router.db_for_write(ErrorGroup)).filter(pk=group))
            return
        changes: dict[str, Combinable] = {}
        if left is not None:
            changes[left] = reduced(left, count)
        if entered is not None:
            changes[entered] = F(entered) + count
        self.filter(pk=group).update(**changes)

    def count_all_moved(self, counts: Mapping[tuple[int, str], int], after: str) -> None:
        """Update the counters of all these groups like ``count_moved``; ``counts`` is by group and state before.

        Two statements serve a hundred groups, which are locked in the order of their keys.
        """
        numbers = sorted({group for group, _before in counts})
        if len(numbers) == 1:
            for (group, before), count in sorted(counts.items()):
                self.count_moved(group, before, after, count)
            return
        entered = COUNTED_AS[after]
        changes = Counter[tuple[str, int]]()
        for (group, before), count in counts.items():
            if COUNTED_AS[before] != entered:
                changes[COUNTED_AS[before], group] -= count
                changes[entered, group] += count
        for some in in_slices(numbers, ROWS_AT_ONCE):
            groups = self.using(router.db_for_write(ErrorGroup)).filter(pk__in=some)
            lock(groups)
            cases: dict[str, list[When]] = {}
            for (name, group), count in changes.items():
                if group in some:
                    changed = F(name) + count if count > 0 else reduced(name, -count)
                    cases.setdefault(name, []).append(When(pk=group, then=changed))
            if cases:
                number = IntegerField()
                groups.update(**{name: Case(*of, default=F(name), output_field=number) for name, of in cases.items()})

    def count_deleted(self, counts: Mapping[tuple[int, str], int]) -> None:
        """Update the counters of groups whose messages were deleted; one statement serves all that lose equally many.

        Call it like ``count_moved``. The groups are locked in order of their keys before any of them changes.
        """
        groups = self.using(router.db_for_write(ErrorGroup)).filter(pk__in={group for group, _state in counts})
        lock(groups)
        alike: dict[tuple[str, int], list[int]] = {}
        for (group, state), count in counts.items():
            alike.setdefault((COUNTED_AS[state], count), []).append(group)
        for (counter, count), members in alike.items():
            groups.filter(pk__in=members).update(**{counter: reduced(counter, count)})


def cause_name(title: str, *, reasoned: bool) -> str:
    """Return the title; without an error, as of an expired message, it is the reason, in words."""
    return str(reason_text(title)) if reasoned else title


class ErrorGroup(models.Model):
    """The messages with the same cause, found by its fingerprint; the counters can be recomputed from the messages."""

    fingerprint = models.CharField(_("fingerprint"), max_length=64, unique=True)
    rule = models.PositiveSmallIntegerField(_("grouping rule"), default=1)
    title = models.CharField(_("title"), max_length=255)
    culprit = models.CharField(_("location in the code"), max_length=255, blank=True)
    reason = models.CharField(_("reason"), max_length=64)
    first_seen = models.DateTimeField(_("first seen"))
    last_seen = models.DateTimeField(_("last seen"))
    last_new = models.DateTimeField(_("last new failure"), null=True, blank=True)
    """The time at which a message was last parked in it that had not been parked before, so no copy of a requeue."""
    last_handled = models.DateTimeField(null=True, blank=True, editable=False)
    """The time at which one of its messages was last handled after it had been parked."""
    # Counters of messages by state; "arrived" also counts messages that were parked again.
    parked = models.PositiveIntegerField(_("parked"), default=0)
    requeued = models.PositiveIntegerField(_("waiting for outcome"), default=0)
    processed = models.PositiveIntegerField(_("processed"), default=0)
    discarded = models.PositiveIntegerField(_("discarded"), default=0)
    arrived = models.PositiveIntegerField(_("arrived"), default=0)
    failed_again = models.PositiveIntegerField(_("failed again"), default=0)
    regressed_at = models.DateTimeField(_("occurred again"), null=True, blank=True)
    muted = models.BooleanField(_("muted"), default=False)
    plain = models.CharField(_("in plain words"), max_length=255, blank=True)
    note = models.TextField(_("note"), blank=True)
    owner = models.CharField(_("owner"), max_length=150, blank=True)
    ticket = models.CharField(_("ticket"), max_length=150, blank=True)
    noted_at = models.DateTimeField(_("noted"), null=True, blank=True)
    noted_by = models.CharField(_("noted by"), max_length=150, blank=True)

    objects = ErrorGroups()

    class Meta:
        verbose_name = _("error group")
        verbose_name_plural = _("error groups")
        default_permissions = ("view",)
        permissions = (("note_errorgroup", _("Can annotate and mute error groups")),)
        indexes = (
            models.Index(fields=["-last_seen", "-id"], name="rmq_group_last"),
            models.Index(fields=["-parked", "-last_seen"], name="rmq_group_parked"),
        )

    def __str__(self) -> str:
        return f"{self.cause} · {self.culprit}" if self.culprit else self.cause

    @property
    def cause(self) -> str:
        return cause_name(self.title, reasoned=self.title == self.reason)


class ParkedMinute(models.Model):
    """How many messages of an error group were parked in a minute of the last hours, for its trend.

    The messages themselves would all have to be read: in an incident these are most messages that there are.
    """

    group = models.ForeignKey(ErrorGroup, on_delete=models.CASCADE, related_name="minutes", db_index=False)
    minute = models.DateTimeField()
    new = models.BooleanField()
    """True for messages that had not been parked before, False for those that an operator had acted on."""
    count = models.PositiveIntegerField()

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["group", "minute", "new"], name="rmq_minute_once"),)

    def __str__(self) -> str:
        return f"{self.minute} {self.count}"


class OriginKey(NamedTuple):
    """Where a message of an error group came from: its queue, the handler that failed, and the type of the message.

    Messages of which a copy was handled already are counted separately: an operator has nothing to decide about them.
    """

    group: int
    queue: str
    handler: str
    type: str
    handled: bool

    @classmethod
    def of(cls, message: "ParkedMessage") -> "OriginKey":
        handled = message.succeeded_at is not None
        return cls(message.group_id, message.queue, message.handler, message.type, handled)


class ParkedOrigins(models.Manager["ParkedOrigin"]):
    """The counters of where parked messages came from; they change in the transaction that changes the messages."""

    def count_moved(self, rows: Iterable["ParkedMessage"], after: str, *, using: str) -> None:
        """Count messages that changed state; the rows have the state before. The groups must be locked."""
        counts: dict[OriginKey, int] = {}
        for row in rows:
            origin = OriginKey.of(row)
            counts[origin] = counts.get(origin, 0) + (after == State.PARKED) - (row.state == State.PARKED)
        self.add(counts, using=using)

    def add(self, counts: Mapping[OriginKey, int], *, using: str) -> None:
        """Add to the counters, by one statement for every hundred of them. The groups must be locked."""
        rows = sorted((*origin, count) for origin, count in counts.items() if count)
        if rows:
            BulkCount(self.model, ("group_id", "queue", "handler", "type", "handled", "count"))(rows, using=using)

    def total(self) -> Subquery:
        """Return the number of all parked messages, for a query of something else."""
        # Sum() would group by a column: Func() adds all rows up.
        return Subquery(self.filter(count__gt=0).order_by().values(n=Func("count", function="SUM")))

    def delete_empty(self, groups: Iterable[int], *, using: str) -> None:
        """Delete the counters of these groups that count nothing any more. The groups must be locked."""
        self.using(using).filter(group__in=groups, count=0).delete()


class ParkedOrigin(models.Model):
    """How many messages of an error group are parked from one queue, by one handler, with one type.

    In an incident, counting the messages themselves would read most of the messages that there are.
    """

    group = models.ForeignKey(ErrorGroup, on_delete=models.CASCADE, related_name="origins", db_index=False)
    queue = models.CharField(max_length=255)
    handler = models.CharField(max_length=255)
    type = models.CharField(max_length=255)
    handled = models.BooleanField(db_default=False, default=False)
    """True for messages of which a copy was handled already."""
    count = models.IntegerField()
    """Messages in the state *parked* only. A wrong counter may get below 0: it must not block a change of state."""

    objects = ParkedOrigins()

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["group", "queue", "handler", "type", "handled"], name="rmq_origin_once"),
        )

    def __str__(self) -> str:
        return f"{self.queue} {self.handler} {self.type} {self.count}"


class State(models.TextChoices):
    PARKED = "parked", _("Parked")
    ON_HOLD = "on_hold", _("On hold")
    REQUEUEING = "requeueing", _("Requeueing")
    REQUEUED = "requeued", _("Requeued, waiting for outcome")
    PROCESSED = "processed", _("Processed")
    DISCARDED = "discarded", _("Discarded")


OPEN = (State.PARKED, State.ON_HOLD)
"""States in which an operator has to decide."""
UNRESOLVED = (*OPEN, State.REQUEUEING, State.REQUEUED)
"""States that retention never purges."""
RESOLVED = (State.PROCESSED, State.DISCARDED)

COUNTED_AS: Mapping[str, str] = {
    State.PARKED: "parked",
    State.ON_HOLD: "parked",
    State.REQUEUEING: "requeued",
    State.REQUEUED: "requeued",
    State.PROCESSED: "processed",
    State.DISCARDED: "discarded",
}
"""The counter of a group that counts messages in this state."""


class DiscardCategory(models.TextChoices):
    """The reason for a discard, as one of a few categories. A resolution begins with it, and may have a remark."""

    DUPLICATE = "duplicate", _("Duplicate")
    CANCELLED = "cancelled", _("Cancelled by the customer")
    ELSEWHERE = "handled elsewhere", _("Handled elsewhere")
    BAD_DATA = "bad data", _("Bad data")
    TEST = "test", _("Test")
    OTHER = "other", _("Other")


DONE_OTHERWISE = (DiscardCategory.ELSEWHERE, DiscardCategory.DUPLICATE)
"""Reasons by which another message, or another way, has done what the message requests."""
NOBODY_DID_IT = (DiscardCategory.BAD_DATA, DiscardCategory.TEST)
"""Reasons that do not say that what the message requests was done, or is not wanted."""
FOR_ANOTHER = (DiscardCategory.BAD_DATA, DiscardCategory.DUPLICATE)
"""Reasons to discard one message in favour of another with its key, which is to be sent."""


def discarded_for(reasons: Collection[DiscardCategory]) -> Q:
    """Match the messages whose last discard had one of these reasons, whether or not it was undone."""
    return reduce(or_, (Q(resolution__startswith=one.value) for one in reasons))


def name_of(number: int, business_key: str, message_id: str) -> str:
    """Return what people call a message: its first business key, else its id, else its number."""
    return business_key or message_id or f"#{number}"


class ParkedMessage(models.Model):
    """One parked message; if it fails again after a requeue, the same row is opened again."""

    identity = models.CharField(_("identity"), max_length=160, editable=False)
    state = models.CharField(_("status"), max_length=12, choices=State.choices, default=State.PARKED)
    group = models.ForeignKey(
        ErrorGroup, on_delete=models.PROTECT, related_name="messages", db_index=False, verbose_name=_("group")
    )

    message_id = models.CharField(_("message id"), max_length=255, blank=True)
    correlation_id = models.CharField(_("correlation id"), max_length=255, blank=True)
    type = models.CharField(_("message type"), max_length=255, blank=True)
    business_key = models.CharField(_("business key"), max_length=255, blank=True)
    """The first of its business keys, for lists."""
    handler = models.CharField(_("handler"), max_length=255, blank=True)
    queue = models.CharField(_("queue"), max_length=255, blank=True)
    parked_in = models.CharField(_("parked in"), max_length=255)
    exchange = models.CharField(_("exchange"), max_length=255, blank=True)
    routing_key = models.CharField(_("routing key"), max_length=255, blank=True)

    body = models.BinaryField(_("body"))
    size = models.PositiveIntegerField(_("size"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    content = models.BigIntegerField(null=True, editable=False)
    """A number for its queue, type, first business key and body, as edited last; None without a business key."""
    has_siblings = models.BooleanField(db_default=False, default=False, editable=False)
    """True if another message has, or had, the same content: only then it is compared with others."""
    properties = models.BinaryField(_("properties"))
    """The AMQP properties as encoded bytes, decoded only to show or send them."""
    content_type = models.CharField(_("content type"), max_length=255, blank=True)
    content_encoding = models.CharField(_("content encoding"), max_length=255, blank=True)

    by = models.CharField(_("parked by"), max_length=10)
    reason = models.CharField(_("reason"), max_length=64)
    detail = models.TextField(_("detail"), blank=True)
    error = models.CharField(_("error"), max_length=255, blank=True)
    error_text = models.TextField(_("error text"), blank=True)
    summary = models.TextField(_("summary of the attempts"), blank=True)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    traceparent = models.CharField(max_length=55, blank=True, editable=False)
    """The W3C trace context of the attempt after which it was parked, if a hook has set one."""
    cycle = models.PositiveIntegerField(_("cycle"), default=1)
    """The number of times that the message was sent to its queue: 1 before its first requeue."""
    published_again = models.BooleanField(db_default=False, default=False, editable=False)
    """True if it was requeued before, but what was parked last is a copy that its sender published again."""
    version = models.PositiveIntegerField(_("version"), default=1)
    """The version of the body: above 1 after an edit."""
    revision = models.PositiveIntegerField(default=1, editable=False)
    """Increases with every change of the row; an action on an older revision is refused."""
    copies = models.PositiveIntegerField(_("copies"), default=1)
    """The number of parked copies that arrived; a copy that was delivered twice counts once."""
    copy = models.CharField(max_length=64, editable=False)
    """The digest of the parked copy that arrived last."""

    published_at = models.DateTimeField(_("published"), null=True, blank=True)
    failed_at = models.DateTimeField(_("first failed"), null=True, blank=True)
    parked_at = models.DateTimeField(_("parked"))
    recorded_at = models.DateTimeField(_("recorded"))
    reopened_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When it was last parked again without arriving: restored, taken off hold, or given back by a requeue run."""
    held_until = models.DateTimeField(_("on hold until"), null=True, blank=True)
    hold_reason = models.CharField(_("reason for the hold"), max_length=255, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True, editable=False)
    """Until this time a process is requeueing the message; afterwards it is unknown if the message was sent."""
    requeued_at = models.DateTimeField(_("requeued"), null=True, blank=True)
    requeued_by = models.CharField(_("requeued by"), max_length=150, blank=True)
    succeeded_at = models.DateTimeField(_("a copy succeeded"), null=True, blank=True)
    """The time at which a copy of the message, perhaps an older one, was handled."""
    discarded_at = models.DateTimeField(_("discarded"), null=True, blank=True)
    """The time at which an operator discarded it, also after it arrived again; None once that was undone."""
    restored = models.BooleanField(db_default=False, default=False, editable=False)
    """True if its discard was undone, by whose reason what it requests may have been done, or is not wanted."""
    unconfirmed = models.BooleanField(_("may have been delivered"), default=False)
    """True if the last requeue was not confirmed: a copy may be in flight although the message is open."""
    unacked = models.BooleanField(db_default=False, default=False, editable=False)
    """True if a consumer had it and did not acknowledge it, as one that is killed: it may have done its work."""
    resolved_at = models.DateTimeField(_("resolved"), null=True, blank=True)
    resolution = models.CharField(_("reason for the discard"), max_length=255, blank=True)
    erased_at = models.DateTimeField(_("erased"), null=True, blank=True)
    erased_by = models.CharField(_("erased by"), max_length=150, blank=True)
    """Who emptied the body, the headers, the keys and all texts of the message for good."""

    class Meta:
        verbose_name = _("parked message")
        verbose_name_plural = _("parked messages")
        default_permissions = ("view",)
        permissions = (
            ("view_payload", _("Can see message bodies and headers")),
            ("reveal_field", _("Can reveal a masked field")),
            ("view_traceback", _("Can see tracebacks")),
            ("requeue", _("Can requeue messages")),
            ("bulk_requeue", _("Can requeue many messages at once")),
            ("edit_requeue", _("Can edit a message and requeue it")),
            ("bulk_edit", _("Can edit many messages at once")),
            ("discard", _("Can discard and restore messages")),
            ("hold", _("Can hold messages")),
            ("export", _("Can export messages")),
        )
        # unique=True would add a second PostgreSQL index, for LIKE. Meta.indexes covers foreign keys without db_index.
        constraints = (models.UniqueConstraint(fields=["identity"], name="rmq_msg_identity"),)
        indexes = (
            models.Index(fields=["state", "-parked_at", "-id"], name="rmq_msg_state"),
            models.Index(fields=["group", "state", "-parked_at", "-id"], name="rmq_msg_group"),
            models.Index(fields=["queue", "state", "-parked_at", "-id"], name="rmq_msg_queue"),
            models.Index(fields=["type", "state", "-parked_at", "-id"], name="rmq_msg_type"),
            models.Index(fields=["business_key", "state"], name="rmq_msg_key"),
            models.Index(fields=["state", "reason"], name="rmq_msg_reason"),
            models.Index(fields=["state", "cycle"], name="rmq_msg_cycle"),
            models.Index(fields=["state", "requeued_at"], name="rmq_msg_requeued"),
            models.Index(fields=["state", "succeeded_at"], name="rmq_msg_succeeded"),
            models.Index(fields=["-parked_at", "-id", "group"], name="rmq_msg_parked"),
            models.Index(fields=["message_id"], name="rmq_msg_id", opclasses=["varchar_pattern_ops"]),
            models.Index(fields=["correlation_id"], name="rmq_msg_correlation"),
            models.Index(fields=["resolved_at"], name="rmq_msg_resolved"),
            models.Index(fields=["has_siblings", "content"], name="rmq_msg_siblings"),
            models.Index(fields=["unacked", "state", "group", "queue"], name="rmq_msg_unacked"),
        )

    def __str__(self) -> str:
        return name_of(self.pk, self.business_key, self.message_id)

    @property
    def said(self) -> str:
        """What its error says; without one, what its handler says who parked it. The expression is ``SAID``."""
        explained = not self.error and self.reason == Reason.REQUESTED and self.detail != UNEXPLAINED
        return self.detail if explained else self.error_text

    @property
    def failure(self) -> str:
        """The error, or the reason in words, and what it says."""
        return ": ".join(filter(None, (self.error or reason_text(self.reason), self.said)))

    @property
    def open(self) -> bool:
        """True if an operator has to decide."""
        return self.state in OPEN

    @property
    def handled_anyway(self) -> bool:
        """True if a copy was handled although an operator has to decide, or had decided against it."""
        if self.succeeded_at is None:
            return False
        discarded = self.resolved_at if self.state == State.DISCARDED else None
        return self.open or (discarded is not None and self.succeeded_at > discarded)

    @property
    def came_back(self) -> bool:
        """True if the message arrived again after an operator had discarded it."""
        return self.discarded_at is not None and self.state != State.DISCARDED

    @property
    def parked_cycle(self) -> int:
        """The cycle that ended in the parked queue: not the present one if the message was requeued after it."""
        if self.published_again:
            return 1
        return self.cycle - 1 if self.requeued_since else self.cycle

    @property
    def requeued_since(self) -> bool:
        """True if the message was requeued after it was parked last."""
        return self.requeued_at is not None and self.requeued_at > self.parked_at


KEY_LENGTH = 255


def folded(key: str) -> str:
    """Return a key as it is compared if upper and lower case are ignored."""
    return key.casefold()[:KEY_LENGTH]


class FoldedValue(models.CharField):  # type: ignore[type-arg]  # it is generic in the stubs only
    """The row's ``value``, folded."""

    def pre_save(self, model_instance: Any, add: bool) -> str:  # noqa: FBT001 - Django's signature
        text = folded(model_instance.value)
        setattr(model_instance, self.attname, text)
        return text

    def deconstruct(self) -> tuple[str, str, Any, Any]:
        """Return a plain column for migrations."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


class BusinessKey(models.Model):
    """A business key by which a message is found, such as the number of a payment or an account."""

    message = models.ForeignKey(ParkedMessage, on_delete=models.CASCADE, related_name="keys", db_index=False)
    value = models.CharField(_("business key"), max_length=KEY_LENGTH)
    folded = FoldedValue(max_length=KEY_LENGTH, editable=False)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["message", "value"], name="rmq_key_once"),)
        indexes = (
            models.Index(fields=["value"], name="rmq_key_value"),
            # Only with this class PostgreSQL finds texts by how they begin; other databases ignore it.
            models.Index(fields=["folded"], name="rmq_key_folded", opclasses=["varchar_pattern_ops"]),
        )

    def __str__(self) -> str:
        return self.value


class MessageVersion(models.Model):
    """An edited body; the original stays in the parked message as version 1."""

    message = models.ForeignKey(ParkedMessage, on_delete=models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField(_("version"))
    body = models.BinaryField(_("body"))
    properties = models.BinaryField(_("properties"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    at = models.DateTimeField(_("stored"))
    by = models.CharField(_("by"), max_length=150)
    reason = models.CharField(_("reason"), max_length=255)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["message", "number"], name="rmq_version_once"),)

    def __str__(self) -> str:
        return f"v{self.number}"


class KeyList(models.Model):
    """A list of keys that an operator pasted, stored so that a selection by it stays the same and can be looked up."""

    created_at = models.DateTimeField(_("created"))
    by = models.CharField(_("by"), max_length=150)
    by_key = models.CharField(_("account"), max_length=64, blank=True)
    """The account of the list's owner; empty if it was made on the command line."""
    count = models.PositiveIntegerField()
    kept = models.BooleanField(default=False)
    """True if an action refers to the list. Other lists are deleted after two days."""

    class Meta:
        default_permissions = ()
        indexes = (models.Index(fields=["kept", "created_at"], name="rmq_keylist_kept"),)

    def __str__(self) -> str:
        return f"#{self.pk}"


class ListedKey(models.Model):
    """A key of a list, with one row for each message that it matched when the list was stored."""

    list = models.ForeignKey(KeyList, on_delete=models.CASCADE, related_name="keys", db_index=False)
    place = models.PositiveIntegerField()
    value = models.CharField(_("business key"), max_length=255)
    message = models.PositiveBigIntegerField(null=True)
    """The id of a message, without a foreign key because the list outlives its messages."""

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["list", "place", "message"], name="rmq_listed_once"),)
        indexes = (models.Index(fields=["list", "value"], name="rmq_listed_value"),)

    def __str__(self) -> str:
        return self.value


class Attempt(models.Model):
    """One attempt that failed, or that succeeded after failures, or as one of several deliveries, known or possible.

    An attempt belongs to a message by its identity, without a foreign key, because attempts are written long before
    the message is parked.
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
    interrupted = models.BooleanField(_("parking interrupted"), db_default=False, default=False)
    """True if its message was to be parked and was not, as in an outage: the broker delivered the message again."""
    redelivered = models.BooleanField(_("delivered more than once"), db_default=False, default=False)
    """True if another process had the message before and did not settle it, or gets it because this one was cut off."""
    published_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When a message that was delivered more than once says to have been published."""
    wait = models.FloatField(_("waits"), default=0)
    next_at = models.DateTimeField(_("next attempt"), null=True, blank=True)
    reason = models.CharField(_("reason"), max_length=64, blank=True)
    error = models.CharField(_("error"), max_length=255, blank=True)
    error_text = models.TextField(_("error text"), blank=True)
    chain = models.JSONField(_("causes"), default=list)
    """The exceptions, newest first: class, text and frames of each; the project's own frames are marked."""
    logs = models.TextField(_("log lines"), blank=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=64, blank=True)
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process"))
    thread = models.CharField(_("thread"), max_length=100)
    deploy = models.CharField(_("version of the project"), max_length=100, blank=True)
    traceparent = models.CharField(max_length=55, blank=True, editable=False)
    """The W3C trace context of the attempt, if a hook has set one."""

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ()
        indexes = (
            models.Index(fields=["identity", "started_at", "id"], name="rmq_attempt_identity"),
            models.Index(fields=["next_at"], name="rmq_attempt_next"),
            models.Index(fields=["started_at"], name="rmq_attempt_started"),
            models.Index(fields=["redelivered", "started_at"], name="rmq_attempt_again"),
            models.Index(fields=["fingerprint", "-started_at"], name="rmq_attempt_group"),
        )

    def __str__(self) -> str:
        return f"#{self.number} {self.verdict}"

    @property
    def failure(self) -> str:
        """The error and what it says, or only that: a handler may park a message without an error."""
        return ": ".join(filter(None, (self.error, self.error_text)))

    @property
    def process(self) -> str:
        """The process that made it, as its heartbeats name it."""
        return f"{self.host}:{self.pid}"

    @property
    def ended_at(self) -> datetime:
        return self.started_at + timedelta(seconds=self.seconds)


class AttemptName(models.Model):
    """A message id or business key of a message that was to be tried, or delivered, again: a search finds it by this.

    Written once for a message, before it is tried again. It leads to the attempts by their identity, and these to it.
    """

    identity = models.CharField(max_length=160)
    value = models.CharField(max_length=KEY_LENGTH)
    folded = models.CharField(max_length=KEY_LENGTH)
    at = models.DateTimeField()
    """When its attempt began: it is deleted with the attempts of that time."""

    class Meta:
        default_permissions = ()
        indexes = (
            models.Index(fields=["folded"], name="rmq_attempt_name", opclasses=["varchar_pattern_ops"]),
            models.Index(fields=["identity"], name="rmq_attempt_names"),
        )

    def __str__(self) -> str:
        return self.value


def behind(column: str, at: datetime, tie: str, last: object) -> Q:
    """Return the filter for the rows after the last row of a page, sorted by ``column`` and then by ``tie``."""
    # The first condition is redundant, but with it every database starts at the right place of its index.
    return Q(**{f"{column}__gte": at}) & (Q(**{f"{column}__gt": at}) | Q(**{f"{tie}__gt": last}))
