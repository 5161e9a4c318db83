"""The rules of health: for each problem its severity, consequence, repair and page, in the order of their harm.

``problems`` finds out which of them apply; commands, the admin and the alert rules show them.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_rmq_retry.arguments import plural

VANISHED = timedelta(seconds=30)
"""The time without a heartbeat after which a process counts as vanished."""
OUTBOX_OVERDUE = timedelta(minutes=5)
"""The age from which a message in the outbox is a problem: a relay sends within seconds."""
RUN_IDLE = timedelta(minutes=5)
"""The time without progress from which a requeue run is a problem."""
PROBE_OVERDUE = timedelta(minutes=1)
"""The time past its due time after which a probe that no consumer has begun means that the queue has no consumers."""
PARKED_TOO_LONG = timedelta(hours=4)
"""The age from which a parked message is a problem."""
PAUSED_TOO_LONG = timedelta(hours=4)
"""The time after which a pause may be forgotten."""
HALTED_TOO_LONG = timedelta(minutes=10)
"""The time after which a halted queue is an error."""
CLOCKS_APART = timedelta(seconds=2)
"""The difference of two clocks from which it is reported; from ``server.TOLERANCE`` on it is an error."""
NEARLY_FULL = 0.8
"""The share of a limit from which blocked messages are a warning."""
SLOW_SECONDS = 1.0
"""Seconds for one round trip from which the broker counts as slow."""

LOGIN = "RMQ_RETRY['URL']"
API = 'RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"]'


class Severity(IntEnum):
    """How much a problem matters; ``rmq_status --check`` fails at errors."""

    INFORMATION = 0
    WARNING = 1
    ERROR = 2


class Area(StrEnum):
    """A part of the installation, in the order in which ``rmq_doctor`` reports them."""

    SETTINGS = "settings"
    BROKER = "broker"
    POLICIES = "policies"
    PERMISSIONS = "permissions"
    TOPOLOGY = "topology"
    CONSUMERS = "consumers"
    DATABASE = "database"
    CLOCKS = "clocks"
    PARKED = "parked"


class Code(StrEnum):
    """What can be wrong, the most harmful first."""

    BROKER_AWAY = "broker_away"
    BROKER_REFUSES = "broker_refuses"
    BROKER_NOT_RUNNING = "broker_not_running"
    BROKER_BLOCKS = "broker_blocks"
    DATABASE_UNUSABLE = "database_unusable"
    UNMIGRATED = "unmigrated"
    UNRECORDED = "unrecorded"
    RIGHT_LACKING = "right_lacking"
    POLICY_HARMS = "policy_harms"
    SMALL_FRAMES = "small_frames"
    CARRIER_UNSUPPORTED = "carrier_unsupported"
    BROKER_OLD = "broker_old"
    DEFINITION_MISSING = "definition_missing"
    EXTERNAL_MISSING = "external_missing"
    DIFFERS = "differs"
    NOT_DECLARABLE = "not_declarable"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    HALTED_LONG = "halted_long"
    NO_CONSUMER = "no_consumer"
    FEW_CONSUMERS = "few_consumers"
    BREAKER_OPEN = "breaker_open"
    FULL = "full"
    DEAD_LETTERS = "dead_letters"
    TOO_EARLY = "too_early"
    MOVE_LEFT = "move_left"
    INTERRUPTED = "interrupted"
    ABANDONED = "abandoned"
    OUTBOX_FAILED = "outbox_failed"
    OUTBOX_OVERDUE = "outbox_overdue"
    CLOCKS_WRONG = "clocks_wrong"
    BLOCKED_FULL = "blocked_full"
    TOO_MANY_PARKED = "too_many_parked"
    PARKED_LONG = "parked_long"
    HALTED = "halted"
    NOT_RECORDED = "not_recorded"
    VANISHED = "vanished"
    DISCONNECTED = "disconnected"
    GROWS = "grows"
    GROW_MORE = "grow_more"
    RUN_PAUSED = "run_paused"
    RUN_WAITS = "run_waits"
    RUN_IDLE = "run_idle"
    PAUSED_LONG = "paused_long"
    BLOCKED_NEAR = "blocked_near"
    BACKLOG = "backlog"
    IDLE = "idle"
    HELD = "held"
    UNREAD = "unread"
    VERSIONS = "versions"
    CLOCKS_APART = "clocks_apart"
    BROKER_SLOW = "broker_slow"
    BROKER_UNTESTED = "broker_untested"
    API_FAILS = "api_fails"
    MANY_DEAD_LETTER_PROCESSES = "many_dead_letter_processes"
    PARKED = "parked"
    PAUSED = "paused"
    RETURNING = "returning"
    HANDED_OVER = "handed_over"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is said about one problem; the texts are templates for the values of a ``Problem``."""

    area: Area
    severity: Severity = Severity.ERROR
    row: Any = ""
    """Its words in a table of queues, translated; empty if it is no problem of a single queue."""
    line: str = ""
    """Its words in ``rmq_status --check``; without them, the queue's name and its row."""
    text: str = ""
    """Its sentence in ``rmq_doctor``; without it, one of the queue's name and its row."""
    why: str = ""
    fix: str = ""
    """The command or the change that repairs it."""
    page: str = ""
    """The section of the documentation about it."""
    alerts: tuple[str, ...] = ()
    """The alert rules of ``docs/monitoring/alerts.yml`` that fire on it; they have the same page."""


