"""Declares a topology: creates missing queues, exchanges and bindings, reports differences, changes no existing one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pika.exceptions import AMQPError

from django_rmq_retry.amqp.inspection import Holding, Inspector, counted
from django_rmq_retry.amqp.refusals import LOCKED, Refusal
from django_rmq_retry.amqp.rows import Row
from django_rmq_retry.amqp.session import OWN, Named, Session, binding, declaring, passively, right_for, wanted
from django_rmq_retry.arguments import plural
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.topology.declarations import (
    QUARANTINE,
    BindingDeclaration,
    ExchangeDeclaration,
    Former,
    QueueDeclaration,
    Role,
    Topology,
)
from django_rmq_retry.topology.plan import Difference, Item, Plan, PlanState, queue_refusal

_NEVER: Mapping[str, object] = {"x-delivery-limit": "none", "x-queue-mode": "none"}
"""Invalid arguments: no queue can be created with them. A queue's type decides which one it is compared with."""
_TARGET, _KEY = "x-dead-letter-exchange", "x-dead-letter-routing-key"
_TYPE = "x-queue-type"
_UNREPORTED = object()

MOVING = ".moving"
"""The suffix of the queue that holds the messages of a queue while it is recreated."""

NO_CONSUMER = "no consumer reads this queue"
TOO_EARLY = "a consumer reads it, so retries arrive too early"
FULL = "full: it rejects or drops messages"
INTERRUPTED = "a move of its messages was interrupted"
"""The beginning of a problem that the plan reports too."""


def by_trial(session: Session, declaration: Named) -> tuple[Difference, ...]:
    """Return the differences, found by declaring what is known to exist, which changes nothing.

    Each refusal names one argument and the broker's value; declaring again with that value shows the next difference.
    """
    here = wanted(declaration)
    trial, differences = dict(here), dict[str, Difference]()
    while True:
        try:
            session.ask(declaring(declaration, trial))
        except Refusal as refusal:
            named = _named(refusal)
            if named is None and not differences:
                raise
            if named is None or named.argument in differences:
                return tuple(differences.values())
            differences[named.argument] = replace(named, here=here.get(named.argument))
            trial[named.argument] = named.broker
            if not named.reported:
                return tuple(differences.values())
        else:
            return tuple(differences.values())


def of_others(session: Session, declaration: Named, row: Row | None) -> tuple[str, tuple[Difference, ...]]:
    """Return the type of a foreign queue or exchange, and where it differs from what the project declares or needs."""
    if row is not None:
        there = _reported(declaration, row)
    elif isinstance(declaration, QueueDeclaration):
        there = _tried(session, declaration, {_TYPE: "classic", **wanted(declaration), **_NEVER})
        there[_TYPE] = there[_TYPE] or "classic"
    else:
        # A flag in place of a name is always refused last, and no exchange can be created with it.
        there = _tried(session, declaration, {**wanted(declaration), "alternate-exchange": True})
    return str(there.get(_TYPE, "")), tuple(_unfit(declaration, there))


def _unfit(declaration: Named, there: Mapping[str, object]) -> Iterator[Difference]:
    if isinstance(declaration, QueueDeclaration):
        here = {name: value for name, value in declaration.arguments.items() if name in declaration.vital}
        # If the dead-letter exchange matters, an unexpected routing key would misroute retries.
        here |= {_KEY: here.get(_KEY)} if _TARGET in here else {}
    else:
        here = {"type": declaration.type, **declaration.arguments}
    for name, value in here.items():
        broker = there.get(name)
        if broker != value:
            yield Difference(argument=name, here=value, broker=broker, reported=broker is not _UNREPORTED)


def _reported(declaration: Named, row: Row) -> dict[str, object]:
    """Return the arguments that the management API shows. A value set by a broker policy counts like an argument."""
    if isinstance(declaration, ExchangeDeclaration):
        return {"type": row["type"], **row["arguments"]}
    policy = dict(row.get("effective_policy_definition") or {})
    return {**{f"x-{name}": value for name, value in policy.items()}, **row["arguments"], _TYPE: row["type"]}


