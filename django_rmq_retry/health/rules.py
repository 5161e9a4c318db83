"""The rules of health: for each problem its severity, consequence and repair, in the order of their harm.

``problems`` finds out which of them apply; commands and the admin show them.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, IntEnum, StrEnum, unique
from functools import partial
from typing import Any

from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_rmq_retry.wording import messages_counted, second

OUTBOX_OVERDUE_AFTER = timedelta(minutes=5)
"""The age from which a message in the outbox is a problem: a relay sends within seconds."""
RUN_IDLE_AFTER = timedelta(minutes=5)
"""The time without progress from which a requeue run is a problem."""
PROBE_OVERDUE = timedelta(minutes=1)
"""The time past its due time after which a probe that no consumer has begun means that the queue has no consumers."""
PARKED_TOO_LONG = timedelta(hours=4)
"""The age from which a parked message is an error."""
PARKED_TOO_MANY = 100
"""The number of parked messages from which they are an error, whatever their age."""
PAUSED_TOO_LONG = timedelta(hours=4)
"""The time after which a pause may be forgotten."""
HALTED_TOO_LONG = timedelta(minutes=10)
"""The time after which a halted queue is an error."""
STUCK_FOR = timedelta(seconds=30)
"""The time for which all threads of a process run handlers beyond their deadline, after which it is stuck."""
CLOCKS_APART_AFTER = timedelta(seconds=2)
"""The difference of two clocks from which it is reported; from ``database_clock.CLOCK_TOLERANCE`` on it is an error."""
NEARLY_FULL = 0.8
"""The share of a limit from which blocked messages are a warning."""
SLOW_BROKER_SECONDS = 1.0
"""Seconds for one round trip from which the broker counts as slow."""
SPANS = {"span", "details", "ages"}
"""The values of a problem that say for how long it has lasted; the details of parked messages name the oldest."""
LOGIN = "RMQ_RETRY['URL']"
API = 'RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"]'


class Severity(IntEnum):
    """How much a problem matters; ``rmq_status --check`` and ``rmq_doctor`` fail at errors."""

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


class ActingPage(Enum):
    """A page of the admin on which an operator acts on a problem."""

    CONSUMERS = "consumers"
    QUEUES = "queues"
    GROUPS = "groups"
    RUN = "run"
    OUTBOX = "outbox"
    KEYS = "keys"
    REQUEUED = "requeued"
    REQUESTS = "requests"
    MESSAGE = "message"
    MESSAGES = "messages"
    HANDLED_AGAIN = "handled again"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """All about one problem; the texts are templates for the values of a ``Problem``."""

    area: Area
    severity: Severity = Severity.ERROR
    row: Any = ""
    """Its words in a table of queues, translated; empty if it is no problem of a single queue."""
    word: Any = ""
    """One or two words for it, translated, where the rest stands elsewhere."""
    line: str = ""
    """Its words in ``rmq_status --check``; without them, the queue's name and its row, or its sentence."""
    text: Any = ""
    """Its sentence, on pages and in commands, translated; without it, one of the queue's name and its row."""
    why: Any = ""
    """Its consequence; translated if a page shows it."""
    fix: str = ""
    """The command or the change that repairs it."""
    page: ActingPage | None = None
    """Where an operator acts on it; without one, by the command alone."""
    runbook: str = ""
    """Its section of the runbook; without one, that of its area."""
    known_as: str = ""
    """The code under which alerts know it while it gets worse or better; without one, its own."""
    alerts_once: bool = False
    """True if it is one alert, whatever its subject."""
    under_way: bool = False
    """True if it ends without anybody: a run is at it, and has a problem of its own if it is not."""


def _error(area: Area) -> Callable[..., Rule]:
    return partial(Rule, area=area)


def _warning(area: Area) -> Callable[..., Rule]:
    return partial(Rule, area=area, severity=Severity.WARNING)


def _information(area: Area) -> Callable[..., Rule]:
    return partial(Rule, area=area, severity=Severity.INFORMATION)


def _lists(finding: str, signed: str = "once you have checked each") -> str:
    """Return the command that shows what is in doubt, and only then how an operator signs for it."""
    return f"manage.py rmq_parked checked {finding} lists them; {signed}, add --reason TEXT"