_WARNING, _INFORMATION = Severity.WARNING, Severity.INFORMATION
_RUNBOOK = "operate/runbook.md#"
_LIMIT = "At the limit, messages of blocked keys stay unacked and slow down their queues."
_RESOLVE = "manage.py rmq_blocked list, then resolve the message that goes first of the oldest key."
_HALT = "It keeps its order: all later messages wait until its first message succeeds."
_SYNCHRONIZE = "Synchronize both by NTP: timedatectl status"
_CLOCKS = "Pauses, holds and leases last by the database's clock; above 5 min, nothing is deleted by age."
_AWAY: Mapping[str, Any] = {
    "area": Area.BROKER,
    "why": "No handler runs. Messages published inside a transaction wait in the outbox; others fail.",
    "page": _RUNBOOK + "the-broker-was-away",
}
_HALTED: Mapping[str, Any] = {
    "area": Area.PARKED,
    "line": "%(subject)s: halted for %(seconds).0f s, longer than %(limit)g s: %(error)s",
    "text": "Queue %(subject)r has been halted for %(span)s, attempt %(attempt)s: %(cause)s.",
    "why": _HALT,
    "fix": "Correct the cause of the error; the queue resumes with the next attempt that succeeds.",
    "page": _RUNBOOK + "a-line-has-halted",
    "alerts": ("RmqRetryQueueHalted",),
}
_PARKED: Mapping[str, Any] = {
    "area": Area.PARKED,
    "line": "the oldest parked message has waited %(seconds).0f s, longer than %(limit)g s",
    "text": "%(messages)s parked, the oldest %(span)s ago.",
    "why": "A parked message waits for an operator, and the limit is %(most)s.",
    "fix": "manage.py rmq_parked groups, then manage.py rmq_parked requeue --group N --canary",
    "page": _RUNBOOK + "payments-are-parked",
}
_PAUSED: Mapping[str, Any] = {
    "area": Area.PARKED,
    "text": "Queue %(subject)r has been paused for %(span)s%(by)s.",
    "why": "Its messages wait, and a pause of more than %(most)s may be forgotten.",
    "fix": "manage.py rmq_queue resume %(quoted)s",
    "page": _RUNBOOK + "a-queue-is-paused-or-its-breaker-is-open",
}
_BLOCKED: Mapping[str, Any] = {
    "area": Area.PARKED,
    "line": "%(count)d messages wait %(where)s, which reaches the limit %(setting)s",
    "text": "%(messages)s %(where)s, and the limit %(setting)s is %(limit)d.",
    "why": _LIMIT,
    "fix": _RESOLVE,
    "page": _RUNBOOK + "a-key-is-blocked",
}

