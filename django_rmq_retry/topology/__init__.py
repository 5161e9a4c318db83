"""Queues, exchanges and bindings: defined, declared, compared and drawn. Pure."""

from django_rmq_retry.topology.declarations import (
    Binding,
    BindingDeclaration,
    ExchangeDeclaration,
    QueueDeclaration,
    Role,
    Server,
    Topology,
)

__all__ = ["Binding", "BindingDeclaration", "ExchangeDeclaration", "QueueDeclaration", "Role", "Server", "Topology"]
