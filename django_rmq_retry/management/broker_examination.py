"""The examination of the broker for ``rmq_doctor``: policies, permissions, topology and consumers."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from django_rmq_retry.amqp import inspection
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.frames import FRAME_MAX
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.rows import Row
from django_rmq_retry.arguments import plural
from django_rmq_retry.checks.settings import joined
from django_rmq_retry.conf import settings
from django_rmq_retry.declared import gauged
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, ConfigurationError
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import copies_of
from django_rmq_retry.health.broker import round_trip
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.problems import as_felt, in_plan, unreachable
from django_rmq_retry.health.rules import API, SLOW_BROKER_SECONDS, Area, Code, Problem
from django_rmq_retry.management.command import open_declarer
from django_rmq_retry.management.examination import Examined, Examiner, looked
from django_rmq_retry.management.findings import Finding
from django_rmq_retry.messages.parked_copy import UNRECORDED_QUEUE
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.topology.declarations import NO_LIMIT, QueueDeclaration, Role, Topology
from django_rmq_retry.topology.drawings import duration
from django_rmq_retry.topology.plan import PlanState, shown
from django_rmq_retry.wording import listed

OLDEST, NEWEST = (3, 10), (4, 3)
"""The oldest supported version of RabbitMQ, and the newest that the tests run on."""
BEHIND = (Area.POLICIES, Area.PERMISSIONS, Area.TOPOLOGY, Area.CONSUMERS)
"""The areas that need the broker and valid handlers."""
LACKED = {
    "read": "rmq_consume takes no messages from them, and exits with code 4 if a work queue is among them.",
    "write": "Retries, parked copies and answers are refused, so failed messages stay unacked.",
}
"""The consequences of missing rights."""
OF_PLAN = (Code.MISSING, Code.SEVERAL_MISSING, Code.EXTERNAL_MISSING, Code.UNREADABLE, Code.INTERRUPTED)
"""Problems of queues that the topology's findings include, with more about them."""
STORING = (Role.WORK, Role.WAITING, Role.QUARANTINE, Role.PARKED)
"""The roles of queues that hold messages of handlers."""
ENDLESS = 2**53
"""The number above which a policy's value is a way to write that there is no limit; times end not far above it."""
CONSUMER_TIMEOUT_MS = 1_800_000
"""RabbitMQ's own limit for an unacked message."""
MANY_PROCESSES = 100
"""The number of at-least-once queues from which a rolling update may strand some (rabbitmq-server#16652)."""
NATIVE = (4, 3)


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


def _ttl(governed: Governed) -> str:
    ttl = governed.lowered("message-ttl")
    if ttl is None:
        return ""
    after = duration(ttl)
    return {
        Role.WAITING: f"A retry leaves the waiting queue after {after}, earlier than the handler's policy plans.",
        Role.PARKED: f"A parked message that no consumer has recorded within {after} is deleted.",
    }.get(governed.queue.role, f"A message that no handler takes within {after} expires without an attempt.")


def _length(governed: Governed, name: str) -> str:
    if governed.lowered(name) is None:
        return ""
    if (governed.own("overflow") or governed.policy.get("overflow")) == "reject-publish":
        return {
            Role.WORK: "When the queue is full, publishing raises MessageNacked.",
            Role.PARKED: "When the queue is full, failed messages cannot be parked and stay unacked.",
        }.get(governed.queue.role, "When the queue is full, retries cannot be stored and stay unacked.")
    deleted = "deletes" if governed.queue.role is Role.PARKED else "removes"
    return f"When the queue is full, the broker {deleted} its oldest message without an attempt."


def _expires(governed: Governed) -> str:
    after = governed.lowered("expires")
    if after is None:
        return ""
    return f"The broker deletes the queue with its messages after {duration(after)} without use."


def _limit(governed: Governed) -> str:
    limit = governed.lowered("delivery-limit")
    # -1 is unlimited from RabbitMQ 4 on.
    if limit is None or not 0 <= limit < NO_LIMIT or governed.type != "quorum":
        return ""
    if governed.queue.role is Role.WAITING:
        return f"A retry is sent before it is due after {limit} returns; each look for chosen retries is one."
    return f"The broker removes a message after {limit} returns; each orderly stop of a consumer is one too."


def _target(governed: Governed) -> str:
    if (
        governed.own("dead-letter-exchange") is not None
        or governed.queue.existing
        or governed.queue.role is Role.PARKED
    ):
        return ""
    return "Messages that the broker removes are sent to another exchange than the project plans."


def _key(governed: Governed) -> str:
    if (
        governed.own("dead-letter-exchange") is None
        or governed.own("dead-letter-routing-key") is not None
        or governed.queue.existing
    ):
        return ""
    return "Dead letters get another routing key, so retries and parked messages reach another queue or none."