@unique
class Code(Enum):
    """What can be wrong, with its rule; the most harmful first, and errors before warnings."""

    DONE_TWICE = _error(Area.PARKED)(
        word=_("handled twice"),
        text=ngettext_lazy(
            "%(number)s message was handled twice, the last time %(span)s ago: %(names)s.",
            "%(number)s messages were handled twice, the last one %(span)s ago: %(names)s.",
            "count",
        ),
        why=_(
            "It was handled to the end, and then again: the connection was lost before the first acknowledgement "
            "arrived. Undo what must not be done twice."
        ),
        fix=_lists("DONE_TWICE"),
        page=ActingPage.HANDLED_AGAIN,
        alerts_once=True,
    )
    HANDLED_TWICE = _error(Area.PARKED)(
        word=_("handled twice"),
        text=ngettext_lazy(
            "Requeue run %(subject)s: at least %(number)s message was handled twice%(names)s.",
            "Requeue run %(subject)s: at least %(number)s messages were handled twice%(names)s.",
            "count",
        ),
        why=_(
            "The broker delivered a copy again before it had the acknowledgement, and the handler did its work again. "
            "Check whether that did harm. Of a handler with once=True the database changes "
            "happen once; what it calls outside may happen twice."
        ),
        fix=_lists("HANDLED_TWICE --run %(subject)s"),
        page=ActingPage.RUN,
    )
    STILL_AT_IT = _error(Area.CONSUMERS)(
        text=ngettext_lazy(
            "%(number)s message is still in a handler, and another consumer has handled it meanwhile: %(names)s.",
            "%(number)s messages are still in handlers, and other consumers have handled them meanwhile: %(names)s.",
            "count",
        ),
        why=_(
            "The process lost its connection, or was frozen, and goes on. If this must not be done twice, end it now "
            "with kill -9: a stop waits for the handler."
        ),
        fix="Look at each process: manage.py rmq_status --consumers",
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-is-stuck",
        alerts_once=True,
    )
    VANISHED_IN_HAND = _error(Area.CONSUMERS)(
        word=_("process has ended"),
        text=ngettext_lazy(
            "%(count)d consumer may be frozen with messages that others got since: %(ages)s.",
            "%(count)d consumers may be frozen with messages that others got since: %(ages)s.",
            "count",
        ),
        why=_(
            "%(held)s Whichever goes on does them again: make sure that it has ended. This stays until it is known to "
            "have ended, or until %(until)s."
        ),
        fix=_lists("VANISHED_IN_HAND", signed="once you know that each has ended"),
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-is-stuck",
    )
    BROKER_AWAY = _error(Area.BROKER)(
        text=_("The broker at %(address)s cannot be reached: %(reason)s."),
        why="No handler runs. Messages published inside a transaction wait in the outbox; others fail.",
        fix=f"Start the broker, or correct {LOGIN}.",
    )
    BROKER_AWAY_HERE = replace(
        BROKER_AWAY,
        text=_("This host cannot reach the broker at %(address)s: %(reason)s."),
        why=ngettext_lazy(
            "%(count)d consumer has its connection, by its heartbeat %(span)s ago. Messages published on this host "
            "wait in the outbox or fail.",
            "%(count)d consumers have their connections, by the last heartbeat %(span)s ago. Messages published on "
            "this host wait in the outbox or fail.",
            "count",
        ),
        fix=f"Check what is between this host and the broker, such as a proxy or a firewall, and {LOGIN}.",
        known_as="BROKER_AWAY",
    )
    BROKER_UNUSABLE = replace(BROKER_AWAY, text=_("%(setting)s cannot be used: %(reason)s."), known_as="BROKER_AWAY")
    BROKER_REFUSES = replace(
        BROKER_AWAY,
        text=_("The broker at %(subject)s refuses this project: %(reason)s."),
        fix=f"Correct {LOGIN}, or the user and its permissions on the broker.",
    )
    BROKER_NOT_RUNNING = replace(
        BROKER_AWAY,
        text=_("The embedded broker is not running."),
        fix="manage.py rmq_consume, which starts it too, or manage.py rmq_broker",
    )
    BROKER_BLOCKS = _error(Area.BROKER)(
        text=_("The broker blocks all connections that publish: %(reason)s."),
        why=_("Publishes, retries and parked copies wait until its alarm is over; running handlers can still ack."),
        fix="Free memory or disk space on the broker: rabbitmq-diagnostics alarms",
    )
    DATABASE_UNUSABLE = _error(Area.DATABASE)(
        line="database: %(reason)s",
        text=_("The database %(subject)r cannot be used: %(reason)s."),
        why=_("Parked messages stay in their queues, and handlers that need the database fail."),
        fix="Start it, or correct DATABASES[%(subject)r] in the settings.",
    )
    UNMIGRATED = _error(Area.DATABASE)(
        text="Migrations of rmq_retry are not applied in %(subject)r: %(names)s.",
        why="This version of the package needs their tables to record, park and pause.",
        fix="manage.py migrate rmq_retry --database %(quoted)s",
    )
    UNRECORDED = _error(Area.PARKED)(
        text="The database refused %(messages)s, now in %(subject)r.",
        why="They are neither in the admin nor in rmq_parked.",
        fix="The header rmq-retry-unrecorded has the reason; afterwards move them to %(parked)r.",
    )
    FULL = _error(Area.CONSUMERS)(
        word=_("full"),
        row=_("full: it rejects or drops messages"),
        why=_("Publishers get errors, or messages are removed."),
        fix="Start more consumers, or raise its max_length.",
    )
    DEFINITION_MISSING = _error(Area.TOPOLOGY)(
        line="the broker lacks %(subject)s: manage.py rmq_declare",
        text="The broker lacks %(subject)s.",
        why="rmq_consume exits with code 4 without its queues; messages without a queue are returned or dropped.",
        fix="manage.py rmq_declare",
    )
    EXTERNAL_MISSING = _error(Area.TOPOLOGY)(
        word=_("missing"),
        row=_("it does not exist: its owner has to create it"),
        line="%(subject)s: %(reason)s",
        text=_("%(title)s is external (existing=True), and the broker lacks it."),
        why=_("Messages that should pass through it are returned or dropped."),
        fix="Ask its owner to create it, or remove existing=True and run manage.py rmq_declare",
    )
    MISSING = _error(Area.TOPOLOGY)(
        word=_("missing"),
        row=_("it does not exist: manage.py rmq_declare"),
        text=_("Queue %(subject)r does not exist."),
        why=_("Messages that should pass through it are returned or dropped."),
        fix="manage.py rmq_declare",
        alerts_once=True,
    )
    SEVERAL_MISSING = _error(Area.TOPOLOGY)(
        text=ngettext_lazy(
            "%(count)d queue does not exist: %(names)s.", "%(count)d queues do not exist: %(names)s.", "count"
        ),
        why=_("Messages that should pass through them are returned or dropped."),
        fix="manage.py rmq_declare",
        known_as="MISSING",
        alerts_once=True,
    )
    RIGHT_LACKING = _error(Area.PERMISSIONS)(
        text="The user %(subject)r lacks the %(right)s right on %(names)s.",
        why="%(harm)s",
        fix="rabbitmqctl set_permissions -p %(vhost)s %(quoted)s CONFIGURE WRITE READ, with a %(pattern)s pattern "
        "that matches; list_user_permissions shows the present ones",
    )
    POLICY_HARMS = _error(Area.POLICIES)(
        text="%(setter)s sets %(key)s to %(value)s on %(names)s.",
        why="%(harm)s",
        fix="Exclude these queues from its pattern: rabbitmqctl list_policies -p %(vhost)s (or list_operator_policies)",
    )
    DIFFERS = _error(Area.TOPOLOGY)(
        line="%(subject)s: differs, %(reason)s",
        text="%(title)s differs from the code: %(reason)s.",
        why="The broker works by its own arguments: retries, parking or order may differ from the code.",
        fix="%(repair)s",
    )
    BROKER_OLD = _error(Area.BROKER)(
        text="%(subject)s is older than 3.10, the oldest supported version.",
        why="It lacks at-least-once dead-lettering, so a restart of the broker can lose waiting retries.",
        fix="Upgrade RabbitMQ.",
    )
    TOO_EARLY = _error(Area.CONSUMERS)(
        word=_("read too early"),
        row=_("a consumer reads it, so retries arrive too early"),
        why=_("Their back-off is lost, and attempts are used up."),
        fix="Stop the program that consumes it: rabbitmqctl list_consumers -p %(vhost)s",
    )
    NO_OUTCOME = _error(Area.PARKED)(
        text=ngettext_lazy(
            "%(number)s message was requeued %(span)s ago and has no outcome.",
            "%(number)s messages were requeued and have no outcome, the first for %(span)s.",
            "count",
        ),
        why=ngettext_lazy(
            "It was sent to its queue, and was neither handled nor parked again: it waits there, or it is lost.",
            "Each was sent to its queue, and was neither handled nor parked again: it waits there, or it is lost.",
            "count",
        ),
        fix="manage.py rmq_parked list --state requeued; manage.py rmq_status shows the queues in which they may wait; "
        "manage.py rmq_parked discard N closes those that are lost.",
        page=ActingPage.REQUEUED,
        runbook="requeued-messages-have-no-outcome",
    )
    CRASH_LOOP = _error(Area.CONSUMERS)(
        word=_("consumer died"),
        text=_("Consumers of %(queues)s die again and again: %(number)s since %(since)s, the last one %(span)s ago."),
        why="%(details)s",
        fix="Check rmq_consume on these hosts: journalctl, docker logs or kubectl logs. "
        + _lists("CRASH_LOOP --run %(quoted)s", signed="once you know why they died"),
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-restarts-again-and-again",
        known_as="CRASH_LOOP_OVER",
    )
    ALL_VANISHED = _error(Area.CONSUMERS)(
        text=_("No consumer is alive.%(waiting)s Last heartbeat %(span)s ago: %(names)s.%(ends)s"),
        why=ngettext_lazy(
            "%(count)d queue stands still: %(places)s.", "%(count)d queues stand still: %(places)s.", "count"
        ),
        fix="Start manage.py rmq_consume",
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-restarts-again-and-again",
        known_as="IDLE",
        alerts_once=True,
    )
    ALL_DISCONNECTED = replace(
        ALL_VANISHED,
        text=_("No consumer has reached the broker for %(span)s.%(waiting)s Without a connection: %(names)s."),
        fix="Their logs name the reason: event=disconnected.",
        runbook="",
    )
    ALL_UNREAD = replace(ALL_VANISHED, text=_("No consumer is running.%(waiting)s"), runbook="")
    SMALL_FRAMES = _error(Area.BROKER)(
        text="The broker accepts frames of %(count)d bytes only.",
        why="A message with larger headers could not be retried or parked, so rmq_consume exits with code 4.",
        fix="Set frame_max = %(least)d in rabbitmq.conf.",
    )
    CARRIER_UNSUPPORTED = _error(Area.BROKER)(
        text="%(subject)s: %(reason)s",
        why="rmq_consume exits with code 4.",
        fix="Change via=… of this handler, or upgrade RabbitMQ.",
    )
    NO_CONSUMER = _error(Area.CONSUMERS)(
        word=_("no consumer"),
        row=_("no consumer reads this queue"),
        text=_("Queue %(subject)r has no consumer.%(waiting)s"),
        why=_("New ones wait, too."),
        fix="Start manage.py rmq_consume%(which)s",
        page=ActingPage.CONSUMERS,
        known_as="IDLE",
        alerts_once=True,
    )
    SEVERAL_UNREAD = replace(
        NO_CONSUMER,
        word="",
        row="",
        text=ngettext_lazy(
            "%(count)d queue has no consumer.%(waiting)s Nobody reads %(names)s.",
            "%(count)d queues have no consumer.%(waiting)s Nobody reads %(names)s.",
            "count",
        ),
        fix="Start manage.py rmq_consume",
    )
    STUCK = _error(Area.CONSUMERS)(
        text=ngettext_lazy(
            "%(count)d consumer is stuck for %(span)s, with handlers beyond their deadline in all threads: %(names)s.",
            "%(count)d consumers are stuck, the first for %(span)s, with handlers beyond their deadline in all "
            "threads: %(names)s.",
            "count",
        ),
        why=_("Such a process takes no other message."),
        fix="manage.py rmq_status --consumers names the messages; end the process, and they are delivered again.",
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-is-stuck",
    )
    FEW_CONSUMERS = _error(Area.CONSUMERS)(
        row="%(count)d of at least %(least)d consumers",
        why="The limit was passed as --min-consumers.",
        fix="Start manage.py rmq_consume %(quoted)s",
    )
    PARKED_MANY = _error(Area.PARKED)(
        line="%(messages)s parked, and %(many)d are too many",
        text=_("%(messages)s parked%(cause)s.%(sent)s"),
        why="%(details)s",
        fix="%(command)s",
        page=ActingPage.GROUPS,
        known_as="PARKED",
        alerts_once=True,
    )
    HALTED_LONG = _error(Area.PARKED)(
        line="%(subject)s: halted for %(seconds).0f s, longer than %(limit)g s: %(error)s",
        text=_("Queue %(subject)r has been halted for %(span)s, attempt %(attempt)s: %(cause)s."),
        why=_("It keeps its order: all later messages wait until its first message%(named)s succeeds.%(waiting)s"),
        fix="Correct the cause of the error; the queue resumes with the next attempt that succeeds. Its first message: "
        "manage.py rmq_queue list",
        page=ActingPage.QUEUES,
        runbook="a-strict-order-queue-is-stuck",
        known_as="HALTED",
    )
    BREAKER_OPEN = _error(Area.CONSUMERS)(
        row="its breaker is open%(because)s",
        text=_("The breaker of queue %(subject)r has been open for %(span)s%(cause)s."),
        why=_("A service that the handler needs is down, so the queue is paused.%(waiting)s %(probe)s"),
        fix="Restore the service; the queue resumes by itself, or at once with manage.py rmq_queue resume %(quoted)s",
        page=ActingPage.QUEUES,
        runbook="a-queue-is-paused-or-its-breaker-is-open",
    )
    RETRIES_OVERDUE = _error(Area.CONSUMERS)(
        text=ngettext_lazy(
            "%(count)d retry in queue %(subject)r is overdue, for %(span)s.",
            "%(count)d retries in queue %(subject)r are overdue, the first for %(span)s.",
            "count",
        ),
        why=ngettext_lazy(
            "It waits behind other messages, or does not return from its waiting queue.",
            "Each waits behind other messages, or does not return from its waiting queue.",
            "count",
        ),
        fix="manage.py rmq_status shows where they are. If the work queue is long, start manage.py rmq_consume "
        "%(quoted)s; if the waiting queue does not empty, see the runbook.",
        page=ActingPage.QUEUES,
        runbook="retries-are-overdue",
    )
    PARKED_LONG = replace(
        PARKED_MANY,
        line="the oldest parked message has waited %(seconds).0f s, longer than %(limit)g s",
        why=_("%(details)s None should wait longer than %(most)s."),
    )
    TOO_MANY_PARKED = _error(Area.PARKED)(
        line="%(messages)s parked, more than %(limit)d",
        why="The limit was passed as --max-parked.",
        fix="manage.py rmq_parked groups",
    )
    OUTBOX_FAILED = _error(Area.DATABASE)(
        line="%(messages)s in the outbox failed: manage.py rmq_relay list --failed",
        text=_("%(messages)s in the outbox failed."),
        why="%(reason)s",
        fix="manage.py rmq_relay list --failed, then manage.py rmq_relay retry or discard",
        page=ActingPage.OUTBOX,
        runbook="the-outbox-grows",
    )
    OUTBOX_AWAY = _error(Area.DATABASE)(
        line="the outbox cannot be read: its database does not answer",
        text=_("The outbox cannot be read: its database does not answer."),
        why=_("Messages that are published inside a transaction may wait there."),
        fix="Start the database of the outbox, or correct DATABASES in the settings.",
        page=ActingPage.OUTBOX,
    )
    OUTBOX_OVERDUE = _error(Area.DATABASE)(
        line="the oldest message in the outbox has waited %(seconds).0f s, longer than %(limit)g s",
        text=_("%(messages)s in the outbox not sent, the oldest for %(span)s."),
        why=_("A relay sends within seconds, so none runs, or the broker refuses the message."),
        fix="Start manage.py rmq_consume or rmq_relay; manage.py rmq_relay list shows the last errors.",
        page=ActingPage.OUTBOX,
        runbook="the-outbox-grows",
    )
    OUTBOX_REFUSED = replace(
        OUTBOX_OVERDUE,
        why=ngettext_lazy(
            "The broker did not take it to %(to)s: %(answer)s.",
            "The broker did not take the oldest of them to %(to)s: %(answer)s.",
            "count",
        ),
        fix="Correct what the answer names, such as a missing queue: manage.py rmq_declare. All answers: "
        "manage.py rmq_relay list",
        known_as="OUTBOX_NOT_TAKEN",
    )
    MOVE_LEFT = _error(Area.TOPOLOGY)(
        text="A move of the messages of %(subject)r was interrupted, and %(aside)r holds them.",
        why=_("No handler gets them."),
        fix="manage.py rmq_declare --recreate %(quoted)s",
    )
    INTERRUPTED = _error(Area.TOPOLOGY)(
        word=_("move interrupted"),
        row=ngettext_lazy(
            "a move of its messages was interrupted, %(count)d message waits: %(command)s",
            "a move of its messages was interrupted, %(count)d messages wait: %(command)s",
            "count",
        ),
        why=_("No handler gets them."),
        fix="%(command)s",
    )
    ABANDONED = _error(Area.TOPOLOGY)(
        word=_("abandoned"),
        row=ngettext_lazy(
            "abandoned, %(count)d message, no consumer: %(command)s",
            "abandoned, %(count)d messages, no consumer: %(command)s",
            "count",
        ),
        text=_("No handler reads queue %(subject)r any more, which has %(messages)s."),
        why=_("It was renamed or its handler was removed, and it has no consumer."),
        fix="%(command)s",
        page=ActingPage.QUEUES,
        runbook="a-queue-was-renamed",
    )
    DEAD_LETTERS = _error(Area.CONSUMERS)(
        word=_("dead letters"),
        row=ngettext_lazy(
            "%(count)d dead letter waits: its target queue is full or missing",
            "%(count)d dead letters wait: their target queue is full or missing",
            "count",
        ),
        why=_("They are delivered once the target accepts them."),
        fix="manage.py rmq_declare, or empty the target.",
    )
    BLOCKED_FULL = _error(Area.PARKED)(
        line="%(count)d messages wait %(where)s, which reaches the limit %(setting)s",
        text=_("%(messages)s %(where)s; the limit is %(limit)s."),
        why=_("At the limit, messages of blocked keys stay unacked and slow down their queues."),
        fix="manage.py rmq_blocked list, then resolve the message that goes first of the oldest key.",
        page=ActingPage.KEYS,
        runbook="a-key-is-blocked",
        known_as="BLOCKED_NEAR",
        alerts_once=True,
    )
    NOT_DECLARABLE = _error(Area.TOPOLOGY)(
        line="%(subject)s: %(reason)s",
        text="%(title)s cannot be declared: %(sentence)s.",
        why="rmq_declare leaves it out.",
        fix="Correct its definition; manage.py rmq_declare --plan checks it again.",
    )
    UNREADABLE = _error(Area.TOPOLOGY)(
        word=_("unreadable"),
        row="%(reason)s",
        text=_("Queue %(subject)r cannot be read. %(reason)s"),
        why=_("Its messages and consumers are not known."),
        fix="Grant the project's user the right on it: rabbitmqctl set_permissions",
    )
    CLOCKS_WRONG = _error(Area.CLOCKS)(
        line="clocks: %(difference)s Synchronize both by NTP.",
        text="%(difference)s",
        why=_("Pauses, holds and leases last by the database's clock; above 5 min, nothing is deleted by age."),
        fix="Synchronize both by NTP: timedatectl status",
        known_as="CLOCKS_APART",
    )
    GIVEN_AGAIN = _warning(Area.CONSUMERS)(
        text="%(said)s",
        why="%(advice)s",
        fix="manage.py rmq_status --consumers shows where they are%(pause)s",
        page=ActingPage.QUEUES,
        known_as="PERHAPS_TWICE",
        alerts_once=True,
    )
    HANDLED_ANYWAY = _warning(Area.PARKED)(
        word=_("handled after a discard"),
        text=ngettext_lazy(
            "Message #%(subject)s was handled after an operator had discarded it.",
            "%(number)s messages were handled after an operator had discarded them, #%(subject)s last.",
            "count",
        ),
        why=_("Another copy was still in RabbitMQ. If a message was done by hand, too, it was done twice: check that."),
        fix=_lists("HANDLED_ANYWAY"),
        page=ActingPage.MESSAGE,
        alerts_once=True,
    )
    PERHAPS_TWICE = _warning(Area.PARKED)(
        word=_("perhaps handled twice"),
        text=ngettext_lazy(
            "%(number)s message was perhaps handled twice, %(span)s ago: %(names)s.",
            "%(number)s messages were perhaps handled twice, the last %(span)s ago: %(names)s.",
            "count",
        ),
        why=ngettext_lazy(
            "It was first in the hands of a consumer that was killed or lost its connection: check whether the work "
            "was done twice.",
            "Each was first in the hands of a consumer that was killed or lost its connection: check whether the work "
            "was done twice.",
            "count",
        ),
        fix=_lists("PERHAPS_TWICE"),
        page=ActingPage.HANDLED_AGAIN,
        alerts_once=True,
    )
    RUN_PERHAPS_TWICE = _warning(Area.PARKED)(
        word=_("perhaps handled twice"),
        text=ngettext_lazy(
            "Requeue run %(subject)s: %(number)s message was perhaps handled twice%(names)s.",
            "Requeue run %(subject)s: %(number)s messages were perhaps handled twice%(names)s.",
            "count",
        ),
        why=PERHAPS_TWICE.why,
        fix=_lists("RUN_PERHAPS_TWICE --run %(subject)s"),
        page=ActingPage.RUN,
    )
    NOT_RECORDED = _warning(Area.CONSUMERS)(
        text=_("No consumer records the %(messages)s in the parked queue %(subject)r."),
        why=_("They are neither in the admin nor in rmq_parked, so they cannot be requeued."),
        fix="Start manage.py rmq_consume, or manage.py rmq_consume --park-only",
        page=ActingPage.CONSUMERS,
    )
    ALL_DISCONNECTED_IDLE = replace(ALL_DISCONNECTED, severity=Severity.WARNING)
    ALL_IDLE = replace(ALL_UNREAD, severity=Severity.WARNING)
    VANISHED = _warning(Area.CONSUMERS)(
        text=ngettext_lazy(
            "%(count)d of %(every)d consumers without a heartbeat for 30 s: %(ages)s.",
            "%(count)d of %(every)d consumers without a heartbeat for 30 s: %(ages)s.",
            "count",
        ),
        why=ngettext_lazy(
            "It was killed, hangs, or cannot reach the database.%(held)s",
            "Each was killed, hangs, or cannot reach the database.%(held)s",
            "count",
        ),
        fix="Check rmq_consume on these hosts: journalctl, docker logs or kubectl logs.",
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-restarts-again-and-again",
    )
    ENDED = replace(
        VANISHED,
        text=ngettext_lazy(
            "%(count)d of %(every)d consumers has ended: %(ends)s.",
            "%(count)d of %(every)d consumers have ended: %(ends)s.",
            "count",
        ),
        why=_("Fewer run than before.%(held)s"),
    )
    CRASH_LOOP_OVER = replace(
        CRASH_LOOP,
        severity=Severity.WARNING,
        text=_("Consumers of %(queues)s died again and again: %(number)s since %(since)s, the last one %(span)s ago."),
        fix=_lists("CRASH_LOOP_OVER --run %(quoted)s", signed="once you know why they died"),
    )
    LATE = _warning(Area.CONSUMERS)(
        word=_("beyond its deadline"),
        row=ngettext_lazy(
            "%(count)d message is in its handler beyond the deadline of %(deadline)s",
            "%(count)d messages are in their handlers beyond the deadline of %(deadline)s",
            "count",
        ),
        text=ngettext_lazy(
            "%(count)d message of %(handlers)s runs beyond its deadline of %(deadline)s on %(names)s.",
            "%(count)d messages of %(handlers)s run beyond their deadline of %(deadline)s on %(names)s.",
            "count",
        ),
        why=_("A process whose handler still runs after %(limit)s exits, and the attempt has failed."),
        fix="manage.py rmq_status --consumers names the messages; the log of the process has the line that hangs.",
        page=ActingPage.CONSUMERS,
        runbook="a-consumer-is-stuck",
    )
    DISCONNECTED = _warning(Area.CONSUMERS)(
        text=_("Without a connection to the broker: %(names)s."),
        why=_("These consumers take no messages."),
        fix="Their logs name the reason: event=disconnected.",
        page=ActingPage.CONSUMERS,
    )
    HELD = _warning(Area.CONSUMERS)(
        word=_("no consumer"),
        row=_("no consumer reads this queue"),
        line="Queue %(subject)r has no consumer, but %(unacked)s",
        text=_("Queue %(subject)r has no consumer, but %(unacked)s."),
        why=_("A connection holds them; they return to the queue when it ends."),
        fix="rabbitmqctl list_channels -p %(vhost)s name connection messages_unacknowledged",
        page=ActingPage.CONSUMERS,
    )
    UNREAD = _warning(Area.CONSUMERS)(
        word=_("no consumer"),
        row=_("no consumer reads this queue"),
        text=_("Queue %(subject)r: no consumer reads this queue, and no handler of this project is for it."),
        why=_("It has %(messages)s ready."),
        fix="Start the program that reads it, or remove it from RMQ_RETRY['TOPOLOGY'] if none does.",
        page=ActingPage.QUEUES,
    )
    RUN_PAUSED = _warning(Area.PARKED)(
        text=_("Requeue run %(subject)s paused itself%(explanation)s."),
        why=_("%(messages)s not sent yet."),
        fix="%(resume)s, or %(command)s --stop",
        page=ActingPage.RUN,
    )
    PARKED = replace(PARKED_LONG, severity=Severity.WARNING, line="", why="%(details)s")
    HALTED = replace(HALTED_LONG, severity=Severity.WARNING, line="")
    GROWS = _warning(Area.PARKED)(
        text="Error group %(subject)s grows: %(messages)s since %(time)s (%(group)s).",
        why="As long as its cause persists, requeued messages fail again.",
        fix="manage.py rmq_parked list --group %(subject)s; correct the cause before you requeue.",
    )
    GROW_MORE = _warning(Area.PARKED)(
        text="Further error groups that grow more slowly: %(count)d.",
        why="As long as the cause of each persists, its requeued messages fail again.",
        fix="manage.py rmq_parked groups",
    )
    OUTBOX_NOT_TAKEN = replace(
        OUTBOX_REFUSED,
        severity=Severity.WARNING,
        line="",
        text=_("The broker has refused %(messages)s of the outbox."),
        known_as="",
    )
    OUTBOX_WAITS = _warning(Area.DATABASE)(
        text=ngettext_lazy("%(messages)s waits in the outbox.", "%(messages)s wait in the outbox.", "count"),
        why=_("They are sent once the broker is back."),
        fix="manage.py rmq_relay list",
        page=ActingPage.OUTBOX,
        runbook="the-outbox-grows",
    )
    RUN_HELD = replace(RUN_PAUSED, text=_("Requeue run %(subject)s has been paused for %(span)s%(by)s%(explanation)s."))
    RUN_WAITS = _warning(Area.PARKED)(
        text=_("Requeue run %(subject)s waits%(explanation)s."),
        why=_("It sends nothing meanwhile."),
        fix="%(command)s follows it, %(command)s --stop ends it",
        page=ActingPage.RUN,
    )
    RUN_IDLE = _warning(Area.PARKED)(
        text=_("Requeue run %(subject)s has had no driver for %(span)s."),
        why=_("A consumer drives it, and none that reaches the database is running."),
        fix="Start manage.py rmq_consume, or drive it here: %(command)s",
        page=ActingPage.RUN,
    )
    PAUSED_LONG = _warning(Area.PARKED)(
        text=_("Queue %(subject)r has been paused for %(span)s%(by)s."),
        why=_("%(ends)s A pause of more than %(most)s may be forgotten."),
        fix="%(once)smanage.py rmq_queue resume %(quoted)s",
        page=ActingPage.QUEUES,
        runbook="a-queue-is-paused-or-its-breaker-is-open",
        known_as="PAUSED",
    )
    PAUSED = replace(PAUSED_LONG, why="%(ends)s")
    BLOCKED_NEAR = replace(BLOCKED_FULL, severity=Severity.WARNING, line="")
    BACKLOG = _warning(Area.CONSUMERS)(
        text="%(messages)s wait in %(subject)r for %(consumers)s%(rate)s.",
        why="Handlers are slower than publishers, or wait for a slow service.",
        fix="Start manage.py rmq_consume %(quoted)s on another machine too, unless the queue keeps an order.",
    )
    APPROVAL_WAITS = _warning(Area.PARKED)(
        text=ngettext_lazy(
            "%(count)d request has waited for a second person for %(span)s.",
            "%(count)d requests wait for a second person, the oldest for %(span)s.",
            "count",
        ),
        why=_("Nothing of it is done until somebody else approves it, and it expires."),
        fix="manage.py rmq_parked approvals",
        page=ActingPage.REQUESTS,
    )
    IDLE = _warning(Area.CONSUMERS)(
        word=_("no consumer"),
        row=_("no consumer reads this queue"),
        text=_("Queue %(subject)r has no consumer."),
        why=_("The next message to it will wait."),
        fix="Start manage.py rmq_consume %(quoted)s",
        page=ActingPage.CONSUMERS,
        known_as="IDLE",
        alerts_once=True,
    )
    SEVERAL_IDLE = replace(
        IDLE,
        word="",
        row="",
        text=ngettext_lazy(
            "%(count)d queue has no consumer: %(names)s.", "%(count)d queues have no consumer: %(names)s.", "count"
        ),
        why=_("The next messages to them will wait."),
        fix="Start manage.py rmq_consume",
    )
    PERHAPS_STOPPED = replace(
        IDLE,
        why=_("It may be paused, or its breaker open: only the database knows, and it does not answer."),
        fix="Repair the database first, then manage.py rmq_status shows whether consumers are missing.",
    )
    VERSIONS = _warning(Area.CONSUMERS)(
        text=_("Consumers run %(count)d versions of %(what)s: %(names)s."),
        why=_("After a deployment, a process that was not restarted handles messages with the old code."),
        fix="Restart the consumers of the old version.",
        page=ActingPage.CONSUMERS,
    )
    MANY_DEAD_LETTER_PROCESSES = _warning(Area.TOPOLOGY)(
        text="%(count)d quorum queues %(whose)s dead-letter at least once.",
        why="The broker restarts a process for each when it is updated. It gives up after too many at once, and "
        "then the retries in some of these queues wait until an operator acts (rabbitmq-server#16652).",
        fix="Give handlers fewer different waits, or %(upgrade)suse via=Native(…), which needs one queue each. "
        "After an update check that each waiting queue in rmq_status empties; if not, see the runbook.",
        runbook="retries-do-not-return-after-an-update-of-rabbitmq",
    )
    CLOCKS_APART = replace(CLOCKS_WRONG, severity=Severity.WARNING)
    BROKER_SLOW = _warning(Area.BROKER)(
        text="%(reason)s",
        why="Each confirm and each ack takes as long.",
        fix="rabbitmq-diagnostics status",
    )
    BROKER_UNTESTED = _warning(Area.BROKER)(
        text="The broker is %(subject)s, which this package is not tested with.",
        why="Retries rely on RabbitMQ's dead-lettering.",
        fix="Use RabbitMQ; 3.10, 4.0 and 4.3 are tested.",
    )
    API_FAILS = _warning(Area.POLICIES)(
        text="Not looked at: %(reason)s.",
        why="Policies, bindings, rights and unacked messages are not visible.",
        fix=f"Correct {API}, or give its user the tag management.",
    )
    PARKED_UNDER_WAY = replace(PARKED, page=ActingPage.RUN, under_way=True)
    RETURNING = _information(Area.TOPOLOGY)(
        word=_("abandoned"),
        row=ngettext_lazy(
            "abandoned, %(count)d message will return to the work queue",
            "abandoned, %(count)d messages will return to the work queue",
            "count",
        ),
    )
    HANDED_OVER = _information(Area.TOPOLOGY)(
        word=_("handed over"),
        row=ngettext_lazy(
            "handed over, %(count)d message, other consumers read it",
            "handed over, %(count)d messages, other consumers read it",
            "count",
        ),
    )
    EMPTY_KEPT = _information(Area.TOPOLOGY)(word=_("abandoned"), row=_("abandoned, empty; %(rest)s"))
    EMPTY = _information(Area.TOPOLOGY)(word=_("abandoned"), row=_("abandoned, empty: %(command)s"), fix="%(command)s")

    @property
    def known_as(self) -> str:
        """The name that it keeps while it gets worse or better."""
        return str(self.value.known_as or self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong now."""

    code: Code
    subject: str = ""
    """The queue, the error group, the run or the database that it is about."""
    count: int = 0
    since: datetime | None = None
    as_of: datetime | None = None
    """When it was seen last, if that cannot be looked at now."""
    causes: tuple[str, ...] = ()
    """What causes it, or the queues that have it. An alert tells of one that is new."""
    values: Mapping[str, object] = field(default_factory=dict)
    """What else the templates of its rule name."""
    stays: str = ""
    """A sentence on when it ends, if nobody ends it before."""
    doubts: Mapping[str, Any] = field(default_factory=dict)
    """What an operator may say to have checked, by a digest of each doubt: a message, a run or a process."""

    @property
    def rule(self) -> Rule:
        return self.code.value

    @property
    def harm(self) -> int:
        """Its place among all problems; 0 is the most harmful."""
        return list(Code).index(self.code)

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    @property
    def untold_since(self) -> datetime | None:
        """When it began, unless the templates of its rule say for how long it has lasted."""
        without = replace(self, values={**self.values, **dict.fromkeys(SPANS & self.values.keys(), "")})
        return None if (without.text, without.why) != (self.text, self.why) else self.since

    @property
    def row(self) -> str:
        """Its words beside its queue's name, in the reader's language."""
        return self._filled_in(self.rule.row)

    @property
    def line(self) -> str:
        """Its words in one line of a probe."""
        if self.rule.line:
            return self._filled_in(self.rule.line)
        return f"{self.subject}: {self.row}" if self.rule.row else self.text.removesuffix(".")

    @property
    def text(self) -> str:
        named = {"subject": self.subject, "row": self.row}
        return self._filled_in(self.rule.text) if self.rule.text else gettext("Queue %(subject)r: %(row)s.") % named

    @property
    def why(self) -> str:
        before = str(self.values.get("first_pause", ""))
        return " ".join(filter(None, (self._filled_in(self.rule.why), before, self.stays, self.last_known)))

    @property
    def last_known(self) -> str:
        """A sentence on when it was seen last, if that cannot be looked at now."""
        return gettext("Last known at %(time)s.") % {"time": second(self.as_of)} if self.as_of else ""

    @property
    def fix(self) -> str:
        """What repairs it, and what to do before that."""
        return f"{self.values.get('before', '')}{self._filled_in(self.rule.fix)}"

    def _filled_in(self, template: Any) -> str:
        quoted, messages = shlex.quote(self.subject), messages_counted(self.count)
        words = {"subject": self.subject, "count": self.count, "quoted": quoted, "messages": messages}
        return str(template % {**words, **self.values})
