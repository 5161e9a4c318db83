"""Moves messages between queues, recreates queues with other arguments, and deletes queues.

A queue cannot be changed in place. Its messages wait in ``<queue>.moving`` meanwhile, which has the queue's bindings,
so that messages published to its exchanges in between are kept, too. If the process is killed at any point, run the
operation again. Messages published by the queue's name cannot be kept: see ``Doubt.PUBLISHERS``.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pika import spec

from django_rmq_retry.amqp.declarer import MOVING, Declarer
from django_rmq_retry.amqp.frames import RawProperties, marshal_publish
from django_rmq_retry.amqp.inspection import Holding, WouldLose, look, look_at_rest, returning, watch
from django_rmq_retry.amqp.refusals import Refusal, above
from django_rmq_retry.amqp.session import Question, Session, binding, declaring, unbinding, wanted
from django_rmq_retry.errors import RmqRetryError, UndecodableHeaders
from django_rmq_retry.messages.deaths import rejections
from django_rmq_retry.messages.header_names import BARE, BROKERS_OWN, PREFIX
from django_rmq_retry.messages.history import Stamp
from django_rmq_retry.messages.properties import DIRECT, decode_properties, encode_properties
from django_rmq_retry.topology.declarations import (
    NO_LIMIT,
    BindingDeclaration,
    Former,
    QueueDeclaration,
    Role,
    Topology,
)
from django_rmq_retry.topology.plan import PlanState

WINDOW = 200
"""The largest number of unconfirmed copies."""
EXPIRATION = PREFIX + "expiration"
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
Change = Callable[[bytes], bytes]
Got = tuple[spec.Basic.GetOk, RawProperties, bytes]
_RUNG = re.compile(r"(?P<work>.+)\.(?:retry\.[0-9]+(?:ms|s|m|h|d)|quarantine)", re.DOTALL)

TRIAL = ".trial"
"""The suffix of the queue on which new arguments are tried."""


class Doubt(StrEnum):
    """A possible loss that the command cannot see, as a question to the operator."""

    CONSUMERS = (
        "A message that is still unacked at a consumer, or that is on its way as a dead letter, would be lost; only "
        'the management API (RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"]) could see it. Are all consumers stopped?'
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


class MoveStopped(RmqRetryError):
    """The broker did not accept a copy; messages already moved stay moved, the others are still in their queue."""

    def __init__(self, source: str, target: str, reason: str) -> None:
        self.source = source
        self.target = target
        super().__init__(f"Moving {source!r} to {target!r} stopped: {reason} No message was lost; run it again.")


class Move:
    """Moves messages until the queue is empty: ``Move(session, "a", "b", change=for_good("a")).run()``."""

    def __init__(self, session: Session, source: str, target: str, *, change: Change) -> None:
        self.moved = 0
        self._session = session
        self._source = source
        self._target = target
        self._change = change
        self._channel = session.new_channel()
        self._sent = 0
        self._pending: dict[int, int] = {}
        self._got: list[Got | None] = []
        self._failure = ""

    def run(self) -> int:
        """Move all messages; return their number."""
        try:
            self._begin()
            while (got := self._next()) is not None:
                self._copy(*got)
                self._wait(lambda: len(self._pending) < WINDOW)
            self._wait(lambda: not self._pending)
        finally:
            self._end()
        return self.moved

    def _begin(self) -> None:
        ready: list[object] = []
        channel = self._channel
        channel.add_on_return_callback(lambda _channel, method, *_: self._fail(f"{method.reply_text}."))
        channel.add_callback(lambda _: self._got.append(None), [spec.Basic.GetEmpty], one_shot=False)
        channel.confirm_delivery(self._confirmed, callback=ready.append)
        self._wait(lambda: ready)

    def _next(self) -> Got | None:
        def got(_channel: object, method: spec.Basic.GetOk, properties: Any, body: bytes) -> None:
            self._got.append((method, properties, body))

        self._channel.basic_get(self._source, got)
        self._wait(lambda: self._got)
        return self._got.pop()

    def _copy(self, method: spec.Basic.GetOk, properties: RawProperties, body: bytes) -> None:
        connection = self._session.connection
        self._check_size(len(body))
        data = marshal_publish(
            self._channel.channel_number,
            self._change(properties.raw),
            body,
            exchange="",
            routing_key=self._target,
            mandatory=True,
            frame_max=connection.frame_max,
        )
        self._sent += 1
        self._pending[self._sent] = method.delivery_tag or 0
        connection.send_raw(data)

    def _check_size(self, size: int) -> None:
        """Test the size first: a copy too large closes the channel and duplicates messages confirmed but not acked."""
        sizes = self._session.connection.sizes
        if size > sizes.accepted and sizes.limit is None:
            answered: list[bool] = []
            sizes.test(size, lambda: answered.append(True))
            self._wait(lambda: answered)
        if sizes.limit is not None and size > sizes.limit:
            self._wait(lambda: not self._pending)
            self._fail(f"{above(size, sizes.limit)}: raise max_message_size there.")
            self._wait(lambda: None)

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, spec.Basic.Nack):
            self._fail("the queue there refuses a copy.")
        if self._failure:
            # A copy confirmed after a failure becomes a duplicate, because its original is requeued: that is accepted.
            return
        tag = method.delivery_tag
        for one in [number for number in self._pending if number <= tag] if method.multiple else [tag]:
            self._channel.basic_ack(self._pending.pop(one))
            self.moved += 1

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason

    def _wait(self, ready: Callable[[], object]) -> None:
        self._session.wait(lambda: self._failure or ready(), self._channel)
        if self._failure:
            raise MoveStopped(self._source, self._target, self._failure)

    def _end(self) -> None:
        """Close the channel: unacked messages are requeued, and acks already sent take effect before."""
        if self._channel.is_open:
            self._channel.close()
            self._session.wait(lambda: self._channel.is_closed)


def for_good(queue: str) -> Change:
    """Return the change of properties when messages leave this queue permanently."""
    return lambda raw: _leaving(raw, queue, keep={})


def aside(queue: str) -> Change:
    """Return the change of properties when messages leave this queue temporarily.

    No message may expire meanwhile, so its expiration is kept in a header.
    """

    def change(raw: bytes) -> bytes:
        try:
            expiration = decode_properties(raw).expiration
        except UndecodableHeaders:
            return raw
        return _leaving(raw, queue, keep={} if expiration is None else {EXPIRATION: expiration})

    return change


def _leaving(raw: bytes, queue: str, *, keep: dict[str, object]) -> bytes:
    try:
        properties = decode_properties(raw)
        put = dict(keep)
        # A copy starts a new x-death: its count is kept in a header of ours, which the carriers (the ways in which a
        # retry waits) read.
        counted = rejections(properties.headers, queue)
        if counted:
            put[PREFIX + "attempts"] = Stamp.read(properties.headers).attempts + counted
        if properties.reply_to == DIRECT:
            properties, put[BARE] = replace(properties, reply_to=None), DIRECT
        headers = properties.headers.replacing(drop=BROKERS_OWN | {EXPIRATION} | put.keys(), put=put)
    except UndecodableHeaders:
        return raw
    expiration = None if keep else properties.expiration
    return encode_properties(replace(properties, expiration=expiration, user_id=None, headers=headers))


def back(raw: bytes) -> bytes:
    """Return the properties of a message on its way back; its own expiration starts again from the full time."""
    if EXPIRATION.encode() not in raw:
        return raw
    try:
        properties = decode_properties(raw)
        expiration = properties.headers.get(EXPIRATION)
        headers = properties.headers.replacing(drop={EXPIRATION}, put={})
    except UndecodableHeaders:
        return raw
    # A sender may have put an invalid value there. The broker would refuse it, and no message could be moved.
    known = expiration if isinstance(expiration, str) and _MILLISECONDS.fullmatch(expiration) else properties.expiration
    return encode_properties(replace(properties, expiration=known, headers=headers))


@dataclass(slots=True, kw_only=True)
class Deleted:
    """The result of a deletion for each name."""

    deleted: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def delete_queues(
    declarer: Declarer, queues: Iterable[str], *, feeders: Sequence[QueueDeclaration] = (), force: bool = False
) -> Deleted:
    """Delete queues that are empty, not consumed and expect no retries; with ``force``, all, with their messages."""
    deleted = Deleted()
    free = [queue for queue in queues if force or _is_free(declarer, queue, deleted)]
    if not force:
        free = [queue for queue in free if not _is_awaited(declarer, queue, feeders, deleted)]
    # The management API lags: it shows a message that was just delivered only later.
    later = {} if force else watch(declarer.session, declarer.inspector, free)
    for queue in free:
        try:
            if force:
                _delete_forced(declarer, queue, deleted)
            elif queue in later:
                later[queue].refuse_use()
                delete_empty(declarer, queue)
                deleted.deleted.append(queue)
        except WouldLose as refusal:
            deleted.refused[queue] = refusal.reason
        except Refusal as refusal:
            deleted.refused[queue] = refusal.sentence()
    return deleted


def delete_exchanges(
    declarer: Declarer, exchanges: Iterable[str], bindings: Iterable[BindingDeclaration] = ()
) -> Deleted:
    """Remove these bindings, then delete the exchanges that have no other bindings."""
    deleted = Deleted()
    for one in bindings:
        with suppress(Refusal):
            declarer.session.ask(unbinding(one))
    for name in exchanges:
        try:
            declarer.session.ask(_dropping(name))
            deleted.deleted.append(name)
        except Refusal as refusal:
            deleted.refused[name] = refusal.sentence()
    return deleted


def delete_empty(declarer: Declarer, queue: str) -> None:
    """Delete a queue that was just found empty, after checking it once more."""
    holding = look_at_rest(declarer.session, declarer.inspector, queue)
    if holding is None:
        return
    _refuse(holding, "They were published to it meanwhile: stop its publishers, and run it again.")
    # Quorum queues do not support a conditional delete: the broker closes the connection instead.
    declarer.session.ask(lambda channel, done: channel.queue_delete(queue, callback=done))


def stale(topology: Topology, there: Iterable[str]) -> list[str]:
    """Return the existing queues that this project once derived from its work queues and no longer uses."""
    # Owners of a foreign queue may have queues of their own with such names.
    work = {queue.name for queue in topology.queues.values() if queue.role is Role.WORK and not queue.existing}
    feeders = []
    for name in sorted(there):
        rung = _RUNG.fullmatch(name)
        if rung and rung["work"] in work and name not in topology.queues:
            feeders.append(name)
    return feeders


def _dropping(exchange: str) -> Question:
    return lambda channel, done: channel.exchange_delete(exchange, if_unused=True, callback=done)


def _is_free(declarer: Declarer, queue: str, deleted: Deleted) -> bool:
    try:
        holding = look_at_rest(declarer.session, declarer.inspector, queue)
        if holding is None:
            deleted.missing.append(queue)
            return False
        _refuse(holding, "Let them be handled or move them, or delete them too with --force.")
    except WouldLose as refusal:
        deleted.refused[queue] = refusal.reason
        return False
    except Refusal as refusal:
        deleted.refused[queue] = refusal.sentence()
        return False
    return True


def _is_awaited(declarer: Declarer, queue: str, feeders: Iterable[QueueDeclaration], deleted: Deleted) -> bool:
    for feeder in feeders:
        if feeder.role is not Role.WAITING or not feeds(feeder, queue):
            continue
        try:
            waiting = look(declarer.session, declarer.inspector, feeder.name)
        except Refusal as refusal:
            deleted.refused[queue] = refusal.sentence()
            return True
        if waiting is not None and not waiting.empty:
            deleted.refused[queue] = f"{returning(waiting.ready, feeder.name)}. Wait until none is left there."
            return True
    return False


def feeds(feeder: QueueDeclaration, queue: str) -> bool:
    """True if the feeder dead-letters directly to the queue by its name."""
    target = (feeder.arguments.get("x-dead-letter-exchange"), feeder.arguments.get("x-dead-letter-routing-key"))
    return target == ("", queue)


def _refuse(holding: Holding, advice: str) -> None:
    holding.refuse_use()
    holding.refuse_messages(advice)


def _delete_forced(declarer: Declarer, queue: str, deleted: Deleted) -> None:
    there = look(declarer.session, declarer.inspector, queue)
    declarer.session.ask(lambda channel, done: channel.queue_delete(queue, callback=done))
    (deleted.missing if there is None else deleted.deleted).append(queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recreated:
    """The result of a recreation; ``moved`` counts a message once for each move."""

    queue: str
    done: bool
    moved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed:
    """The result of removing a queue that no handler uses any longer, and the queues that belonged to it."""

    queue: str
    moved: int
    deleted: list[str]
    kept: dict[str, str]


class Departure:
    """Moves the messages of a former queue and the queues that belonged to it elsewhere, then deletes these queues.

    ``targets`` names the target queue for each. Messages in a queue without a target return by themselves.
    """

    def __init__(self, declarer: Declarer, family: Sequence[Former], targets: Mapping[str, str]) -> None:
        self._declarer = declarer
        self._session = declarer.session
        self._family = {former.queue.name: former for former in family}
        self._targets = targets

    def run(self, queue: str, confirm: Confirm) -> Departed:
        """Move the messages and delete the queues.

        If the process is killed at any point, run it again: a message may be duplicated, and none is lost of those that
        were published before it, or to an exchange.
        """
        self._check(confirm)
        for former in self._family.values():
            for one in former.bindings:
                self._session.ask(unbinding(one))
        moved = sum(self._moved(name) for name in self._family)
        waiting = [former.queue for former in self._family.values()]
        # Queues that feed another one are deleted first.
        order = sorted(self._family, key=lambda name: self._family[name].queue.role is not Role.WAITING)
        done = delete_queues(self._declarer, order, feeders=waiting)
        return Departed(queue=queue, moved=moved, deleted=done.deleted, kept=done.refused)

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

    def _moved(self, name: str) -> int:
        target = self._targets.get(name)
        if target is None or look(self._session, None, name) is None:
            return 0
        return Move(self._session, name, target, change=for_good(name)).run()


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
        for feeder in _feeders(self._topology, self._name):
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
        self._session.ask(declaring(trial, wanted(trial)))
        self._session.ask(lambda channel, done: channel.queue_delete(trial.name, callback=done))

    def _empty(self) -> None:
        """Move all messages to the ``.moving`` queue, and delete the old queue."""
        quorum = self._wanted.arguments.get("x-queue-type") == "quorum"
        kind = {"x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT} if quorum else {}
        keep = QueueDeclaration(name=self._aside, arguments=kind)
        self._session.ask(declaring(keep, wanted(keep)))
        # Bind the new queue before unbinding the old one: in between, a message is duplicated instead of lost.
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
        """Create the new queue, and move all messages back into it."""
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
    """Return the queues that dead-letter to this one at most once: they lose messages while it does not exist."""
    return [
        one
        for one in topology.queues.values()
        if feeds(one, queue) and one.arguments.get("x-dead-letter-strategy") != "at-least-once"
    ]