def _delayed(governed: Governed) -> str:
    planned = governed.own("delayed-retry-type") is not None or governed.policy["delayed-retry-type"] == "disabled"
    return "" if planned or governed.type != "quorum" else "A returned message waits, and later messages overtake it."


def _unacked(governed: Governed) -> str:
    limit = governed.lowered("consumer-timeout")
    if limit is None or limit >= CONSUMER_TIMEOUT_MS or governed.queue.role is not Role.WORK:
        return ""
    here = [one for one in registry.subscriptions() if one.queue.name == governed.queue.name]
    if all(one.timeout is not None and one.timeout * 1000 < limit for one in here):
        return ""
    after = duration(limit)
    return f"The broker redelivers a message whose handler runs longer than {after}, while the handler still runs."


HARMS: Mapping[str, Callable[[Governed], str]] = {
    "message-ttl": _ttl,
    "max-length": lambda governed: _length(governed, "max-length"),
    "max-length-bytes": lambda governed: _length(governed, "max-length-bytes"),
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

    declarer: Declarer
    """Without the management API if that does not answer."""
    rows: Mapping[str, Row] | None = None
    blind: str = ""
    """The reason why there are no rows."""
    trouble: str = ""
    """The error of a management API that is set."""

    @classmethod
    def of(cls, declarer: Declarer) -> "Sight":
        if declarer.session.server.embedded:
            return cls(declarer=Declarer(declarer.session), blind="the embedded broker has no management API")
        if declarer.inspector is None:
            return cls(declarer=declarer, blind=f"{API} is not set")
        try:
            return cls(declarer=declarer, rows=declarer.inspector.queues())
        except (BrokerUnreachable, BrokerRefused) as error:
            return cls(
                declarer=Declarer(declarer.session),
                blind="the management API gives no usable answer",
                trouble=one_line(error),
            )

    @property
    def vhost(self) -> str:
        """The virtual host as a word of a shell command."""
        return shlex.quote(self.declarer.session.access.vhost)

    @property
    def embedded(self) -> bool:
        return self.declarer.session.server.embedded


class BrokerExamination:
    """The examination of the broker, on one session; once the broker does not answer, nothing more is requested."""

    def __init__(self, health: Health, timeout: float) -> None:
        self.health = health
        """What is known; the broker adds its queues."""
        self._timeout = timeout
        self.lost = False
        """True if the broker is unreachable."""

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        try:
            with open_declarer(timeout=self._timeout) as declarer:
                for area, look in self._looks(declarer).items():
                    found += looked(area, partial(self._unless_lost, declarer, area, look))
        except Exception as error:  # noqa: BLE001 - a URL function of the project may raise anything
            if not found:
                self.lost = True
                unseen = [Finding.unseen(area, "the broker cannot be reached") for area in BEHIND]
                found = [Finding.of(as_felt(unreachable(error), self.health.survey)), *unseen]
        return found

    def judged(self) -> list[Finding]:
        """Return what the rules find in all that is known, as each page and command that shows health does."""
        said = (*OF_PLAN, Code.DATABASE_UNUSABLE)
        return [Finding.of(problem) for problem in self.health.problems if problem.code not in said]

    def _looks(self, declarer: Declarer) -> Mapping[Area, Examiner]:
        """Return the looks in their order; the test of publishing comes last, because an alarm ends the session."""
        try:
            topology = registry.topology()
        except ConfigurationError:
            invalid = [lambda area=area: [Finding.unseen(area, "the handlers are invalid")] for area in BEHIND]
            return {Area.BROKER: partial(_broker, declarer), **dict(zip(BEHIND, invalid, strict=True))}
        sight = Sight.of(declarer)
        return {
            Area.BROKER: partial(_broker, declarer),
            Area.POLICIES: partial(_policies, sight, topology),
            Area.TOPOLOGY: partial(_topology, sight, topology),
            Area.CONSUMERS: partial(self._consumers, sight, topology),
            Area.PERMISSIONS: partial(_permissions, sight, topology),
        }

    def _unless_lost(self, declarer: Declarer, area: Area, look: Examiner) -> Iterator[Examined]:
        if not self.lost:
            try:
                yield from look()
            except BrokerUnreachable as error:
                if error.address != declarer.session.access.shown:
                    # The management API's own error.
                    raise
                self.lost = True
                yield as_felt(unreachable(error), self.health.survey)
            else:
                return
        yield Finding.unseen(area, "the broker does not answer")

    def _consumers(self, sight: Sight, topology: Topology) -> Iterator[Examined]:
        survey = self.health.survey
        self.health = replace(self.health, gauged=gauged(sight.declarer, survey.declared if survey else ()))
        levels, health = self.health.gauged.levels, self.health
        if settings().records:
            yield from _unrecorded(sight, topology)
        work = [level for level in levels if level.role is Role.WORK]
        unread = [repr(level.queue) for level in work if level.missing or level.refusal]
        if unread:
            yield Finding.unseen(Area.CONSUMERS, "they are missing or not readable", what=f"{listed(unread)}:")
        elif all(problem in health.of_database or problem.code in OF_PLAN for problem in health.needs):
            consumers, ready = (sum(getattr(level, name) or 0 for level in work) for name in ("consumers", "ready"))
            text = f"{plural(consumers, 'consumer')} on {plural(len(work), 'work queue')}"
            yield f"{text}, {plural(ready, 'message')} ready."


def _broker(declarer: Declarer) -> Iterator[Examined]:
    session = declarer.session
    server, seconds = session.server, round_trip(session)
    report = f"{session.access.shown} ({server.title}), round trip {seconds * 1000:.0f} ms."
    if seconds < SLOW_BROKER_SECONDS:
        yield report
    else:
        yield Problem(code=Code.BROKER_SLOW, values={"reason": report})
    if server.product != "RabbitMQ":
        yield Problem(code=Code.BROKER_UNTESTED, subject=str(server))
    elif server.version < OLDEST:
        yield Problem(code=Code.BROKER_OLD, subject=str(server))
    elif server.version[:2] > NEWEST:
        newest = ".".join(map(str, NEWEST))
        yield f"{server} is newer than {newest}, the newest version that this package is tested with."
    for subscription in map(registry.subscription, joined()):
        if refusal := subscription.policy.via.version_refusal(server):
            yield Problem(code=Code.CARRIER_UNSUPPORTED, subject=subscription.name, values={"reason": refusal})
    if session.connection.frame_max < FRAME_MAX:
        yield Problem(code=Code.SMALL_FRAMES, count=session.connection.frame_max, values={"least": FRAME_MAX})


def _policies(sight: Sight, topology: Topology) -> Iterator[Examined]:
    if sight.embedded:
        yield "The embedded broker has no policies."
    elif sight.trouble:
        yield Problem(code=Code.API_FAILS, values={"reason": sight.trouble})
    elif sight.rows is None:
        yield Finding.unseen(Area.POLICIES, sight.blind, fix=f"Set {API}, such as http://user:password@rabbit:15672.")
    else:
        harms = _harms(topology, sight.rows)
        for harm, queues in harms.items():
            values = dict(zip(("setter", "key", "value", "harm"), harm, strict=True))
            names = listed(map(repr, queues))
            yield Problem(code=Code.POLICY_HARMS, values={**values, "names": names, "vhost": sight.vhost})
        if not harms:
            governed = sum(bool(row.get("policy") or row.get("operator_policy")) for row in _ours(topology, sight.rows))
            yield f"No policy changes how retries work; {plural(governed, 'queue')} with a policy."


def _ours(topology: Topology, rows: Mapping[str, Row]) -> Iterator[Row]:
    return (rows[name] for name, queue in topology.queues.items() if name in rows and queue.role in STORING)


def _harms(topology: Topology, rows: Mapping[str, Row]) -> dict[tuple[str, str, str, str], list[str]]:
    """Return the queues of each harm, by policy, key, value and text."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for row in _ours(topology, rows):
        policy = dict(row.get("effective_policy_definition") or {})
        governed = Governed(queue=topology.queues[row["name"]], type=row.get("type", ""), policy=policy)
        named = {"Policy": row.get("policy"), "Operator policy": row.get("operator_policy")}
        setter = " or ".join(f"{kind} {name!r}" for kind, name in named.items() if name) or "A policy"
        for key, harm_of in HARMS.items():
            if key in policy and (harm := harm_of(governed)):
                found.setdefault((setter, key, shown(policy[key]), harm), []).append(governed.queue.name)
    return found


def _permissions(sight: Sight, topology: Topology) -> Iterator[Examined]:
    session = sight.declarer.session
    if sight.embedded:
        yield "The embedded broker has no users and refuses nothing."
        return
    if session.server.product != "RabbitMQ":
        yield Finding.unseen(Area.PERMISSIONS, "only RabbitMQ's answers are known")
        return
    user, consumed = session.connection.user, _consumed()
    unread = [name for name in consumed if inspection.refused_read(session, name)]
    row = _patterns(sight, user)
    copied = sorted({edge.target[1] for edge in copies_of(registry.work_queues()) if edge.target[0]})
    test = inspection.try_publish(session)
    unwritten = ["amq.default"] if test.refusal else []
    unwritten += [name for name in copied if row is not None and not _grants(row["write"], name)]
    for right, names in (("read", unread), ("write", unwritten)):
        if names:
            values = {"right": right, "pattern": right.upper(), "harm": LACKED[right], "vhost": sight.vhost}
            yield Problem(code=Code.RIGHT_LACKING, subject=user, values={**values, "names": listed(map(repr, names))})
    if not unread and not unwritten:
        text = f"{user!r} may read {plural(len(consumed), 'queue')} and publish to the default exchange"
        yield f"{text}{_undeclared(row, topology)}."
    if test.blocked:
        yield Problem(code=Code.BROKER_BLOCKS, values={"reason": test.blocked})


def _consumed() -> list[str]:
    """Return the queues that rmq_consume reads with this project's settings."""
    work = registry.work_queues()
    names = [one.queue.name for one in work if one.queue.lasting]
    names += [one.quarantine for one in work if one.quarantine]
    return list(dict.fromkeys([*names, *((one.park for one in work) if settings().records else ())]))


def _patterns(sight: Sight, user: str) -> Row | None:
    """Return the user's permissions; None if the management API does not show them to its own user."""
    if sight.declarer.inspector is None:
        return None
    try:
        return sight.declarer.inspector.permission(user)
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


def _topology(sight: Sight, topology: Topology) -> Iterator[Examined]:
    plan = sight.declarer.plan(topology)
    missing = plan.of(PlanState.CREATE)
    if missing:
        yield Problem(code=Code.DEFINITION_MISSING, subject=listed(f"{item.kind} {item.name}" for item in missing))
    wrong = plan.of(PlanState.DIFFERS, PlanState.MISSING, PlanState.REFUSED, PlanState.LEFT)
    plain = tuple(item for item in wrong if not item.forbidden)
    yield from in_plan(replace(plan, items=plain))
    forbidden = [item.name for item in plan.items if item.forbidden]
    if forbidden:
        yield Finding.unseen(
            Area.TOPOLOGY,
            f"the user {sight.declarer.session.connection.user!r} lacks a right on them",
            what=f"{listed(map(repr, forbidden))}:",
            fix=f"Set {API}, or run manage.py rmq_declare --check as the user that declares.",
        )
    yield from _dead_letter_processes(sight, topology)
    same = sum(not item.forbidden for item in plan.of(PlanState.SAME))
    unseen = len(plan.of(PlanState.UNSEEN))
    if unseen:
        fix = "" if sight.embedded else f"Set {API}."
        yield Finding.unseen(Area.TOPOLOGY, sight.blind, what=f"{plural(unseen, 'binding')}:", fix=fix)
    if (same or not plan.items) and not missing and not plain:
        yield f"{same} of {len(plan.items)} queues, exchanges and bindings are known to match the code."


def _dead_letter_processes(sight: Sight, topology: Topology) -> Iterator[Problem]:
    """Warn of many quorum queues that dead-letter at least once: the broker runs a process for each."""
    whose, rows = "of this virtual host", [*(sight.rows or {}).values()]
    if sight.rows is None:
        whose, declared = "of this project", (queue.arguments for queue in topology.queues.values())
        rows = [{"type": arguments.get("x-queue-type"), "arguments": arguments} for arguments in declared]
    count = sum(map(_is_careful, rows))
    if count >= MANY_PROCESSES:
        upgrade = "" if sight.declarer.session.server.at_least(NATIVE) else "upgrade to RabbitMQ 4.3 and "
        yield Problem(code=Code.MANY_DEAD_LETTER_PROCESSES, count=count, values={"whose": whose, "upgrade": upgrade})


def _is_careful(row: Row) -> bool:
    """True for a quorum queue that dead-letters at least once, by its argument or a policy."""
    arguments, policy = row.get("arguments"), row.get("effective_policy_definition")
    strategies = (
        arguments.get("x-dead-letter-strategy") if isinstance(arguments, Mapping) else None,
        policy.get("dead-letter-strategy") if isinstance(policy, Mapping) else None,
    )
    return row.get("type") == "quorum" and next(filter(None, strategies), None) == "at-least-once"


def _unrecorded(sight: Sight, topology: Topology) -> Iterator[Problem]:
    for queue in topology.queues.values():
        if queue.role is not Role.PARKED:
            continue
        name = queue.name + UNRECORDED_QUEUE
        try:
            holding = inspection.counted(sight.declarer.session, (sight.rows or {}).get(name), name)
        except Refusal:
            # From RabbitMQ 4.3 on, even this needs a permission on the name.
            continue
        if holding is not None and holding.ready:
            yield Problem(code=Code.UNRECORDED, subject=name, count=holding.ready, values={"parked": queue.name})
