"""Makes a queue anew with other arguments, and keeps its messages.

A queue cannot be changed in place. Its messages wait in ``<queue>.moving`` meanwhile, which is bound as the queue is,
so that what is published in between is kept too. Killed at any point, it is ended by running it again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from django_rmq_retry.broker.declaring import MOVING, Declarer
from django_rmq_retry.broker.deleting import UNSEEN, delete_empty
from django_rmq_retry.broker.holding import Holding, WouldLose, look, look_at_rest, watch
from django_rmq_retry.broker.moving import Move, aside, back, for_good
from django_rmq_retry.broker.plans import State
from django_rmq_retry.broker.wording import binding, declaring, unbinding, wanted
from django_rmq_retry.core.declarations import BindingDeclaration, QueueDeclaration, Topology
from django_rmq_retry.core.topology import NO_LIMIT

TRIAL = ".trial"
"""What the queue is called by which new arguments are tried out."""
Confirm = Callable[[str], None]
"""Asks a person; returns only if the answer is yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recreated:
    """What was done: whether there was anything to do, and how many messages were moved, each way counted once."""

    queue: str
    done: bool
    moved: int = 0


class Recreation:
    """``Recreation(declarer, topology, "payments.charge").run(confirm)``."""

    def __init__(self, declarer: Declarer, topology: Topology, queue: str, *, move_to: str | None = None) -> None:
        self._declarer = declarer
        self._session = declarer.session
        self._topology = topology
        self._wanted = topology.queues[queue]
        self._move_to = move_to
        self._name = queue
        self._aside = queue + MOVING
        self._bindings = [one for one in topology.bindings if not one.to_exchange and one.destination == queue]

    def run(self, confirm: Confirm) -> Recreated:
        if self._wanted.existing:
            raise WouldLose(self._name, "it is somebody else's (existing=True).")
        state = self._state()
        interrupted = self._look(self._aside) is not None
        if state is State.SAME and not interrupted:
            return Recreated(queue=self._name, done=False)
        moved = 0
        if state is State.DIFFERS:
            self._check(confirm)
            if self._move_to is not None:
                moved += Move(self._session, self._name, self._move_to, change=for_good(self._name)).run()
            self._empty()
        return Recreated(queue=self._name, done=True, moved=moved + self._fill())

    def _state(self) -> State:
        only = Topology(queues={self._name: self._wanted})
        item = self._declarer.plan(only).items[0]
        if item.state is State.REFUSED:
            raise WouldLose(self._name, item.problem)
        return item.state

    def _check(self, confirm: Confirm) -> None:
        """Everything that can be known to go wrong is asked for before anything is changed."""
        holding = watch(self._session, self._declarer.inspector, [self._name]).get(self._name)
        if holding is None:
            return
        holding.refuse_use()
        if self._move_to is not None and self._look(self._move_to) is None:
            raise WouldLose(self._name, f"the queue {self._move_to!r} that shall take its messages does not exist.")
        for feeder in _feeders(self._topology, self._name):
            waiting = self._look(feeder.name)
            if waiting is not None and not waiting.empty:
                raise WouldLose(
                    self._name,
                    f"{waiting.ready} messages in {feeder.name!r} come back to it by at-most-once dead-lettering, and "
                    "would be lost while it is away. Wait until they are back.",
                )
        self._try_out()
        if holding.hidden is None:
            confirm(UNSEEN)

    def _try_out(self) -> None:
        """A queue with the new arguments under another name: what the broker refuses, it refuses now."""
        trial = replace(self._wanted, name=self._name + TRIAL)
        self._session.ask(declaring(trial, wanted(trial)))
        self._session.ask(lambda channel, done: channel.queue_delete(trial.name, callback=done))

    def _empty(self) -> None:
        """Everything into the queue aside, and the old one gone."""
        quorum = self._wanted.arguments.get("x-queue-type") == "quorum"
        kind = {"x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT} if quorum else {}
        keep = QueueDeclaration(name=self._aside, arguments=kind)
        self._session.ask(declaring(keep, wanted(keep)))
        # First the one, then not the other: in between a message is doubled, and never lost.
        self._bind(self._aside, self._bindings)
        self._unbind(self._name, self._bindings)
        while True:
            Move(self._session, self._name, self._aside, change=aside(self._name)).run()
            holding = look_at_rest(self._session, self._declarer.inspector, self._name)
            if holding is None or not holding.ready:
                break
            holding.refuse_use()
        delete_empty(self._declarer, self._name)

    def _fill(self) -> int:
        """The new queue, and everything back into it."""
        self._session.ask(declaring(self._wanted, wanted(self._wanted)))
        self._bind(self._name, self._bindings)
        if self._look(self._aside) is None:
            return 0
        self._unbind(self._aside, self._bindings)
        moved = 0
        while (left := self._look(self._aside)) is not None and left.ready:
            moved += Move(self._session, self._aside, self._name, change=back).run()
        delete_empty(self._declarer, self._aside)
        return moved

    def _look(self, queue: str) -> Holding | None:
        return look(self._session, self._declarer.inspector, queue)

    def _bind(self, queue: str, bindings: Iterable[BindingDeclaration]) -> None:
        for one in bindings:
            self._session.ask(binding(replace(one, destination=queue)))

    def _unbind(self, queue: str, bindings: Iterable[BindingDeclaration]) -> None:
        for one in bindings:
            self._session.ask(unbinding(replace(one, destination=queue)))


def _feeders(topology: Topology, queue: str) -> list[QueueDeclaration]:
    """Queues that give messages up to this one by its name, and do not ask whether it is there."""
    return [
        one
        for one in topology.queues.values()
        if one.arguments.get("x-dead-letter-exchange") == ""
        and one.arguments.get("x-dead-letter-routing-key") == queue
        and one.arguments.get("x-dead-letter-strategy") != "at-least-once"
    ]