RULES: Mapping[Code, Rule] = {
    Code.BROKER_AWAY: Rule(
        text="%(reason)s", fix=f"Start the broker, or correct {LOGIN}.", alerts=("RmqRetryBrokerDown",), **_AWAY
    ),
    Code.BROKER_REFUSES: Rule(
        text="The broker at %(subject)s refuses this project: %(reason)s.",
        fix=f"Correct {LOGIN}, or the user and its permissions on the broker.",
        **_AWAY,
    ),
    Code.BROKER_NOT_RUNNING: Rule(
        text="The embedded broker is not running.",
        fix="manage.py rmq_consume, which starts it too, or manage.py rmq_broker",
        **_AWAY,
    ),
    Code.BROKER_BLOCKS: Rule(
        area=Area.BROKER,
        text="The broker blocks all connections that publish: %(reason)s.",
        why="Publishes, retries and parked copies wait until its alarm is over; running handlers can still ack.",
        fix="Free memory or disk space on the broker: rabbitmq-diagnostics alarms",
    ),
    Code.DATABASE_UNUSABLE: Rule(
        area=Area.DATABASE,
        line="database: %(reason)s",
        text="The database %(subject)r cannot be used: %(reason)s.",
        why="Parked messages stay in their queues, and handlers that need the database fail.",
        fix="Start it, or correct DATABASES[%(subject)r] in the settings.",
        page=_RUNBOOK + "the-database-was-away",
        alerts=("RmqRetryDatabaseDown",),
    ),
    Code.UNMIGRATED: Rule(
        area=Area.DATABASE,
        text="Migrations of rmq_retry are not applied in %(subject)r: %(names)s.",
        why="This version of the package needs their tables to record, park and pause.",
        fix="manage.py migrate rmq_retry --database %(quoted)s",
    ),
    Code.UNRECORDED: Rule(
        area=Area.PARKED,
        text="The database refused %(messages)s, now in %(subject)r.",
        why="They are neither in the admin nor in rmq_parked.",
        fix="The header rmq-retry-unrecorded has the reason; afterwards move them to %(parked)r.",
    ),
    Code.RIGHT_LACKING: Rule(
        area=Area.PERMISSIONS,
        text="The user %(subject)r lacks the %(right)s right on %(names)s.",
        why="%(harm)s",
        fix="rabbitmqctl set_permissions -p %(vhost)s %(quoted)s CONFIGURE WRITE READ, with a %(pattern)s pattern "
        "that matches; list_user_permissions shows the present ones",
    ),
    Code.POLICY_HARMS: Rule(
        area=Area.POLICIES,
        text="%(setter)s sets %(key)s to %(value)s on %(names)s.",
        why="%(harm)s",
        fix="Exclude these queues from its pattern: rabbitmqctl list_policies -p %(vhost)s (or list_operator_policies)",
    ),
    Code.SMALL_FRAMES: Rule(
        area=Area.BROKER,
        text="The broker accepts frames of %(count)d bytes only.",
        why="A message with larger headers could not be retried or parked, so rmq_consume exits with code 4.",
        fix="Set frame_max = %(least)d in rabbitmq.conf.",
    ),
    Code.CARRIER_UNSUPPORTED: Rule(
        area=Area.BROKER,
        text="%(subject)s: %(reason)s",
        why="rmq_consume exits with code 4.",
        fix="Change via=… of this handler, or upgrade RabbitMQ.",
    ),
    Code.BROKER_OLD: Rule(
        area=Area.BROKER,
        text="%(subject)s is older than 3.10, the oldest supported version.",
        why="It lacks at-least-once dead-lettering, so a restart of the broker can lose waiting retries.",
        fix="Upgrade RabbitMQ.",
    ),
    Code.DEFINITION_MISSING: Rule(
        area=Area.TOPOLOGY,
        line="%(subject)s: it does not exist: manage.py rmq_declare",
        text="The broker lacks %(subject)s.",
        why="rmq_consume exits with code 4 without its queues; messages without a queue are returned or dropped.",
        fix="manage.py rmq_declare",
    ),
    Code.EXTERNAL_MISSING: Rule(
        area=Area.TOPOLOGY,
        line="%(subject)s: %(reason)s",
        text="%(title)s is external (existing=True), and the broker lacks it.",
        why="Messages that should pass through it are returned or dropped.",
        fix="Ask its owner to create it, or remove existing=True and run manage.py rmq_declare",
    ),
    Code.DIFFERS: Rule(
        area=Area.TOPOLOGY,
        line="%(subject)s: differs, %(reason)s",
        text="%(title)s differs from the code: %(reason)s.",
        why="The broker works by its own arguments: retries, parking or order may differ from the code.",
        fix="%(repair)s",
    ),
    Code.NOT_DECLARABLE: Rule(
        area=Area.TOPOLOGY,
        line="%(subject)s: %(reason)s",
        text="%(title)s cannot be declared: %(sentence)s.",
        why="rmq_declare leaves it out.",
        fix="Correct its definition; manage.py rmq_declare --plan checks it again.",
    ),
    Code.MISSING: Rule(
        area=Area.TOPOLOGY, row=_("it does not exist: manage.py rmq_declare"), fix="manage.py rmq_declare"
    ),
    Code.UNREADABLE: Rule(area=Area.TOPOLOGY, row="%(reason)s"),
    Code.HALTED_LONG: Rule(**_HALTED),
    Code.NO_CONSUMER: Rule(
        area=Area.CONSUMERS,
        row=_("no consumer reads this queue"),
        why="It has %(messages)s ready.",
        fix="Start manage.py rmq_consume%(which)s",
        page=_RUNBOOK + "a-queue-grows",
        alerts=("RmqRetryQueueWithoutConsumer",),
    ),
    Code.FEW_CONSUMERS: Rule(
        area=Area.CONSUMERS,
        row="%(count)d of at least %(least)d consumers",
        why="The limit was passed as --min-consumers.",
        fix="Start manage.py rmq_consume %(quoted)s",
    ),
    Code.BREAKER_OPEN: Rule(
        area=Area.PARKED,
        row="its breaker is open%(because)s",
        text="The breaker of queue %(subject)r has been open%(span)s%(cause)s.",
        why="A service that the handler needs is down, so the queue is paused; single probes continue.",
        fix="Restore the service; the queue resumes by itself, or at once with manage.py rmq_queue resume %(quoted)s",
        page=_RUNBOOK + "a-queue-is-paused-or-its-breaker-is-open",
        alerts=("RmqRetryBreakerOpen",),
    ),
    Code.FULL: Rule(
        area=Area.CONSUMERS,
        row=_("full: it rejects or drops messages"),
        why="Publishers get errors, or messages are removed.",
        fix="Start more consumers, or raise its max_length.",
    ),
    Code.DEAD_LETTERS: Rule(
        area=Area.CONSUMERS,
        row=ngettext_lazy(
            "%(count)d dead letter waits: its target queue is full or missing",
            "%(count)d dead letters wait: their target queue is full or missing",
            "count",
        ),
        why="They are delivered once the target accepts them.",
        fix="manage.py rmq_declare, or empty the target.",
    ),
    Code.TOO_EARLY: Rule(
        area=Area.CONSUMERS,
        row=_("a consumer reads it, so retries arrive too early"),
        why="Their back-off is lost, and attempts are used up.",
        fix="Stop the program that consumes it: rabbitmqctl list_consumers -p %(vhost)s",
    ),
    Code.MOVE_LEFT: Rule(
        area=Area.TOPOLOGY,
        text="A move of the messages of %(subject)r was interrupted, and %(aside)r holds them.",
        why="No handler gets them.",
        fix="manage.py rmq_declare --recreate %(quoted)s",
    ),
    Code.INTERRUPTED: Rule(
        area=Area.TOPOLOGY,
        row=ngettext_lazy(
            "a move of its messages was interrupted, %(count)d message waits: %(command)s",
            "a move of its messages was interrupted, %(count)d messages wait: %(command)s",
            "count",
        ),
        fix="%(command)s",
    ),
    Code.ABANDONED: Rule(
        area=Area.TOPOLOGY,
        row=ngettext_lazy(
            "abandoned, %(count)d message, no consumer: %(command)s",
            "abandoned, %(count)d messages, no consumer: %(command)s",
            "count",
        ),
        text="No handler reads queue %(subject)r any more, which has %(messages)s.",
        why="It was renamed or its handler was removed, and it has no consumer.",
        fix="%(command)s",
    ),
    Code.OUTBOX_FAILED: Rule(
        area=Area.DATABASE,
        line="%(messages)s in the outbox failed: manage.py rmq_relay list --failed",
        text="%(messages)s in the outbox failed.",
        why="The broker can never accept them as they are, so they are not sent.",
        fix="manage.py rmq_relay list --failed, then manage.py rmq_relay retry or discard",
        page=_RUNBOOK + "the-outbox-grows",
        alerts=("RmqRetryOutboxFailed",),
    ),
    Code.OUTBOX_OVERDUE: Rule(
        area=Area.DATABASE,
        line="the oldest message in the outbox has waited %(seconds).0f s, longer than %(limit)g s",
        text="%(messages)s in the outbox not sent, the oldest for %(span)s.",
        why="A relay sends within seconds, so none runs, or the broker refuses the message.",
        fix="Start manage.py rmq_consume or rmq_relay; manage.py rmq_relay list shows the last errors.",
        page=_RUNBOOK + "the-outbox-grows",
        alerts=("RmqRetryOutboxOld",),
    ),
    Code.CLOCKS_WRONG: Rule(
        area=Area.CLOCKS,
        line="clocks: %(difference)s Synchronize both by NTP.",
        text="%(difference)s",
        why=_CLOCKS,
        fix=_SYNCHRONIZE,
    ),
    Code.BLOCKED_FULL: Rule(**_BLOCKED),
    Code.TOO_MANY_PARKED: Rule(
        area=Area.PARKED,
        line="%(messages)s parked, more than %(limit)d",
        why="The limit was passed as --max-parked.",
        fix="manage.py rmq_parked groups",
    ),
    Code.PARKED_LONG: Rule(alerts=("RmqRetryMessageParkedTooLong",), **_PARKED),
    Code.HALTED: Rule(severity=_WARNING, **_HALTED),
    Code.NOT_RECORDED: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="No consumer records the %(messages)s in the parked queue %(subject)r.",
        why="They are neither in the admin nor in rmq_parked, so they cannot be requeued.",
        fix="Start manage.py rmq_consume, or manage.py rmq_consume --park-only",
        page=_RUNBOOK + "the-database-was-away",
        alerts=("RmqRetryParkedNotRecorded",),
    ),
    Code.VANISHED: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="%(consumers)s without a heartbeat for 30 s: %(names)s.",
        why="Each was killed, hangs, or cannot reach the database.",
        fix="Check rmq_consume on these hosts: journalctl, docker logs or kubectl logs.",
        page=_RUNBOOK + "a-consumer-restarts-again-and-again",
    ),
    Code.DISCONNECTED: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="Without a connection to the broker: %(names)s.",
        why="These consumers take no messages.",
        fix="Their logs name the reason: event=disconnected.",
        page=_RUNBOOK + "the-broker-was-away",
    ),
    Code.GROWS: Rule(
        area=Area.PARKED,
        severity=_WARNING,
        text="Error group %(subject)s grows: %(messages)s in the last 10 min (%(group)s).",
        why="As long as its cause persists, requeued messages fail again.",
        fix="manage.py rmq_parked list --group %(subject)s; correct the cause before you requeue.",
        page=_RUNBOOK + "payments-are-parked",
    ),
    Code.GROW_MORE: Rule(
        area=Area.PARKED,
        severity=_WARNING,
        text="Further error groups that grow more slowly: %(count)d.",
        why="As above.",
        fix="manage.py rmq_parked groups",
    ),
    Code.RUN_PAUSED: Rule(
        area=Area.PARKED,
        severity=_WARNING,
        text="Requeue run %(subject)s %(by)s%(explanation)s.",
        why="%(messages)s not sent yet.",
        fix="%(command)s --resume, or %(command)s --stop",
        page="operate/requeueing.md#while-a-requeue-run-is-active",
        alerts=("RmqRetryRequeueRunPaused",),
    ),
    Code.RUN_WAITS: Rule(
        area=Area.PARKED,
        severity=_WARNING,
        text="Requeue run %(subject)s waits%(explanation)s.",
        why="It sends nothing meanwhile.",
        fix="%(command)s follows it, %(command)s --stop ends it",
    ),
    Code.RUN_IDLE: Rule(
        area=Area.PARKED,
        severity=_WARNING,
        text="Requeue run %(subject)s has had no driver for %(span)s.",
        why="A consumer drives it, and none that reaches the database is running.",
        fix="Start manage.py rmq_consume, or drive it here: %(command)s",
    ),
    Code.PAUSED_LONG: Rule(severity=_WARNING, alerts=("RmqRetryQueuePaused",), **_PAUSED),
    Code.BLOCKED_NEAR: Rule(severity=_WARNING, alerts=("RmqRetryBlockedNearLimit",), **_BLOCKED),
    Code.BACKLOG: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="%(messages)s wait in %(subject)r for %(consumers)s%(rate)s.",
        why="Handlers are slower than publishers, or wait for a slow service.",
        fix="Start manage.py rmq_consume %(quoted)s on another machine too, unless the queue keeps an order.",
        page=_RUNBOOK + "a-queue-grows",
        alerts=("RmqRetryQueueGrows",),
    ),
    Code.IDLE: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="Queue %(subject)r has no consumer.",
        why="The next message to it will wait.",
        fix="Start manage.py rmq_consume %(quoted)s",
    ),
    Code.HELD: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="Queue %(subject)r has no consumer, but %(unacked)s.",
        why="A connection holds them; they return to the queue when it ends.",
        fix="rabbitmqctl list_channels -p %(vhost)s name connection messages_unacknowledged",
    ),
    Code.UNREAD: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        row=_("no consumer reads this queue"),
        text="Queue %(subject)r: no consumer reads this queue, and no handler of this project is for it.",
        why="It has %(messages)s ready.",
        fix="Start the program that reads it, or remove it from RMQ_RETRY['TOPOLOGY'] if none does.",
    ),
    Code.VERSIONS: Rule(
        area=Area.CONSUMERS,
        severity=_WARNING,
        text="Consumers run %(count)d versions of %(what)s: %(names)s.",
        why="After a deployment, a process that was not restarted handles messages with the old code.",
        fix="Restart the consumers of the old version.",
    ),
    Code.CLOCKS_APART: Rule(area=Area.CLOCKS, severity=_WARNING, text="%(difference)s", why=_CLOCKS, fix=_SYNCHRONIZE),
    Code.BROKER_SLOW: Rule(
        area=Area.BROKER,
        severity=_WARNING,
        text="%(reason)s",
        why="Each confirm and each ack takes as long.",
        fix="rabbitmq-diagnostics status",
    ),
    Code.BROKER_UNTESTED: Rule(
        area=Area.BROKER,
        severity=_WARNING,
        text="The broker is %(subject)s, which this package is not tested with.",
        why="Retries rely on RabbitMQ's dead-lettering.",
        fix="Use RabbitMQ; 3.10, 4.0 and 4.3 are tested.",
    ),
    Code.API_FAILS: Rule(
        area=Area.POLICIES,
        severity=_WARNING,
        text="Not looked at: %(reason)s.",
        why="Policies, bindings, rights and unacked messages are not visible.",
        fix=f"Correct {API}, or give its user the tag management.",
    ),
    Code.MANY_DEAD_LETTER_PROCESSES: Rule(
        area=Area.TOPOLOGY,
        severity=_WARNING,
        text="%(count)d quorum queues %(whose)s dead-letter at least once.",
        why="The broker restarts a process for each when it is updated. It gives up after too many at once, and "
        "then the retries in some of these queues wait until an operator acts (rabbitmq-server#16652).",
        fix="Give handlers fewer different waits, or %(upgrade)suse via=Native(…), which needs one queue each. "
        "After an update check that each waiting queue in rmq_status empties; if not, see the runbook.",
        page=_RUNBOOK + "retries-do-not-return-after-an-update-of-rabbitmq",
    ),
    Code.PARKED: Rule(severity=_INFORMATION, **_PARKED),
    Code.PAUSED: Rule(severity=_INFORMATION, **_PAUSED),
    Code.RETURNING: Rule(
        area=Area.TOPOLOGY,
        severity=_INFORMATION,
        row=ngettext_lazy(
            "abandoned, %(count)d message will return to the work queue",
            "abandoned, %(count)d messages will return to the work queue",
            "count",
        ),
    ),
    Code.HANDED_OVER: Rule(
        area=Area.TOPOLOGY,
        severity=_INFORMATION,
        row=ngettext_lazy(
            "handed over, %(count)d message, other consumers read it",
            "handed over, %(count)d messages, other consumers read it",
            "count",
        ),
    ),
    Code.EMPTY: Rule(
        area=Area.TOPOLOGY, severity=_INFORMATION, row=_("abandoned, empty: %(command)s"), fix="%(command)s"
    ),
}

