"""The audit log: append-only rows, each sealed with the seal of the row before it."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_rmq_retry.models.approvals import GatedAct
from django_rmq_retry.models.parked import KEY_LENGTH, FoldedValue

SEALED = (
    *("number", "actor_name", "actor_key", "behalf", "message", "first_message", "last_message", "group", "run"),
    *("count", "ip", "source", "digest", "previous"),
)
"""The columns whose values are sealed as they are; time and action are sealed in a fixed format."""
MESSAGES = "messages"
"""The fact that names several messages, as ranges of their ids; an erasure keeps it, and the seal covers it."""
GROUPS = "groups"
"""The fact that names several error groups, each with how many of the messages; an erasure keeps it, too."""
PROCESSES = "processes"
"""The fact that names the processes of which an operator says that they have ended."""


class Action(models.TextChoices):
    REQUEUE = "requeue", pgettext_lazy("action", "Requeue")
    EDIT = "edit", pgettext_lazy("action", "Edit")
    DISCARD = "discard", pgettext_lazy("action", "Discard")
    RESTORE = "restore", pgettext_lazy("action", "Restore")
    HOLD = "hold", pgettext_lazy("action", "Hold")
    UNHOLD = "unhold", pgettext_lazy("action", "Take off hold")
    UNBLOCK = "unblock", pgettext_lazy("action", "Unblock key")
    NOTE = "note", pgettext_lazy("action", "Note")
    MUTE = "mute", pgettext_lazy("action", "Mute")
    REVEAL = "reveal", pgettext_lazy("action", "Reveal")
    DOWNLOAD = "download", pgettext_lazy("action", "Download")
    EXPORT = "export", pgettext_lazy("action", "Export")
    IMPORT = "import", pgettext_lazy("action", "Import")
    PURGE = "purge", pgettext_lazy("action", "Purge")
    ERASE = "erase", pgettext_lazy("action", "Erase")
    PAUSE = "pause", pgettext_lazy("action", "Pause requeue run")
    RESUME = "resume", pgettext_lazy("action", "Resume requeue run")
    CHANGE_RATE = "slow", pgettext_lazy("action", "Change rate")  # as the sealed rows have it
    STOP = "stop", pgettext_lazy("action", "Stop requeue run")
    ASK = "ask", pgettext_lazy("action", "Ask for approval")
    APPROVE = "approve", pgettext_lazy("action", "Approve")
    REJECT = "reject", pgettext_lazy("action", "Reject")
    CHECK = "check", pgettext_lazy("action", "Checked")


ELSEWHERE = {
    (Action.PAUSE, "until"): pgettext_lazy("action", "Pause queue"),
    (Action.RESUME, "paused_by"): pgettext_lazy("action", "Resume queue"),
    (Action.REQUEUE, "outbox"): pgettext_lazy("action", "Retry outbox message"),
    (Action.REQUEUE, "retries_of"): pgettext_lazy("action", "Send waiting retries"),
}
"""Names for the same actions on queues and outbox rows; a fact of the given name identifies them."""
WITHDRAW = pgettext_lazy("action", "Withdraw")


def both_names(name: str, approver: object) -> str:
    """Return the name of an operator and, if a second person approved the act, that person's."""
    if not approver:
        return name
    return str(_("%(name)s, approved by %(approver)s") % {"name": name, "approver": approver})


class InsertOnly(models.QuerySet["OperatorAction"]):
    """A queryset that refuses to change or delete recorded actions."""

    def update(self, **_changes: Any) -> NoReturn:
        raise HistoryIsFixed("Recorded actions of operators cannot be changed.")

    def delete(self) -> NoReturn:
        raise HistoryIsFixed("Recorded actions of operators are deleted only by the command rmq_audit purge.")

    def forget(self, using: str) -> int:
        """Empty the texts of these actions and the facts that may hold content; what was sealed remains provable."""
        for action in self.using(using):
            row: models.QuerySet[OperatorAction] = models.QuerySet(OperatorAction, using=using).filter(pk=action.pk)
            row.update(subject="", reason="", facts=action.lasting, salt="")
        return len(self)

    def bulk_update(self, *_args: Any, **_changes: Any) -> NoReturn:
        raise HistoryIsFixed("Recorded actions of operators cannot be changed.")


class HistoryIsFixed(Exception):
    """Raised by code that tries to change or delete a recorded action."""


