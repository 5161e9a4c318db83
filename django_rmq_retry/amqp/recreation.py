"""Recreates a queue with other arguments, and removes a queue that no handler uses any longer: its messages are moved.

A queue cannot be changed in place. Its messages wait in ``<queue>.moving`` meanwhile, which has the queue's bindings,
so that messages published to its exchanges in between are kept, too. If the process is killed at any point, run the
operation again. Messages published by the queue's name cannot be kept: see ``Doubt.PUBLISHERS``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from django_rmq_retry.amqp.declarer import MOVING, Declarer
from django_rmq_retry.amqp.deletion import delete_empty, delete_queues, feeds
from django_rmq_retry.amqp.inspection import Holding, WouldLose, look, look_at_rest, returning, watch
from django_rmq_retry.amqp.move import Move, aside, back, for_good
from django_rmq_retry.amqp.session import Question, binding, declaring, unbinding
from django_rmq_retry.topology.declarations import (
    NO_LIMIT,
    AbandonedQueue,
    BindingDeclaration,
    QueueDeclaration,
    Role,
    Topology,
)
from django_rmq_retry.topology.plan import PlanState

TRIAL = ".trial"
"""The suffix of the queue on which new arguments are tried."""


class Doubt(StrEnum):
    """A possible loss that the command cannot see, as a question to the operator."""

    CONSUMERS = (
        "A message that is still unacked at a consumer, or that is on its way as a dead letter, would be lost; only "
        'the management API (RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"]) could see it. Are all consumers of the queue '
        "stopped?"
    )
    # While RabbitMQ deletes a queue, for some milliseconds, it still routes messages to it, and confirms them when the
    # queue is gone; neither `if-empty` nor the count in the answer covers them. No AMQP method closes a queue. A policy
    # of `max-length: 0` with `reject-publish` is no way either: a classic queue applies the length first and drops its
    # messages, and a quorum queue accepts a message afterwards and refuses publishers even after the policy is gone.
    PUBLISHERS = (
        "A message that is published by the queue's name while the broker deletes the queue is confirmed and lost. "
        "publish() without an exchange, the outbox, requeue runs, rmq_publish and consumers' retries publish by name. "
        "Are all publishers by its name stopped?"
    )


Confirm = Callable[[Doubt], None]
"""Asks the operator; returns only if the answer is yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recreated:
    """The result of a recreation; ``moved`` counts a message once for each move."""

    queue: str
    done: bool
    moved: int = 0