def _tried(session: Session, declaration: Named, trial: dict[str, object]) -> dict[str, object]:
    """Return the arguments that refusals name. The declarations are invalid: they cannot create it if it is gone."""
    named = set[str]()
    while True:
        try:
            session.ask(declaring(declaration, trial))
        except Refusal as refusal:
            difference = _named(refusal)
            if difference is None or difference.argument in named:
                raise
            named.add(difference.argument)
            trial[difference.argument] = difference.broker if difference.reported else _UNREPORTED
            if not difference.reported or difference.argument == "alternate-exchange":
                return trial
        else:
            return trial


def by_row(declaration: Named, row: Row) -> tuple[Difference, ...] | None:
    """Return the differences from a row of the management API; None if only the broker itself can find them."""
    here = wanted(declaration)
    there = {**{name: row.get(name, here[name]) for name in OWN if name in here}, **row["arguments"]}
    if isinstance(declaration, QueueDeclaration):
        # A queue without a type is classic. A declaration without a type gets the virtual host's default, however.
        if "x-queue-type" not in here and row["type"] != "classic":
            return None
        there["x-queue-type"], here = row["type"], {"x-queue-type": "classic", **here}
    return tuple(
        Difference(argument=name, here=here.get(name), broker=there.get(name))
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    )


def _named(refusal: Refusal) -> Difference | None:
    if refusal.code == LOCKED:
        return Difference(argument="exclusive", here=False, broker=True, reported=False)
    unequal = refusal.unequal
    if unequal is None:
        return None
    return Difference(argument=unequal.argument, here=None, broker=unequal.value, reported=unequal.reported)


class Declarer:
    """``with Session(access) as session: Declarer(session).declare(topology)``; ``plan`` changes nothing."""

    def __init__(self, session: Session, inspector: Inspector | None = None) -> None:
        self.session = session
        self.inspector = inspector

    def plan(self, topology: Topology) -> Plan:
        """Return the topology's state on the broker, without the queues that consumers declare. Changes nothing."""
        topology = topology.lasting
        declarations: list[Named] = [*topology.exchanges.values(), *topology.queues.values()]
        named = [self._look(declaration) for declaration in declarations]
        states = {(item.kind, item.name): item.state for item in named}
        rows = self.inspector.bindings() if self.inspector and topology.bindings else None
        bindings = [_bound(binding, states, rows, foreign=topology.foreign(binding)) for binding in topology.bindings]
        left = [item for queue in topology.queues for item in self._left(queue)]
        return Plan(server=self.session.server, items=(*named, *bindings, *left))

    def declare(self, topology: Topology) -> Plan:
        """Create what is missing and bind it; leave what differs unchanged. Return the plan of what was done."""
        plan = self.plan(topology)
        return replace(plan, items=tuple(self._carry_out(item) for item in plan.items))

    def there(self, declaration: Named) -> bool:
        """True if the broker has a queue or exchange of that name. Raises a Refusal if that cannot be determined."""
        try:
            self.session.ask(passively(declaration))
        except Refusal as refusal:
            if refusal.missing:
                return False
            # From RabbitMQ 4.3 on, a passive declaration needs a permission on that name.
            if refusal.forbidden and self.inspector is not None:
                return self._row(declaration) is not None
            raise
        return True

    def _look(self, declaration: Named) -> Item:
        unfit = queue_refusal(self.session.server, declaration) if isinstance(declaration, QueueDeclaration) else None
        try:
            if not self.there(declaration):
                return _absent(declaration, unfit)
            if declaration.existing:
                return self._of_others(declaration)
            differences = self._differences(declaration)
        except (Refusal, AMQPError) as error:
            return _refused(Item(declaration=declaration, state=PlanState.REFUSED), error)
        if unfit:
            return Item(declaration=declaration, state=PlanState.REFUSED, differences=differences, problem=unfit)
        return Item(
            declaration=declaration, state=PlanState.DIFFERS if differences else PlanState.SAME, differences=differences
        )

    def _of_others(self, declaration: Named) -> Item:
        try:
            kind, differences = of_others(self.session, declaration, self._row(declaration))
        except Refusal as refusal:
            # It exists; comparing its arguments needs a permission that its owners need not grant.
            if not refusal.forbidden:
                raise
            kind, differences = "", ()
        state = PlanState.DIFFERS if differences else PlanState.SAME
        return Item(declaration=declaration, state=state, differences=differences, type=kind)

    def _differences(self, declaration: Named) -> tuple[Difference, ...]:
        row = self._row(declaration)
        differences = None if row is None else by_row(declaration, row)
        return by_trial(self.session, declaration) if differences is None else differences

    def _row(self, declaration: Named) -> Row | None:
        if self.inspector is None:
            return None
        if isinstance(declaration, QueueDeclaration):
            return self.inspector.queue(declaration.name)
        return self.inspector.exchange(declaration.name)

    def _left(self, queue: str) -> list[Item]:
        """Return an item if a move of this queue was interrupted."""
        moving = QueueDeclaration(name=queue + MOVING)
        try:
            answer = self.session.ask(passively(moving))
        except Refusal:
            return []
        problem = (
            f"{plural(answer.method.message_count, 'message')} of {queue!r}, whose move was interrupted. "
            f"End it with `manage.py rmq_declare --recreate {queue}`."
        )
        return [Item(declaration=moving, state=PlanState.LEFT, problem=problem)]

    def _carry_out(self, item: Item) -> Item:
        declaration = item.declaration
        try:
            if isinstance(declaration, BindingDeclaration):
                # Binding again what is already bound changes nothing.
                if item.state not in (PlanState.SAME, PlanState.MISSING) and not item.foreign:
                    self.session.ask(binding(declaration))
                    return replace(item, state=PlanState.SAME) if item.state is PlanState.UNSEEN else item
                return item
            if item.state is PlanState.CREATE:
                self.session.ask(declaring(declaration, wanted(declaration)))
        except (Refusal, AMQPError) as error:
            return _refused(item, error)
        return item


