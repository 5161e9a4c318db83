"""Declares a topology: creates missing queues, exchanges and bindings, reports differences, changes no existing one."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pika.exceptions import AMQPError

from django_rmq_retry.amqp.management_api import Inspector
from django_rmq_retry.amqp.refusals import LOCKED, Refusal
from django_rmq_retry.amqp.rows import Row
from django_rmq_retry.amqp.session import (
    METHOD_FIELDS,
    NamedDeclaration,
    Session,
    binding,
    declaring,
    passively,
    right_for,
    wanted,
)
from django_rmq_retry.arguments import plural
from django_rmq_retry.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Topology
from django_rmq_retry.topology.plan import Difference, Item, Plan, PlanState, queue_refusal

_NEVER: Mapping[str, object] = {"x-delivery-limit": "none", "x-queue-mode": "none"}
"""Invalid arguments: no queue can be created with them. A queue's type decides which one it is compared with."""
_TARGET, _KEY = "x-dead-letter-exchange", "x-dead-letter-routing-key"
_TYPE = "x-queue-type"
_UNREPORTED = object()

MOVING = ".moving"
"""The suffix of the queue that holds the messages of a queue while it is recreated."""


def by_trial(session: Session, declaration: NamedDeclaration) -> tuple[Difference, ...]:
    """Return the differences. Each refusal names one; declaring again with the broker's value shows the next."""
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


def of_others(session: Session, declaration: NamedDeclaration, row: Row | None) -> tuple[str, tuple[Difference, ...]]:
    """Return the type of a foreign queue or exchange, and where it differs from what the project declares or needs."""
    if row is not None:
        there = _reported(declaration, row)
    elif isinstance(declaration, QueueDeclaration):
        there = _ask_by_trial(session, declaration, {_TYPE: "classic", **wanted(declaration), **_NEVER})
        there[_TYPE] = there[_TYPE] or "classic"
    else:
        # A flag in place of a name is always refused last, and no exchange can be created with it.
        there = _ask_by_trial(session, declaration, {**wanted(declaration), "alternate-exchange": True})
    return str(there.get(_TYPE, "")), _material(declaration, _unfit(declaration, there))


def _material(declaration: NamedDeclaration, differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the differences without arguments that the broker lacks and that change nothing."""
    implied = declaration.implied if isinstance(declaration, QueueDeclaration) else frozenset()
    return tuple(
        one for one in differences if one.argument not in implied or one.broker is not None or not one.reported
    )


def _unfit(declaration: NamedDeclaration, there: Mapping[str, object]) -> Iterator[Difference]:
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


def _reported(declaration: NamedDeclaration, row: Row) -> dict[str, object]:
    """Return the arguments that the management API shows. A value set by a broker policy counts like an argument."""
    if isinstance(declaration, ExchangeDeclaration):
        return {"type": row["type"], **row["arguments"]}
    policy = dict(row.get("effective_policy_definition") or {})
    return {**{f"x-{name}": value for name, value in policy.items()}, **row["arguments"], _TYPE: row["type"]}


def _ask_by_trial(session: Session, declaration: NamedDeclaration, trial: dict[str, object]) -> dict[str, object]:
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


def by_row(declaration: NamedDeclaration, row: Row) -> tuple[Difference, ...] | None:
    """Return the differences from a row of the management API; None if only the broker itself can find them."""
    here = wanted(declaration)
    there = {**{name: row.get(name, here[name]) for name in METHOD_FIELDS if name in here}, **row["arguments"]}
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
        declarations: list[NamedDeclaration] = [*topology.exchanges.values(), *topology.queues.values()]
        named = [self._look(declaration) for declaration in declarations]
        states = {(item.kind, item.name): item.state for item in named}
        rows = self.inspector.bindings() if self.inspector and topology.bindings else None
        fanouts = {name for name, exchange in topology.exchanges.items() if exchange.type == "fanout"}
        bindings = [
            _bound(binding, _standing(binding, states, rows, fanouts), foreign=topology.foreign(binding))
            for binding in topology.bindings
        ]
        left = [item for queue in topology.queues for item in self._interrupted_move(queue)]
        return Plan(server=self.session.server, items=(*named, *bindings, *left))

    def declare(self, topology: Topology) -> Plan:
        """Create what is missing and bind it; leave what differs unchanged. Return the plan of what was done."""
        plan = self.plan(topology)
        return replace(plan, items=tuple(self._carry_out(item) for item in plan.items))

    def there(self, declaration: NamedDeclaration) -> bool:
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

    def _look(self, declaration: NamedDeclaration) -> Item:
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

    def _of_others(self, declaration: NamedDeclaration) -> Item:
        try:
            kind, differences = of_others(self.session, declaration, self._row(declaration))
        except Refusal as refusal:
            # It exists; comparing its arguments needs a permission that its owners need not grant.
            if not refusal.forbidden:
                raise
            problem = "Not compared: the user lacks the configure right on it."
            return Item(declaration=declaration, state=PlanState.SAME, problem=problem, forbidden=True)
        state = PlanState.DIFFERS if differences else PlanState.SAME
        return Item(declaration=declaration, state=state, differences=differences, type=kind)

    def _differences(self, declaration: NamedDeclaration) -> tuple[Difference, ...]:
        row = self._row(declaration)
        differences = None if row is None else by_row(declaration, row)
        return _material(declaration, by_trial(self.session, declaration) if differences is None else differences)

    def _row(self, declaration: NamedDeclaration) -> Row | None:
        if self.inspector is None:
            return None
        if isinstance(declaration, QueueDeclaration):
            return self.inspector.queue(declaration.name)
        return self.inspector.exchange(declaration.name)

    def _interrupted_move(self, queue: str) -> list[Item]:
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


def _absent(declaration: NamedDeclaration, unfit: str | None) -> Item:
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


def _bound(binding: BindingDeclaration, state: PlanState, *, foreign: bool) -> Item:
    if not foreign or state is not PlanState.CREATE:
        return Item(declaration=binding, state=state, foreign=foreign)
    problem = "Both ends belong to others (existing=True), and they have not bound them."
    return Item(declaration=binding, state=PlanState.MISSING, problem=problem, foreign=True)


def _standing(
    binding: BindingDeclaration,
    states: Mapping[tuple[str, str], PlanState],
    rows: list[Row] | None,
    fanouts: Collection[str],
) -> PlanState:
    ends = (("exchange", binding.source), ("exchange" if binding.to_exchange else "queue", binding.destination))
    if any(states.get(end) is PlanState.CREATE for end in ends):
        return PlanState.CREATE
    if rows is None:
        return PlanState.UNSEEN
    return PlanState.SAME if any(_is_row(binding, row, fanouts) for row in rows) else PlanState.CREATE


def _is_row(binding: BindingDeclaration, row: Row, fanouts: Collection[str]) -> bool:
    """True if the row is this binding; a fanout exchange looks at no key and no argument."""
    return (
        (row["source"], row["destination"]) == (binding.source, binding.destination)
        and (row["destination_type"] == "exchange") is binding.to_exchange
        and (
            binding.source in fanouts
            or (row["routing_key"], row["arguments"]) == (binding.key, dict(binding.arguments))
        )
    )
