"""The examination of the broker for ``rmq_doctor``: policies, permissions, topology and consumers."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django_rmq_retry.amqp import inspection
from django_rmq_retry.amqp.declarer import (
    FULL,
    INTERRUPTED,
    MOVING,
    NO_CONSUMER,
    TOO_EARLY,
    Bounds,
    Declarer,
    Level,
    gauge,
)
from django_rmq_retry.amqp.frames import FRAME_MAX
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.rows import Row
from django_rmq_retry.arguments import plural
from django_rmq_retry.checks.settings import joined
from django_rmq_retry.conf import settings
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, ConfigurationError
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import copies_of
from django_rmq_retry.health.facts import Survey
from django_rmq_retry.management.broker_status import round_trip
from django_rmq_retry.management.command import declarer
from django_rmq_retry.management.dead_letter_processes import dead_letter_processes
from django_rmq_retry.management.examination import Area, Finding, Limits, listed, looked, one_line
from django_rmq_retry.messages.parked_copy import UNRECORDED_QUEUE
from django_rmq_retry.parked.declared import Place, former_queues
from django_rmq_retry.server import span
from django_rmq_retry.topology.declarations import NO_LIMIT, QueueDeclaration, Role, Topology
from django_rmq_retry.topology.plan import Item, PlanState, shown

OLDEST, NEWEST = (3, 10), (4, 3)
"""The oldest supported version of RabbitMQ, and the newest that the tests run on."""
SLOW = 1.0
"""Seconds for one round trip from which the broker counts as slow."""
BEHIND = (Area.POLICIES, Area.PERMISSIONS, Area.TOPOLOGY, Area.CONSUMERS)
"""The areas that need the broker and valid handlers."""
LOGIN = "RMQ_RETRY['URL']"
API = 'RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"]'
STORING = (Role.WORK, Role.WAITING, Role.QUARANTINE, Role.PARKED)
"""The roles of queues that hold messages of handlers."""
ENDLESS = 2**53
"""The number above which a policy's value is a way to write that there is no limit; times end not far above it."""
CONSUMER_TIMEOUT_MS = 1_800_000
"""RabbitMQ's own limit for an unacked message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Governed:
    """A queue, its type on the broker, and what policies set for it."""

    queue: QueueDeclaration
    type: str
    policy: Mapping[str, object]

    def own(self, name: str) -> object:
        return self.queue.arguments.get(f"x-{name}")

    def lowered(self, name: str) -> int | None:
        """Return the policy's number, if the queue's own argument is not lower: the lower of both applies."""
        value, own = self.policy[name], self.own(name)
        if not isinstance(value, int) or value > ENDLESS or (isinstance(own, int) and own <= value):
            return None
        return value


def _ttl(it: Governed) -> str:
    ttl = it.lowered("message-ttl")
    if ttl is None:
        return ""
    after = span(timedelta(milliseconds=ttl))
    return {
        Role.WAITING: f"A retry leaves the waiting queue after {after}, earlier than the handler's policy plans.",
        Role.PARKED: f"A parked message that no consumer has recorded within {after} is deleted.",
    }.get(it.queue.role, f"A message that no handler takes within {after} expires without an attempt.")


def _length(it: Governed, name: str) -> str:
    if it.lowered(name) is None:
        return ""
    if (it.own("overflow") or it.policy.get("overflow")) == "reject-publish":
        return {
            Role.WORK: "When the queue is full, publishing raises MessageNacked.",
            Role.PARKED: "When the queue is full, failed messages cannot be parked and stay unacked.",
        }.get(it.queue.role, "When the queue is full, retries cannot be stored and stay unacked.")
    deleted = "deletes" if it.queue.role is Role.PARKED else "removes"
    return f"When the queue is full, the broker {deleted} its oldest message without an attempt."


def _expires(it: Governed) -> str:
    after = it.lowered("expires")
    if after is None:
        return ""
    return f"The broker deletes the queue with its messages after {span(timedelta(milliseconds=after))} without use."


def _limit(it: Governed) -> str:
    limit = it.lowered("delivery-limit")
    # -1 is unlimited from RabbitMQ 4 on.
    if limit is None or not 0 <= limit < NO_LIMIT or it.type != "quorum" or it.queue.role is Role.WAITING:
        return ""
    return f"The broker removes a message after {limit} returns; each orderly stop of a consumer is one too."


def _target(it: Governed) -> str:
    if it.own("dead-letter-exchange") is not None or it.queue.existing or it.queue.role is Role.PARKED:
        return ""
    return "Messages that the broker removes are sent to another exchange than the project plans."


def _key(it: Governed) -> str:
    if it.own("dead-letter-exchange") is None or it.own("dead-letter-routing-key") is not None or it.queue.existing:
        return ""
    return "Dead letters get another routing key, so retries and parked messages reach another queue or none."


def _delayed(it: Governed) -> str:
    planned = it.own("delayed-retry-type") is not None or it.policy["delayed-retry-type"] == "disabled"
    return "" if planned or it.type != "quorum" else "A returned message waits, and later messages overtake it."


def _unacked(it: Governed) -> str:
    limit = it.lowered("consumer-timeout")
    if limit is None or limit >= CONSUMER_TIMEOUT_MS or it.queue.role is not Role.WORK:
        return ""
    here = [one for one in registry.subscriptions() if one.queue.name == it.queue.name]
    if all(one.timeout is not None and one.timeout * 1000 < limit for one in here):
        return ""
    after = span(timedelta(milliseconds=limit))
    return f"The broker redelivers a message whose handler runs longer than {after}, while the handler still runs."


HARMS: Mapping[str, Callable[[Governed], str]] = {
    "message-ttl": _ttl,
    "max-length": lambda it: _length(it, "max-length"),
    "max-length-bytes": lambda it: _length(it, "max-length-bytes"),
    "expires": _expires,
    "delivery-limit": _limit,
    "dead-letter-exchange": _target,
    "dead-letter-routing-key": _key,
    "delayed-retry-type": _delayed,
    "consumer-timeout": _unacked,
}
"""By the key of a policy: returns the harm that it does to a queue, or an empty text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A session with the broker, and the rows of its management API if that answers."""

    it: Declarer
    """Without the management API if that does not answer."""
    rows: Mapping[str, Row] | None = None
    blind: str = ""
    """The reason why there are no rows."""
    trouble: str = ""
    """The error of a management API that is set."""

    @classmethod
    def of(cls, it: Declarer) -> "Sight":
        if it.session.server.embedded:
            return cls(it=Declarer(it.session), blind="the embedded broker has no management API")
        if it.inspector is None:
            return cls(it=it, blind=f"{API} is not set")
        try:
            return cls(it=it, rows=it.inspector.queues())
        except (BrokerUnreachable, BrokerRefused) as error:
            return cls(
                it=Declarer(it.session), blind="the management API gives no usable answer", trouble=one_line(error)
            )

    @property
    def embedded(self) -> bool:
        return self.it.session.server.embedded


class BrokerExamination:
    """The examination of the broker, on one session; once the broker does not answer, nothing more is requested."""

    def __init__(self, limits: Limits, survey: Survey | None) -> None:
        self._limits = limits
        self._survey = survey
        self.lost = False
        """True if the broker is unreachable."""

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        try:
            with declarer(timeout=self._limits.timeout) as it:
                for area, look in self._looks(it).items():
                    found += looked(area, partial(self._unless_lost, it, area, look))
        except Exception as error:  # noqa: BLE001 - a URL function of the project may raise anything
            if not found:
                self.lost = True
                unseen = [area.unseen("the broker cannot be reached") for area in BEHIND]
                found = [_unreachable(error), *unseen]
        return found

    def _looks(self, it: Declarer) -> Mapping[Area, Callable[[], Iterable[Finding]]]:
        """Return the looks in their order; the test of publishing comes last, because an alarm ends the session."""
        try:
            topology = registry.topology()
        except ConfigurationError:
            return {Area.BROKER: partial(_broker, it), **{area: partial(_invalid, area) for area in BEHIND}}
        sight = Sight.of(it)
        return {
            Area.BROKER: partial(_broker, it),
            Area.POLICIES: partial(_policies, sight, topology),
            Area.TOPOLOGY: partial(_topology, sight, topology),
            Area.CONSUMERS: partial(self._consumers, sight, topology),
            Area.PERMISSIONS: partial(_permissions, sight, topology),
        }

    def _unless_lost(self, it: Declarer, area: Area, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        if not self.lost:
            try:
                yield from look()
            except BrokerUnreachable as error:
                if error.address != it.session.access.shown:
                    # The management API's own error.
                    raise
                self.lost = True
                yield _unreachable(error)
            else:
                return
        yield area.unseen("the broker does not answer")

    def _consumers(self, sight: Sight, topology: Topology) -> Iterator[Finding]:
        survey, session = self._survey, sight.it.session
        stopped = frozenset(control.queue for control in survey.stopped) if survey else frozenset()
        formers = former_queues(survey.declared, topology, Place.of(session)) if survey else ()
        levels = gauge(sight.it, topology, Bounds(stopped=stopped), formers).levels
        found = [finding for level in levels for finding in self._of_level(level, stopped=level.queue in stopped)]
        yield from found
        if settings().records:
            yield from _unrecorded(sight, topology)
        work = [level for level in levels if level.role is Role.WORK]
        unread = [repr(level.queue) for level in work if level.ready is None and level.problems]
        if unread:
            yield Area.CONSUMERS.unseen("they are missing or not readable", what=f"{listed(unread)}:")
        elif not found:
            consumers, ready = (sum(getattr(level, name) or 0 for level in work) for name in ("consumers", "ready"))
            text = f"{plural(consumers, 'consumer')} on {plural(len(work), 'work queue')}"
            yield Area.CONSUMERS.ok(f"{text}, {plural(ready, 'message')} ready.")

    def _of_level(self, level: Level, *, stopped: bool) -> Iterator[Finding]:
        """Yield the findings about one queue; the topology's findings include missing and unreadable queues."""
        if level.ready is None:
            return
        if level.abandoned:
            yield from _abandoned(level)
            return
        yield from (_problem(level, problem) for problem in level.problems if not problem.startswith(INTERRUPTED))
        if level.remark == NO_CONSUMER:
            yield _unread(level)
        if level.role is Role.WORK and not stopped:
            yield from self._of_work_queue(level)
        if level.role is Role.PARKED and level.ready and not level.consumers and settings().records:
            yield Area.CONSUMERS.warning(
                f"No consumer records the {plural(level.ready, 'message')} in the parked queue {level.queue!r}.",
                why="They are neither in the admin nor in rmq_parked, so they cannot be requeued.",
                fix="Start manage.py rmq_consume, or manage.py rmq_consume --park-only",
            )

    def _of_work_queue(self, level: Level) -> Iterator[Finding]:
        area, start = Area.CONSUMERS, f"Start manage.py rmq_consume {shlex.quote(level.queue)}"
        if not level.consumers and level.unacked:
            yield area.warning(
                f"Queue {level.queue!r} has no consumer, but {plural(level.unacked, 'unacked message')}.",
                why="A connection holds them; they return to the queue when it ends.",
                fix=f"rabbitmqctl list_channels -p {_vhost()} name connection messages_unacknowledged",
            )
        elif not level.consumers and not level.ready:
            yield area.warning(
                f"Queue {level.queue!r} has no consumer.", why="The next message to it will wait.", fix=start
            )
        elif level.consumers and (level.ready or 0) > self._limits.max_ready:
            rate = "" if level.leaving is None else f", which take {level.leaving:.1f} messages a second"
            yield area.warning(
                f"{plural(level.ready or 0, 'message')} wait in {level.queue!r} for "
                f"{plural(level.consumers, 'consumer')}{rate}.",
                why="Handlers are slower than publishers, or wait for a slow service.",
                fix=f"{start} on another machine too, unless the queue keeps an order.",
            )