def _absent(declaration: Named, unfit: str | None) -> Item:
    if declaration.existing:
        problem = "It is external (existing=True) and does not exist."
        return Item(declaration=declaration, state=PlanState.MISSING, problem=problem)
    if unfit:
        return Item(declaration=declaration, state=PlanState.REFUSED, problem=unfit)
    return Item(declaration=declaration, state=PlanState.CREATE)


def _refused(item: Item, error: Refusal | AMQPError) -> Item:
    if isinstance(error, Refusal):
        problem = error.sentence(lambda what, name: right_for(item.declaration, what, name))
    else:  # pika found a value that AMQP has no type for
        problem = f"It cannot be sent: {type(error).__name__} {error}."
    forbidden = isinstance(error, Refusal) and error.forbidden
    return replace(item, state=PlanState.REFUSED, problem=problem, forbidden=forbidden)


def _bound(
    binding: BindingDeclaration, states: Mapping[tuple[str, str], PlanState], rows: list[Row] | None, *, foreign: bool
) -> Item:
    state = _standing(binding, states, rows)
    if not foreign or state is not PlanState.CREATE:
        return Item(declaration=binding, state=state, foreign=foreign)
    problem = "Both ends belong to others (existing=True), and they have not bound them."
    return Item(declaration=binding, state=PlanState.MISSING, problem=problem, foreign=True)


def _standing(
    binding: BindingDeclaration, states: Mapping[tuple[str, str], PlanState], rows: list[Row] | None
) -> PlanState:
    ends = (("exchange", binding.source), ("exchange" if binding.to_exchange else "queue", binding.destination))
    if any(states.get(end) is PlanState.CREATE for end in ends):
        return PlanState.CREATE
    if rows is None:
        return PlanState.UNSEEN
    return PlanState.SAME if any(_is_row(binding, row) for row in rows) else PlanState.CREATE


