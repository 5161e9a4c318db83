"""A look into queues that nobody consumes: what is taken is never acknowledged, and goes back as the look ends."""

from pika import BlockingConnection

from django_rmq_retry.broker.address import Access
from django_rmq_retry.broker.delivering import text_of
from django_rmq_retry.broker.dialing import parameters
from django_rmq_retry.core.message import Delivery


def peek(access: Access, queue: str) -> list[Delivery]:
    """The messages of a queue in their order; each counts as redelivered from now on."""
    found: list[Delivery] = []
    connection = BlockingConnection(parameters(access, access.current().hosts[0], purpose="peek"))
    try:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None or properties is None:
                return found
            found.append(
                Delivery(
                    queue=queue,
                    body=body or b"",
                    raw=b"".join(properties.encode()),
                    exchange=text_of(method.exchange or ""),
                    routing_key=text_of(method.routing_key or ""),
                    redelivered=method.redelivered,
                )
            )
    finally:
        connection.close()