def _invalid(area: Area) -> list[Finding]:
    return [area.unseen("the handlers are invalid")]


def _unreachable(error: Exception) -> Finding:
    area, why = Area.BROKER, "No handler runs. Messages published inside a transaction wait in the outbox; others fail."
    if isinstance(error, NotRunning):
        return area.error(
            "The embedded broker is not running.",
            why=why,
            fix="manage.py rmq_consume, which starts it too, or manage.py rmq_broker",
        )
    if isinstance(error, BrokerRefused):
        return area.error(
            f"The broker at {error.address} refuses this project: {error.reason}.",
            why=why,
            fix=f"Correct {LOGIN}, or the user and its permissions on the broker.",
        )
    text = str(error) if isinstance(error, BrokerUnreachable) else f"{LOGIN} cannot be used: {one_line(error)}."
    return area.error(text, why=why, fix=f"Start the broker, or correct {LOGIN}.")


def _broker(it: Declarer) -> Iterator[Finding]:
    area, session = Area.BROKER, it.session
    server, seconds = session.server, round_trip(session)
    report = f"{session.access.shown} ({server.title}), round trip {seconds * 1000:.0f} ms."
    if seconds < SLOW:
        yield area.ok(report)
    else:
        yield area.warning(report, why="Each confirm and each ack takes as long.", fix="rabbitmq-diagnostics status")
    if server.product != "RabbitMQ":
        yield area.warning(
            f"The broker is {server}, which this package is not tested with.",
            why="Retries rely on RabbitMQ's dead-lettering.",
            fix="Use RabbitMQ; 3.10, 4.0 and 4.3 are tested.",
        )
    elif server.version < OLDEST:
        yield area.error(
            f"{server} is older than 3.10, the oldest supported version.",
            why="It lacks at-least-once dead-lettering, so a restart of the broker can lose waiting retries.",
            fix="Upgrade RabbitMQ.",
        )
    elif server.version[:2] > NEWEST:
        newest = ".".join(map(str, NEWEST))
        yield area.ok(f"{server} is newer than {newest}, the newest version that this package is tested with.")
    for subscription in map(registry.subscription, joined()):
        if refusal := subscription.policy.via.version_refusal(server):
            yield area.error(
                f"{subscription.name}: {refusal}",
                why="rmq_consume exits with code 4.",
                fix="Change via=… of this handler, or upgrade RabbitMQ.",
            )
    if session.connection.frame_max < FRAME_MAX:
        yield area.error(
            f"The broker accepts frames of {session.connection.frame_max} bytes only.",
            why="A message with larger headers could not be retried or parked, so rmq_consume exits with code 4.",
            fix=f"Set frame_max = {FRAME_MAX} in rabbitmq.conf.",
        )


