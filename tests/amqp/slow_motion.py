"""A consumer in slow motion: one delivery, one failure, settled on a plain channel as the I/O thread would."""

from dataclasses import dataclass, replace

import pika
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp.frames import RawProperties
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Instruction, Settlement, encode_properties
from django_rmq_retry.policies import Failure, Verdict
from tests.handlers.factories import settled
from tests.tooling.waiting import wait_until

Got = tuple[int, Delivery, pika.BasicProperties]


class Broken(Exception):
    """The error that the handler of this module always raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowConsumer:
    """A subscription whose handler fails on request."""

    channel: BlockingChannel
    subscription: Subscription

    def fail(self) -> Verdict:
        """Take the next message, fail with it, and carry out the verdict."""
        tag, arrival, _ = self.take(self.subscription.queue.name)
        attempt = self.subscription.policy.via.attempt(self.subscription.route, arrival)
        delivery = replace(arrival, attempt=attempt)
        verdict = self.subscription.policy.judge(Failure(delivery=delivery, error=Broken("again"), chance=0.5))
        self.carry_out(tag, settled(verdict, delivery, self.subscription, now=1_800_000_000_000))
        return verdict

    def take(self, queue: str) -> Got:
        """The next message of a queue; waited for."""
        found = wait_until(lambda: self.look(queue), what=f"a message in {queue}")
        assert found is not None
        return found

    def look(self, queue: str) -> Got | None:
        """The next message of a queue, or None."""
        method, properties, body = self.channel.basic_get(queue)
        if method is None or properties is None or body is None:
            return None
        assert method.delivery_tag is not None
        delivery = Delivery(
            queue=queue,
            body=body,
            raw=b"".join(properties.encode()),
            exchange=method.exchange or "",
            routing_key=method.routing_key or "",
            redelivered=bool(method.redelivered),
        )
        return method.delivery_tag, delivery, properties

    def carry_out(self, tag: int, settlement: Settlement) -> None:
        """As the I/O thread would, but one by one."""
        if settlement.copy is not None:
            self.publish(settlement.copy)
        if settlement.instruction is Instruction.REJECT:
            self.channel.basic_nack(tag, requeue=False)
        else:
            assert settlement.instruction is Instruction.ACK
            self.channel.basic_ack(tag)

    def publish(self, message: Message) -> None:
        """With the bytes of its properties as they are."""
        raw = RawProperties(encode_properties(message.properties))
        self.channel.basic_publish(message.exchange, message.routing_key, message.body, raw, mandatory=True)
