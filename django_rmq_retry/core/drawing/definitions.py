"""A topology as RabbitMQ definitions, to be imported by the broker's own tools."""

from django_rmq_retry.core.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Topology


def definitions(topology: Topology, *, vhost: str = "/") -> dict[str, list[dict[str, object]]]:
    """What ``rabbitmqctl import_definitions`` takes; what belongs to somebody else is left out."""
    return {
        "exchanges": [_exchange(one, vhost) for one in topology.exchanges.values() if not one.existing],
        "queues": [_queue(one, vhost) for one in topology.queues.values() if not one.existing],
        "bindings": [_binding(one, vhost) for one in topology.bindings],
    }


def _exchange(one: ExchangeDeclaration, vhost: str) -> dict[str, object]:
    return {
        "name": one.name,
        "vhost": vhost,
        "type": one.type,
        "durable": one.durable,
        "auto_delete": one.auto_delete,
        "internal": one.internal,
        "arguments": dict(one.arguments),
    }


def _queue(one: QueueDeclaration, vhost: str) -> dict[str, object]:
    return {
        "name": one.name,
        "vhost": vhost,
        "durable": True,
        "auto_delete": False,
        "arguments": dict(one.arguments),
    }


def _binding(one: BindingDeclaration, vhost: str) -> dict[str, object]:
    return {
        "source": one.source,
        "vhost": vhost,
        "destination": one.destination,
        "destination_type": "exchange" if one.to_exchange else "queue",
        "routing_key": one.key,
        "arguments": dict(one.arguments),
    }