def _policies(sight: Sight, topology: Topology) -> Iterator[Finding]:
    area = Area.POLICIES
    if sight.embedded:
        yield area.ok("The embedded broker has no policies.")
    elif sight.trouble:
        yield area.warning(
            f"Not looked at: {sight.trouble}.",
            why="Policies, bindings, rights and unacked messages are not visible.",
            fix=f"Correct {API}, or give its user the tag management.",
        )
    elif sight.rows is None:
        yield area.unseen(sight.blind, fix=f"Set {API}, such as http://user:password@rabbit:15672.")
    else:
        harms = _harms(topology, sight.rows)
        for (setter, key, value, harm), queues in harms.items():
            yield area.error(
                f"{setter} sets {key} to {value} on {listed(map(repr, queues))}.",
                why=harm,
                fix=f"Exclude these queues from its pattern: rabbitmqctl list_policies -p {_vhost()} "
                f"(or list_operator_policies)",
            )
        if not harms:
            governed = sum(bool(row.get("policy") or row.get("operator_policy")) for row in _ours(topology, sight.rows))
            yield area.ok(f"No policy changes how retries work; {plural(governed, 'queue')} with a policy.")


def _ours(topology: Topology, rows: Mapping[str, Row]) -> Iterator[Row]:
    return (rows[name] for name, queue in topology.queues.items() if name in rows and queue.role in STORING)