_HARM = {code: place for place, code in enumerate(Code)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong now."""

    code: Code
    subject: str = ""
    """The queue, the error group, the run or the database that it is about."""
    count: int = 0
    since: datetime | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    """What else the templates of its rule name."""

    @property
    def rule(self) -> Rule:
        return RULES[self.code]

    @property
    def harm(self) -> int:
        """Its place among all problems; 0 is the most harmful."""
        return _HARM[self.code]

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    @property
    def row(self) -> str:
        """Its words beside its queue's name, in the reader's language."""
        return self._said(self.rule.row)

    @property
    def line(self) -> str:
        """Its words in one line of a probe."""
        return self._said(self.rule.line) if self.rule.line else f"{self.subject}: {self.row}"

    @property
    def text(self) -> str:
        """Its whole sentence."""
        return self._said(self.rule.text) if self.rule.text else f"Queue {self.subject!r}: {self.row}."

    @property
    def why(self) -> str:
        """Its consequence."""
        return self._said(self.rule.why)

    @property
    def fix(self) -> str:
        """What repairs it."""
        return self._said(self.rule.fix)

    def _said(self, template: Any) -> str:
        quoted, messages = shlex.quote(self.subject), plural(self.count, "message")
        words = {"subject": self.subject, "count": self.count, "quoted": quoted, "messages": messages}
        return str(template % {**words, **self.values})