def _is_row(binding: BindingDeclaration, row: Row) -> bool:
    return (
        (row["source"], row["destination"], row["routing_key"]) == (binding.source, binding.destination, binding.key)
        and (row["destination_type"] == "exchange") is binding.to_exchange
        and row["arguments"] == dict(binding.arguments)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits within which a queue is healthy."""

    min_consumers: int = 0
    stopped: frozenset[str] = frozenset()
    """Queues that an operator has stopped, so they need no consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The state of one queue; None marks a value that is unknown."""

    queue: str
    role: Role
    ready: int | None = None
    consumers: int | None = None
    unacked: int | None = None
    arriving: float | None = None
    """Messages a second."""
    leaving: float | None = None
    problems: tuple[str, ...] = ()
    abandoned: bool = False
    """True if the project declared the queue but no handler consumes it any longer."""
    remark: str = ""
    """A note that is no problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauged:
    """The state of all queues; ``blind`` is the reason why the management API was not read."""

    levels: tuple[Level, ...]
    blind: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{level.queue}: {problem}" for level in self.levels for problem in level.problems)


def gauge(declarer: Declarer, topology: Topology, bounds: Bounds, formers: Sequence[Former] = ()) -> Gauged:
    """Return the state of every queue of the topology, and of the former ones that exist.

    No message is read: reading one can lose it (RabbitMQ 4.0, quorum queues).
    """
    rows: Mapping[str, Row] = {}
    blind = 'Unacked messages and rates are shown only with RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"].'
    if declarer.inspector is not None:
        try:
            rows, blind = declarer.inspector.queues(), ""
        except (BrokerUnreachable, BrokerRefused) as error:
            blind = str(error)
    levels = [_level(declarer, queue, rows.get(queue.name), bounds) for queue in topology.queues.values()]
    former_levels = _formers(declarer, formers, rows, topology)
    return Gauged(levels=(*_read(levels, bounds), *former_levels), blind=blind)


def _read(levels: Sequence[Level], bounds: Bounds) -> list[Level]:
    """Return the levels with a problem for each quarantine queue with messages whose work queue has no consumer.

    A quarantine queue itself often has none: consumers of the work queue consume it in turn with others.
    """
    consumers = {level.queue: level.consumers for level in levels}

    def unread(level: Level) -> bool:
        work = level.queue.removesuffix(QUARANTINE)
        waits = level.role is Role.QUARANTINE and level.ready and work not in bounds.stopped
        return bool(waits and not level.consumers and not consumers.get(work))

    return [replace(level, problems=(NO_CONSUMER, *level.problems)) if unread(level) else level for level in levels]


def _level(declarer: Declarer, queue: QueueDeclaration, row: Row | None, bounds: Bounds) -> Level:
    if not queue.lasting:
        # A consumer creates and removes it. Other connections have no access to an exclusive queue.
        return Level(queue=queue.name, role=queue.role)
    try:
        holding = counted(declarer.session, row, queue.name)
    except Refusal as refusal:
        return Level(queue=queue.name, role=queue.role, problems=(refusal.sentence(),))
    if holding is None:
        missing = "it does not exist: manage.py rmq_declare"
        return Level(queue=queue.name, role=queue.role, problems=(missing, *_left(declarer, queue)))
    problems = (*_problems(queue, holding, row or {}, bounds), *_left(declarer, queue))
    # Another program reads it, perhaps not at this moment.
    unread = queue.role is Role.OTHER and "x-message-ttl" not in queue.arguments and _unread(holding)
    return replace(_measured(queue, holding, row), problems=problems, remark=NO_CONSUMER if unread else "")


def _measured(queue: QueueDeclaration, holding: Holding, row: Row | None) -> Level:
    return Level(
        queue=queue.name,
        role=queue.role,
        ready=holding.ready,
        consumers=holding.consumers,
        unacked=None if row is None else row.get("messages_unacknowledged"),
        arriving=_rate(row, "publish"),
        leaving=_rate(row, "deliver_get"),
    )


def _formers(declarer: Declarer, formers: Sequence[Former], rows: Mapping[str, Row], topology: Topology) -> list[Level]:
    """Return the former queues that exist, each with a problem or a remark."""
    seen: dict[str, Level] = {}
    for former in formers:
        name, row = former.queue.name, rows.get(former.queue.name)
        try:
            holding = counted(declarer.session, row, name)
        except Refusal as refusal:
            seen[name] = Level(queue=name, role=former.queue.role, problems=(refusal.sentence(),))
            continue
        if holding is not None:
            seen[name] = _measured(former.queue, holding, row)
    homes = {former.queue.name: former.home for former in formers}
    # The queues with consumers: retries that return to one of them are handled.
    read = {*topology.queues, *(name for name, level in seen.items() if level.consumers)}
    return [
        replace(
            _judged(level, homes[name] if homes[name] in seen else name, returns=homes[name] in read), abandoned=True
        )
        for name, level in seen.items()
    ]


def _judged(level: Level, whole: str, *, returns: bool) -> Level:
    """Add the problem or remark of a former queue; ``whole`` is the queue with which it is deleted or moved."""
    if level.problems:
        return level
    if not level.ready and not level.consumers:
        return replace(level, remark=f"abandoned, empty: manage.py rmq_delete {whole}")
    messages = f"{level.ready} message{'' if level.ready == 1 else 's'}"
    if level.consumers:
        return replace(level, remark=f"handed over, {messages}, other consumers read it")
    if returns and level.role is Role.WAITING:
        return replace(level, remark=f"abandoned, {messages} will return to the work queue")
    # If other consumers read the home queue, the command refuses to move it; this queue can still be moved.
    move = f"manage.py rmq_declare --recreate {level.queue if returns else whole} --move-to NEW"
    return replace(level, problems=(f"abandoned, {messages}, no consumer: {move}",))


def _problems(queue: QueueDeclaration, holding: Holding, row: Row, bounds: Bounds) -> list[str]:
    problems = []
    read = queue.name not in bounds.stopped
    if _unread(holding) and queue.role in (Role.WORK, Role.REPLY) and read:
        problems.append(NO_CONSUMER)
    if queue.role is Role.WORK and holding.consumers < bounds.min_consumers and read:
        problems.append(f"{holding.consumers} of at least {bounds.min_consumers} consumers")
    if queue.role is Role.WAITING and holding.consumers:
        problems.append(TOO_EARLY)
    if _full(queue.arguments, holding.ready):
        problems.append(FULL)
    if row.get("messages_dlx"):
        wait, whose = ("waits", "its") if row["messages_dlx"] == 1 else ("wait", "their")
        letters = plural(row["messages_dlx"], "dead letter")
        problems.append(f"{letters} {wait}: {whose} target queue is full or missing")
    return problems


def _unread(holding: Holding) -> bool:
    return bool(holding.ready and not holding.consumers)


def _full(arguments: Mapping[str, object], ready: int) -> bool:
    most = arguments.get("x-max-length")
    return isinstance(most, int) and ready >= most


def _left(declarer: Declarer, queue: QueueDeclaration) -> list[str]:
    if queue.role is not Role.WORK:
        return []
    try:
        aside = counted(declarer.session, None, queue.name + MOVING)
    except Refusal:
        return []
    if aside is None:
        return []
    move = f"manage.py rmq_declare --recreate {queue.name}"
    wait = "waits" if aside.ready == 1 else "wait"
    return [f"{INTERRUPTED}, {plural(aside.ready, 'message')} {wait}: {move}"]


def _rate(row: Row | None, name: str) -> float | None:
    """Return a rate in messages per second; the API omits rates without traffic and right after the broker's start."""
    if row is None:
        return None
    details = row.get("message_stats", {}).get(f"{name}_details", {})
    return float(details.get("rate", 0.0))