def _harms(topology: Topology, rows: Mapping[str, Row]) -> dict[tuple[str, str, str, str], list[str]]:
    """Return the queues of each harm, by policy, key, value and text."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for row in _ours(topology, rows):
        policy = dict(row.get("effective_policy_definition") or {})
        it = Governed(queue=topology.queues[row["name"]], type=row.get("type", ""), policy=policy)
        named = {"Policy": row.get("policy"), "Operator policy": row.get("operator_policy")}
        setter = " or ".join(f"{kind} {name!r}" for kind, name in named.items() if name) or "A policy"
        for key, harm_of in HARMS.items():
            if key in policy and (harm := harm_of(it)):
                found.setdefault((setter, key, shown(policy[key]), harm), []).append(it.queue.name)
    return found


def _permissions(sight: Sight, topology: Topology) -> Iterator[Finding]:
    area, session = Area.PERMISSIONS, sight.it.session
    if sight.embedded:
        yield area.ok("The embedded broker has no users and refuses nothing.")
        return
    if session.server.product != "RabbitMQ":
        yield area.unseen("only RabbitMQ's answers are known")
        return
    user, consumed = session.connection.user, _consumed()
    found = []
    unread = [name for name in consumed if inspection.refused_read(session, name)]
    if unread:
        why = "rmq_consume takes no messages from them, and exits with code 4 if a work queue is among them."
        found.append(_lacking(user, "read", unread, why))
    row = _patterns(sight, user)
    copied = sorted({edge.target[1] for edge in copies_of(registry.work_queues()) if edge.target[0]})
    unwritten = [name for name in copied if row is not None and not _grants(row["write"], name)]
    test = inspection.try_publish(session)
    if test.refusal is not None or unwritten:
        why = "Retries, parked copies and answers are refused, so failed messages stay unacked."
        found.append(_lacking(user, "write", [*(["amq.default"] if test.refusal else []), *unwritten], why))
    yield from found
    if not found:
        text = f"{user!r} may read {plural(len(consumed), 'queue')} and publish to the default exchange"
        yield area.ok(f"{text}{_undeclared(row, topology)}.")
    if test.blocked:
        yield Area.BROKER.error(
            f"The broker blocks all connections that publish: {test.blocked}.",
            why="Publishes, retries and parked copies wait until its alarm is over; running handlers can still ack.",
            fix="Free memory or disk space on the broker: rabbitmq-diagnostics alarms",
        )


def _consumed() -> list[str]:
    """Return the queues that rmq_consume reads with this project's settings."""
    work = registry.work_queues()
    names = [one.queue.name for one in work if one.queue.lasting]
    names += [one.quarantine for one in work if one.quarantine]
    return list(dict.fromkeys([*names, *((one.park for one in work) if settings().records else ())]))


