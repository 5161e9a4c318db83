"""Brings a topology to a broker: looks first, creates what is missing, and never changes or deletes what is there."""

from collections.abc import Mapping
from dataclasses import replace

from pika.exceptions import AMQPError

from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.capabilities import queue_refusal
from django_rmq_retry.broker.comparing import by_row, by_trial
from django_rmq_retry.broker.inspecting import Inspector, Row
from django_rmq_retry.broker.plans import Difference, Item, Plan, State
from django_rmq_retry.broker.refusing import Refusal
from django_rmq_retry.broker.wording import Named, binding, declaring, passively, right_for, wanted
from django_rmq_retry.core.declarations import BindingDeclaration, QueueDeclaration, Topology

MOVING = ".moving"
"""What the queue is called that holds the messages of one that is being made anew."""


class Declarer:
    """``with Session(access) as session: Declarer(session).declare(topology)``; ``plan`` only looks."""

    def __init__(self, session: Session, inspector: Inspector | None = None) -> None:
        self.session = session
        self.inspector = inspector

    def plan(self, topology: Topology) -> Plan:
        """How the topology stands on the broker. Nothing is written."""
        declarations: list[Named] = [*topology.exchanges.values(), *topology.queues.values()]
        named = [self._look(declaration) for declaration in declarations]
        states = {(item.kind, item.name): item.state for item in named}
        rows = self.inspector.bindings() if self.inspector and topology.bindings else None
        bindings = [Item(declaration=said, state=_standing(said, states, rows)) for said in topology.bindings]
        left = [item for queue in topology.queues for item in self._left(queue)]
        return Plan(server=self.session.server, items=(*named, *bindings, *left))

    def declare(self, topology: Topology) -> Plan:
        """Create what is missing and bind; what differs is left alone. The plan tells what was done."""
        plan = self.plan(topology)
        return replace(plan, items=tuple(self._carry_out(item) for item in plan.items))

    def there(self, declaration: Named) -> bool:
        """Whether the broker has something of that name. Not knowing is a Refusal."""
        try:
            self.session.ask(passively(declaration))
        except Refusal as refusal:
            if refusal.missing:
                return False
            # From RabbitMQ 4.3 on looking needs a right on that name.
            if refusal.forbidden and self.inspector is not None:
                return self._row(declaration) is not None
            raise
        return True

    def _look(self, declaration: Named) -> Item:
        unfit = queue_refusal(self.session.server, declaration) if isinstance(declaration, QueueDeclaration) else None
        try:
            if not self.there(declaration):
                return _absent(declaration, unfit)
            found = () if declaration.existing else self._differences(declaration)
        except (Refusal, AMQPError) as error:
            return _refused(Item(declaration=declaration, state=State.REFUSED), error)
        if unfit and not declaration.existing:
            return Item(declaration=declaration, state=State.REFUSED, differences=found, problem=unfit)
        return Item(declaration=declaration, state=State.DIFFERS if found else State.SAME, differences=found)

    def _differences(self, declaration: Named) -> tuple[Difference, ...]:
        row = self._row(declaration)
        found = None if row is None else by_row(declaration, row)
        return by_trial(self.session, declaration) if found is None else found

    def _row(self, declaration: Named) -> Row | None:
        if self.inspector is None:
            return None
        if isinstance(declaration, QueueDeclaration):
            return self.inspector.queue(declaration.name)
        return self.inspector.exchange(declaration.name)

    def _left(self, queue: str) -> list[Item]:
        """Whether a move of this queue was interrupted."""
        moving = QueueDeclaration(name=queue + MOVING)
        try:
            answer = self.session.ask(passively(moving))
        except Refusal:
            return []
        problem = (
            f"{answer.method.message_count} messages of {queue!r}, whose move was interrupted. "
            f"End it with `manage.py rmq_declare --recreate {queue}`."
        )
        return [Item(declaration=moving, state=State.LEFT, problem=problem)]

    def _carry_out(self, item: Item) -> Item:
        declaration = item.declaration
        try:
            if isinstance(declaration, BindingDeclaration):
                # Bound although it may be bound already: that is no change.
                if item.state is not State.SAME:
                    self.session.ask(binding(declaration))
                return replace(item, state=State.SAME) if item.state is State.UNSEEN else item
            if item.state is State.CREATE:
                self.session.ask(declaring(declaration, wanted(declaration)))
        except (Refusal, AMQPError) as error:
            return _refused(item, error)
        return item


def _absent(declaration: Named, unfit: str | None) -> Item:
    if declaration.existing:
        problem = "It is somebody else's (existing=True), and it is not there."
        return Item(declaration=declaration, state=State.MISSING, problem=problem)
    if unfit:
        return Item(declaration=declaration, state=State.REFUSED, problem=unfit)
    return Item(declaration=declaration, state=State.CREATE)


def _refused(item: Item, error: Refusal | AMQPError) -> Item:
    if isinstance(error, Refusal):
        problem = error.sentence(lambda what, name: right_for(item.declaration, what, name))
    else:  # pika meets a value that AMQP has no type for
        problem = f"It cannot be sent: {type(error).__name__} {error}."
    return replace(item, state=State.REFUSED, problem=problem)


def _standing(said: BindingDeclaration, states: Mapping[tuple[str, str], State], rows: list[Row] | None) -> State:
    ends = (("exchange", said.source), ("exchange" if said.to_exchange else "queue", said.destination))
    if any(states.get(end) is State.CREATE for end in ends):
        return State.CREATE
    if rows is None:
        return State.UNSEEN
    return State.SAME if any(_is_row(said, row) for row in rows) else State.CREATE


def _is_row(said: BindingDeclaration, row: Row) -> bool:
    return (
        (row["source"], row["destination"], row["routing_key"]) == (said.source, said.destination, said.key)
        and (row["destination_type"] == "exchange") is said.to_exchange
        and row["arguments"] == dict(said.arguments)
    )