class Recreation:
    """Recreates a queue: ``Recreation(declarer, topology, "payments.charge").run(confirm)``."""

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
            raise WouldLose(self._name, "it is external (existing=True).")
        state = self._state()
        interrupted = self._look(self._aside) is not None
        if state is PlanState.SAME and not interrupted:
            return Recreated(queue=self._name, done=False)
        moved = 0
        if state is PlanState.DIFFERS:
            self._check(confirm)
            if self._move_to is not None:
                moved += Move(self._session, self._name, self._move_to, change=for_good(self._name)).run()
            self._empty()
        return Recreated(queue=self._name, done=True, moved=moved + self._fill())

    def _state(self) -> PlanState:
        only = Topology(queues={self._name: self._wanted})
        item = self._declarer.plan(only).items[0]
        if item.state is PlanState.REFUSED:
            raise WouldLose(self._name, item.problem)
        return item.state

    def _check(self, confirm: Confirm) -> None:
        """Check for every foreseeable failure before anything is changed."""
        holding = watch(self._session, self._declarer.inspector, [self._name]).get(self._name)
        if holding is None:
            return
        holding.refuse_use()
        if self._move_to is not None and self._look(self._move_to) is None:
            raise WouldLose(self._name, f"the queue {self._move_to!r} that shall take its messages does not exist.")
        for feeder in self._topology.queues.values():
            if not feeds(feeder, self._name) or feeder.arguments.get("x-dead-letter-strategy") == "at-least-once":
                continue
            waiting = self._look(feeder.name)
            if waiting is not None and not waiting.empty:
                raise WouldLose(
                    self._name,
                    f"{returning(waiting.ready, feeder.name)} by at-most-once dead-lettering, and would be lost while "
                    "it is away. Wait until none is left there.",
                )
        self._try_out()
        if holding.hidden is None:
            confirm(Doubt.CONSUMERS)
        confirm(Doubt.PUBLISHERS)

    def _try_out(self) -> None:
        """Declare the new arguments on a queue with another name: invalid ones are refused before any change."""
        trial = replace(self._wanted, name=self._name + TRIAL)
        self._session.ask(declaring(trial))
        self._session.ask(lambda channel, done: channel.queue_delete(trial.name, callback=done))

    def _empty(self) -> None:
        """Move all messages to the ``.moving`` queue, and delete the old queue."""
        quorum = self._wanted.arguments.get("x-queue-type") == "quorum"
        kind = {"x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT} if quorum else {}
        keep = QueueDeclaration(name=self._aside, arguments=kind)
        self._session.ask(declaring(keep))
        # Bind the new queue before unbinding the old one: in between, a message is duplicated instead of lost.
        self._each_binding(binding, self._aside)
        self._each_binding(unbinding, self._name)
        while True:
            Move(self._session, self._name, self._aside, change=aside(self._name)).run()
            holding = look_at_rest(self._session, self._declarer.inspector, self._name)
            if holding is None or not holding.ready:
                break
            holding.refuse_use()
        delete_empty(self._declarer, self._name)

    def _fill(self) -> int:
        """Create the new queue, and move all messages back into it."""
        self._session.ask(declaring(self._wanted))
        self._each_binding(binding, self._name)
        if self._look(self._aside) is None:
            return 0
        self._each_binding(unbinding, self._aside)
        moved = 0
        while (left := self._look(self._aside)) is not None and left.ready:
            moved += Move(self._session, self._aside, self._name, change=back).run()
        delete_empty(self._declarer, self._aside)
        return moved

    def _look(self, queue: str) -> Holding | None:
        return look(self._session, self._declarer.inspector, queue)

    def _each_binding(self, change: Callable[[BindingDeclaration], Question], queue: str) -> None:
        for one in self._bindings:
            self._session.ask(change(replace(one, destination=queue)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedQueue:
    """The result of removing a queue that no handler uses any longer, and the queues that belonged to it."""

    queue: str
    moved: int
    deleted: list[str]
    kept: dict[str, str]


class QueueRemoval:
    """Moves the messages of an abandoned queue and of those that belonged to it to ``targets``, then deletes them."""

    def __init__(self, declarer: Declarer, family: Sequence[AbandonedQueue], targets: Mapping[str, str]) -> None:
        self._declarer = declarer
        self._session = declarer.session
        self._family = {abandoned.queue.name: abandoned for abandoned in family}
        self._targets = targets

    def run(self, queue: str, confirm: Confirm) -> RemovedQueue:
        """Move the messages and delete the queues.

        If the process is killed at any point, run it again: a message may be duplicated, and none is lost of those that
        were published before it, or to an exchange.
        """
        self._check(confirm)
        for abandoned in self._family.values():
            for one in abandoned.bindings:
                self._session.ask(unbinding(one))
        moved = sum(self._move(name) for name in self._family)
        waiting = [abandoned.queue for abandoned in self._family.values()]
        # Queues that feed another one are deleted first.
        order = sorted(self._family, key=lambda name: self._family[name].queue.role is not Role.WAITING)
        done = delete_queues(self._declarer, order, feeders=waiting)
        return RemovedQueue(queue=queue, moved=moved, deleted=done.deleted, kept=done.refused)

    def _check(self, confirm: Confirm) -> None:
        seen = watch(self._session, self._declarer.inspector, self._family)
        for holding in seen.values():
            holding.refuse_use()
        for name, target in self._targets.items():
            if look(self._session, None, target) is None:
                raise WouldLose(name, f"the queue {target!r} that shall take its messages does not exist.")
        if any(holding.hidden is None for holding in seen.values()):
            confirm(Doubt.CONSUMERS)
        if seen:
            confirm(Doubt.PUBLISHERS)

    def _move(self, name: str) -> int:
        target = self._targets.get(name)
        if target is None or look(self._session, None, name) is None:
            return 0
        return Move(self._session, name, target, change=for_good(name)).run()