def _lacking(user: str, right: str, names: list[str], why: str) -> Finding:
    grant = f"rabbitmqctl set_permissions -p {_vhost()} {shlex.quote(user)} CONFIGURE WRITE READ"
    return Area.PERMISSIONS.error(
        f"The user {user!r} lacks the {right} right on {listed(map(repr, names))}.",
        why=why,
        fix=f"{grant}, with a {right.upper()} pattern that matches; list_user_permissions shows the present ones",
    )


def _patterns(sight: Sight, user: str) -> Row | None:
    """Return the user's permissions; None if the management API does not show them to its own user."""
    if sight.it.inspector is None:
        return None
    try:
        return sight.it.inspector.permission(user)
    except (BrokerUnreachable, BrokerRefused):
        return None


def _grants(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern or "^$", name) is not None
    except re.error:
        # A pattern of Erlang's dialect.
        return True


def _undeclared(row: Row | None, topology: Topology) -> str:
    """Return a clause about the objects that the user may not create."""
    named = (topology.exchanges, topology.lasting.queues)
    own = [name for declared in named for name, one in declared.items() if not one.existing]
    lacking = [name for name in own if row and not _grants(row["configure"], name)]
    if not lacking:
        return ""
    return f"; rmq_declare needs another user, because this one may not create {listed(map(repr, lacking))}"


def _topology(sight: Sight, topology: Topology) -> Iterator[Finding]:
    area, plan = Area.TOPOLOGY, sight.it.plan(topology)
    missing = plan.of(PlanState.CREATE)
    if missing:
        yield area.error(
            f"The broker lacks {listed(f'{item.kind} {item.name}' for item in missing)}.",
            why="rmq_consume exits with code 4 without its queues; messages without a queue are returned or dropped.",
            fix="manage.py rmq_declare",
        )
    wrong = plan.of(PlanState.DIFFERS, PlanState.MISSING, PlanState.REFUSED, PlanState.LEFT)
    yield from (_drifted(item) for item in wrong if not item.forbidden)
    forbidden = [item.name for item in wrong if item.forbidden]
    if forbidden:
        yield area.unseen(
            f"the user {sight.it.session.connection.user!r} lacks a right on them",
            what=f"{listed(map(repr, forbidden))}:",
            fix=f"Set {API}, or run manage.py rmq_declare --check as the user that declares.",
        )
    rows = sight.rows.values() if sight.rows is not None else None
    yield from dead_letter_processes(sight.it.session.server, topology, rows)
    same, unseen = len(plan.of(PlanState.SAME)), len(plan.of(PlanState.UNSEEN))
    if unseen:
        fix = "" if sight.embedded else f"Set {API}."
        yield area.unseen(sight.blind, what=f"{plural(unseen, 'binding')}:", fix=fix)
    if (same or not plan.items) and not missing and len(wrong) == len(forbidden):
        yield area.ok(f"{same} of {len(plan.items)} queues, exchanges and bindings are known to match the code.")