class OperatorAction(models.Model):
    """One action of one operator; the actor's name is kept after the account is deleted."""

    number = models.PositiveBigIntegerField(_("number"), unique=True)
    at = models.DateTimeField(_("at"))
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    actor_name = models.CharField(_("by"), max_length=150)
    actor_key = models.CharField(_("account"), max_length=64, blank=True)
    behalf = models.CharField(_("on behalf of"), max_length=255, blank=True)
    """For an action on the command line: the operating system's user, and the host name."""
    action = models.CharField(_("action"), max_length=12, choices=Action.choices)
    reason = models.CharField(_("reason"), max_length=255, blank=True)
    message = models.PositiveBigIntegerField(_("message"), null=True, blank=True)
    first_message = models.PositiveBigIntegerField(null=True, blank=True, editable=False)
    last_message = models.PositiveBigIntegerField(null=True, blank=True, editable=False)
    """The lowest and highest id of several messages; the fact "messages" has all their ids, as ranges."""
    group = models.PositiveBigIntegerField(_("group"), null=True, blank=True)
    run = models.PositiveBigIntegerField(_("requeue run"), null=True, blank=True)
    subject = models.CharField(_("subject"), max_length=255, blank=True)
    """The message's own id or business key: it stays readable after the parked message is deleted."""
    count = models.PositiveIntegerField(_("messages"), default=1)
    facts = models.JSONField(_("facts"), default=dict)
    """Details by name, such as selection, rate, digests before and after, masked difference and result."""
    ip = models.GenericIPAddressField(_("IP address"), null=True, blank=True)
    source = models.CharField(_("source"), max_length=10, default="code")
    salt = models.CharField(max_length=32, blank=True, editable=False)
    """Random, so that nobody can guess an erased text by its digest; empty if the texts were erased."""
    digest = models.CharField(max_length=64, editable=False)
    """SHA-256 over the salt, subject, reason and facts. It is sealed in their place, so that they can be erased."""
    previous = models.CharField(max_length=64, editable=False)
    seal = models.CharField(max_length=64, editable=False)
    """SHA-256 over this row and the seal of the row before it."""

    objects = InsertOnly.as_manager()

    class Meta:
        verbose_name = _("action")
        verbose_name_plural = _("audit log")
        default_permissions = ("view",)
        permissions = (("view_all_operatoraction", _("Can view the actions of other operators")),)
        indexes = (
            models.Index(fields=["message", "-number"], name="rmq_action_message"),
            models.Index(fields=["last_message", "first_message"], name="rmq_action_several"),
            models.Index(fields=["actor", "-number"], name="rmq_action_actor"),
            models.Index(fields=["group", "-number"], name="rmq_action_group"),
            models.Index(fields=["run", "-number"], name="rmq_action_run"),
        )

    def __str__(self) -> str:
        return f"{self.number} {self.get_action_display()} {self.subject}".strip()

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise HistoryIsFixed("Recorded actions of operators cannot be changed.")
        super().save(*args, **kwargs)

    def delete(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise HistoryIsFixed("Recorded actions of operators are deleted only by the command rmq_audit purge.")

    @property
    def details(self) -> Mapping[str, Any]:
        """The facts by name; empty if the row was written by other software and holds something else."""
        return self.inside()

    @property
    def who(self) -> str:
        """The operator; of an approved act, also who approved it."""
        return both_names(self.actor_name, self.details.get("approved_by"))

    @property
    def more_left_out(self) -> int:
        """How many messages its checks left out, which its count does not have."""
        found = self.details.get("left_out")
        return found if isinstance(found, int) else 0

    def inside(self, *names: str) -> Mapping[str, Any]:
        """Follow these names into the facts; empty if they lead nowhere, or to something else in a row of others."""
        found: object = self.facts
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def get_action_display(self) -> str:  # type: ignore[no-redef]  # Django keeps a method that the class defines
        """Return the name of the action, with its object if that is a queue, an outbox row or another act."""
        labels = (name for (action, fact), name in ELSEWHERE.items() if action == self.action and fact in self.details)
        name = str(next(labels, WITHDRAW if self.withdraws else dict(Action.choices).get(self.action, self.action)))
        return f"{name}: {self._act.label}" if self._act else name

    @property
    def rates(self) -> list[float]:
        """What a change of a run's rate changed it from, and to."""
        known = [self.inside(name).get("rate") for name in ("before", "after")]
        return [rate for rate in known if isinstance(rate, (int, float))] if self.action == Action.CHANGE_RATE else []

    @property
    def withdraws(self) -> bool:
        """True if whoever asked for an act ended the request."""
        return self.action == Action.REJECT and self.details.get("asked_by") == self.actor_name

    @property
    def _act(self) -> GatedAct | None:
        """The act that was asked for, approved or rejected."""
        act = self.details.get("act") if self.action in (Action.ASK, Action.APPROVE, Action.REJECT) else None
        return GatedAct(act) if act in GatedAct.values else None

    def close(self) -> None:
        """Seal the row as it is now."""
        self.salt = secrets.token_hex(16)
        self.digest = self.compute_digest()
        self.seal = self.compute_seal()

    def compute_digest(self) -> str:
        """Return the SHA-256 of what an erasure empties, with the salt."""
        return _sha256({name: getattr(self, name) for name in ("salt", "subject", "reason", "facts")})

    def compute_seal(self) -> str:
        """Return the SHA-256 of the values and the seal before them, without the account, which may be deleted."""
        at = self.at.astimezone(timezone.get_fixed_timezone(0)).isoformat(timespec="milliseconds")
        more = {"at": at, "action": str(self.action), "lasting": self.lasting}
        return _sha256({name: getattr(self, name) for name in SEALED} | more)

    @property
    def lasting(self) -> Mapping[str, Any]:
        """The facts that an erasure keeps: numbers of messages and error groups, and no content."""
        kinds = {MESSAGES: str, GROUPS: dict}
        return {name: self.details[name] for name, kind in kinds.items() if isinstance(self.details.get(name), kind)}

    @property
    def groups(self) -> Mapping[int, int]:
        """The error groups of an action on several, each with its number of messages."""
        known = self.lasting.get(GROUPS, {}).items()
        return {int(one): count for one, count in known if one.isdecimal() and isinstance(count, int)}

    @property
    def erased(self) -> bool:
        """True if its texts are gone; the rest of the row is sealed as before."""
        return not self.salt

    @property
    def intact(self) -> bool:
        """True if the row is as it was written, or as an erasure leaves it."""
        if self.seal != self.compute_seal():
            return False
        if self.erased:
            return not (self.subject or self.reason) and self.facts == self.lasting
        return self.digest == self.compute_digest()

    @property
    def queue(self) -> str:
        """The queue that was paused or resumed, or whose breaker somebody asked to close; else an empty string."""
        of_queues = ((Action.PAUSE, "until"), (Action.RESUME, "paused_by"))
        of_queue = any(action == self.action and fact in self.details for action, fact in of_queues)
        return self.subject if of_queue or (self._act and not self._act.of_messages) else ""

    @property
    def messages(self) -> int | None:
        """The number of messages that it was about; None if it was about a queue, or about processes."""
        return None if self.queue or PROCESSES in self.details else self.count


def _sha256(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class FormerName(models.Model):
    """A key or message id of a message without a record: the audit log finds the actions on it.

    A deleted record that was part of requeue runs has a row for each of them.
    """

    value = models.CharField(max_length=KEY_LENGTH)
    folded = FoldedValue(max_length=KEY_LENGTH, editable=False)
    message = models.PositiveBigIntegerField(null=True)
    """The number of the record; None for a message that had none."""
    run = models.PositiveBigIntegerField(null=True)
    action = models.PositiveBigIntegerField(null=True)
    """The number of the action that discarded it from the outbox, or says that it was checked."""
    deleted_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        indexes = (
            models.Index(fields=["folded"], name="rmq_former_folded", opclasses=["varchar_pattern_ops"]),
            models.Index(fields=["message"], name="rmq_former_message"),
        )

    def __str__(self) -> str:
        return self.value


class AuditHead(models.Model):
    """The end of the chain: a single row. Each writer updates it first, so that actions are written one by one."""

    number = models.PositiveBigIntegerField(default=0)
    seal = models.CharField(max_length=64, default="")
    checked = models.JSONField(default=list, db_default=[])
    """The doubts that operators have checked, the newest last: a digest of each, and the number of the action."""

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.number}"


class LiveStatus(models.Model):
    """The live status page, as a model without a table, so that the admin lists it and can check its permission."""

    class Meta:
        managed = False
        verbose_name = _("live status")
        verbose_name_plural = _("live status")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(_("live status"))
