"""Clients that do whatever comes, and the rules that hold whatever they do."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_rmq_retry.embedded.engine.channel import BrokerChannel
from django_rmq_retry.embedded.engine.envelopes import Deliver
from django_rmq_retry.embedded.engine.session import ClientSession
from django_rmq_retry.messages import Properties, encode_properties
from tests.embedded.engine_rig import EngineRig

CAREFUL = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
ARGUMENTS: dict[str, dict[str, object]] = {
    "plain": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"},
    "wait": {"x-message-ttl": 700, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "quorum"},
    "quorum": {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "short",
    },
    "short": {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"},
    "full": {"x-max-length": 2, "x-overflow": "reject-publish", "x-dead-letter-exchange": "nowhere"},
    "careful": {
        **CAREFUL,
        "x-queue-type": "quorum",
        "x-max-length": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "full",
    },
    "ranked": {"x-max-priority": 3, "x-message-ttl": 2000},
    "delayed": {
        "x-queue-type": "quorum",
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 300,
        "x-delayed-retry-max": 900,
    },
}
NAMES = st.sampled_from([*ARGUMENTS, "nowhere"])
THERE = st.sampled_from(list(ARGUMENTS))
WHICH = st.integers(0, 30)
THOROUGH = settings(max_examples=30, stateful_step_count=60, deadline=None)


class Clients(RuleBasedStateMachine):
    version = "4.3"
    clients = 2

    def __init__(self) -> None:
        super().__init__()
        self.rig = self.made()
        self.sessions: list[ClientSession] = []
        self.published = 0
        self.handled: Counter[bytes] = Counter()
        for _ in range(self.clients):
            self.sessions.append(self.opened())
        for name in ARGUMENTS:
            self.declare(name)

    def made(self) -> EngineRig:
        return EngineRig(self.version)

    def opened(self) -> ClientSession:
        session = ClientSession(self.rig.vhost)
        session.channel(1)
        return session

    def channel(self, which: int) -> BrokerChannel:
        return self.sessions[which % len(self.sessions)].channels[1]

    def declare(self, name: str) -> None:
        self.channel(0).queue_declare(name, durable=True, arguments=ARGUMENTS[name])

    @rule(queue=NAMES, ttl=st.sampled_from([None, 0, 100, 5000]), priority=st.integers(0, 9), which=WHICH)
    def publish(self, queue: str, ttl: int | None, priority: int, which: int) -> None:
        self.published += 1
        expiration = None if ttl is None else str(ttl)
        raw = encode_properties(Properties(expiration=expiration, priority=priority, delivery_mode=2))
        self.channel(which).publish("", queue, raw, str(self.published).encode(), mandatory=True)

    @rule(queue=THERE, which=WHICH, no_ack=st.booleans())
    def get(self, queue: str, which: int, no_ack: bool) -> None:
        got = self.channel(which).get(queue, no_ack=no_ack)
        if got is not None and no_ack:
            self.handled[got.message.body] += 1

    @rule(queue=THERE, which=WHICH, prefetch=st.integers(0, 3), no_ack=st.booleans())
    def consume(self, queue: str, which: int, prefetch: int, no_ack: bool) -> None:
        channel = self.channel(which)
        channel.qos(prefetch)
        channel.consume(queue, no_ack=no_ack)

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        channel = self.channel(which)
        for tag in list(channel.consumers)[:1]:
            channel.cancel(tag)

    @precondition(lambda self: any(session.channels[1].unacked for session in self.sessions))
    @rule(which=WHICH, place=WHICH, what=st.sampled_from(["ack", "nack", "reject"]), multiple=st.booleans())
    def settle(self, which: int, place: int, what: str, multiple: bool) -> None:
        channel = self.channel(which)
        tags = list(channel.unacked)
        if not tags:
            return
        tag = tags[place % len(tags)]
        about = [one for one in tags if one <= tag] if multiple and what != "reject" else [tag]
        if what == "ack":
            self.note(channel, about)
            channel.ack(tag, multiple=multiple)
        elif what == "nack":
            channel.nack(tag, multiple=multiple, requeue=place % 2 == 0)
        else:
            channel.reject(tag, requeue=place % 2 == 0)

    @rule(which=WHICH)
    def recover(self, which: int) -> None:
        self.channel(which).recover()

    @rule(seconds=st.sampled_from([0.051, 0.401, 1.003, 200.0]))
    def wait(self, seconds: float) -> None:
        """Never to the very moment at which a message's time is up: a file keeps it to a millionth of a second."""
        self.rig.wait(seconds)

    @rule(which=WHICH)
    def cut(self, which: int) -> None:
        place = which % len(self.sessions)
        self.read()
        self.sessions[place].close()
        self.sessions[place] = self.opened()

    @rule(queue=THERE)
    def purge(self, queue: str) -> None:
        self.channel(0).queue_purge(queue)

    @rule(queue=THERE)
    def recreate(self, queue: str) -> None:
        self.channel(0).queue_delete(queue)
        self.declare(queue)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        self.read()
        places = Counter(body for body in self.everywhere())
        pending = sum(queue.pending for queue in self.rig.vhost.router.queues.values())
        lost = self.rig.vhost.shared.lost

        assert max(places.values(), default=1) == 1
        assert max(self.handled.values(), default=1) == 1
        assert not places.keys() & self.handled.keys()
        assert self.published == len(places) + len(self.handled) + pending + sum(lost.values())

    @invariant()
    def what_is_held_is_unacked(self) -> None:
        held = Counter(
            queue.name
            for session in self.sessions
            for _, queue, _ in session.channels[1].unacked.values()
            if not queue.closed
        )
        queues = self.rig.vhost.router.queues.values()

        assert {queue.name: queue.held for queue in queues if queue.held} == dict(held)
        assert all(queue.ready.count == len(list(queue.ready)) for queue in queues)

    def everywhere(self) -> list[bytes]:
        queues = list(self.rig.vhost.router.queues.values())
        waiting = [entry.message.body for queue in queues for entry in [*queue.ready, *queue.delayed]]
        held = [
            entry.message.body
            for session in self.sessions
            for _, queue, entry in session.channels[1].unacked.values()
            if not queue.closed
        ]
        return waiting + held

    def read(self) -> None:
        """Deliveries that need no ack are taken care of."""
        for session in self.sessions:
            for event in session.drain():
                if isinstance(event, Deliver) and event.consumer in self.no_ack_tags(session):
                    self.handled[event.message.body] += 1

    def no_ack_tags(self, session: ClientSession) -> set[str]:
        return {tag for tag, (consumer, _) in session.channels[1].consumers.items() if consumer.no_ack}

    def note(self, channel: BrokerChannel, tags: list[int]) -> None:
        for tag in tags:
            _, queue, entry = channel.unacked[tag]
            if not queue.closed:
                self.handled[entry.message.body] += 1