def _drifted(item: Item) -> Finding:
    area, name = Area.TOPOLOGY, f"{item.kind.capitalize()} {item.name!r}"
    if item.state is PlanState.LEFT:
        queue = item.name.removesuffix(MOVING)
        return area.error(
            f"A move of the messages of {queue!r} was interrupted, and {item.name!r} holds them.",
            why="No handler gets them.",
            fix=f"manage.py rmq_declare --recreate {shlex.quote(queue)}",
        )
    if item.state is PlanState.MISSING:
        return area.error(
            f"{name} is external (existing=True), and the broker lacks it.",
            why="Messages that should pass through it are returned or dropped.",
            fix="Ask its owner to create it, or remove existing=True and run manage.py rmq_declare",
        )
    if item.state is PlanState.REFUSED:
        return area.error(
            f"{name} cannot be declared: {one_line(Exception(item.text))}.",
            why="rmq_declare leaves it out.",
            fix="Correct its definition; manage.py rmq_declare --plan checks it again.",
        )
    fix = "Define it as the broker has it, or rename it."
    if getattr(item.declaration, "existing", False):
        fix = "Define it as the broker has it, or ask its owner to change it."
    elif item.kind == "queue":
        command = f"manage.py rmq_declare --recreate {shlex.quote(item.name)}"
        fix = f"Stop its consumers and publishers, then run {command}"
    return area.error(
        f"{name} differs from the code: {item.text}.",
        why="The broker works by its own arguments: retries, parking or order may differ from the code.",
        fix=fix,
    )


def _abandoned(level: Level) -> Iterator[Finding]:
    for problem in level.problems:
        yield Area.TOPOLOGY.error(
            f"No handler reads queue {level.queue!r} any more, which has {plural(level.ready or 0, 'message')}.",
            why="It was renamed or its handler was removed, and it has no consumer.",
            fix=f"manage.py {problem.rpartition('manage.py ')[2]}",
        )


def _unread(level: Level) -> Finding:
    """Return the finding on a queue of another program."""
    return Area.CONSUMERS.warning(
        f"Queue {level.queue!r}: {level.remark}, and no handler of this project is for it.",
        why=f"It has {plural(level.ready or 0, 'message')} ready.",
        fix="Start the program that reads it, or remove it from RMQ_RETRY['TOPOLOGY'] if none does.",
    )


def _problem(level: Level, problem: str) -> Finding:
    why, fix = {
        NO_CONSUMER: (
            f"It has {plural(level.ready or 0, 'message')} ready.",
            f"Start manage.py rmq_consume {shlex.quote(level.queue)}"
            if level.role is Role.WORK
            else "Start manage.py rmq_consume",
        ),
        TOO_EARLY: (
            "Their back-off is lost, and attempts are used up.",
            f"Stop the program that consumes it: rabbitmqctl list_consumers -p {_vhost()}",
        ),
        FULL: ("Publishers get errors, or messages are removed.", "Start more consumers, or raise its max_length."),
    }.get(problem, ("They are delivered once the target accepts them.", "manage.py rmq_declare, or empty the target."))
    return Area.CONSUMERS.error(f"Queue {level.queue!r}: {problem}.", why=why, fix=fix)


def _unrecorded(sight: Sight, topology: Topology) -> Iterator[Finding]:
    """Yield a finding for each queue of messages that the database refused."""
    for queue in topology.queues.values():
        if queue.role is not Role.PARKED:
            continue
        name = queue.name + UNRECORDED_QUEUE
        try:
            holding = inspection.counted(sight.it.session, (sight.rows or {}).get(name), name)
        except Refusal:
            # From RabbitMQ 4.3 on, even this needs a permission on the name.
            continue
        if holding is not None and holding.ready:
            yield Area.PARKED.error(
                f"The database refused {plural(holding.ready, 'message')}, now in {name!r}.",
                why="They are neither in the admin nor in rmq_parked.",
                fix=f"The header rmq-retry-unrecorded has the reason; afterwards move them to {queue.name!r}.",
            )


def _vhost() -> str:
    """Return the virtual host as a word of a shell command."""
    return shlex.quote(settings().address().vhost)
