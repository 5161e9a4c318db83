"""Declarations in the words of AMQP: as methods to send, and as one mapping of everything that they say."""

from collections.abc import Mapping
from typing import Any

from django_rmq_retry.broker.asking import Question
from django_rmq_retry.core.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration

Named = ExchangeDeclaration | QueueDeclaration
OWN = ("type", "durable", "exclusive", "auto_delete", "internal")
"""What is no argument of the table but a field of the method; refusals and the management API name them alike."""


def wanted(declaration: Named) -> dict[str, object]:
    """Everything that a declaration says."""
    if isinstance(declaration, QueueDeclaration):
        return {"durable": True, "exclusive": False, "auto_delete": False, **declaration.arguments}
    own = {name: getattr(declaration, name) for name in ("type", "durable", "auto_delete", "internal")}
    return {**own, **declaration.arguments}


def declaring(declaration: Named, said: Mapping[str, object]) -> Question:
    """Declare it with what is said, which need not be what the declaration says; None leaves an argument out."""
    own: dict[str, Any] = {name: value for name, value in said.items() if name in OWN}
    arguments = {name: value for name, value in said.items() if name not in OWN and value is not None}
    name = declaration.name
    if isinstance(declaration, QueueDeclaration):
        return lambda channel, done: channel.queue_declare(name, arguments=arguments, callback=done, **own)
    kind = own.pop("type")
    return lambda channel, done: channel.exchange_declare(name, kind, arguments=arguments, callback=done, **own)


def passively(declaration: Named) -> Question:
    """Ask whether it is there. The arguments play no part."""
    name = declaration.name
    if isinstance(declaration, QueueDeclaration):
        return lambda channel, done: channel.queue_declare(name, passive=True, callback=done)
    return lambda channel, done: channel.exchange_declare(name, passive=True, callback=done)


def binding(said: BindingDeclaration) -> Question:
    key, arguments = said.key, dict(said.arguments)
    if said.to_exchange:
        return lambda channel, done: channel.exchange_bind(
            said.destination, said.source, routing_key=key, arguments=arguments, callback=done
        )
    return lambda channel, done: channel.queue_bind(
        said.destination, said.source, routing_key=key, arguments=arguments, callback=done
    )


def unbinding(said: BindingDeclaration) -> Question:
    key, arguments = said.key, dict(said.arguments)
    return lambda channel, done: channel.queue_unbind(
        said.destination, said.source, routing_key=key, arguments=arguments, callback=done
    )


def right_for(declaration: Named | BindingDeclaration, what: str, name: str) -> str:
    """The right that a refused declaration needed, where an old broker names only the thing."""
    if isinstance(declaration, BindingDeclaration):
        return "read" if what == "exchange" and name == declaration.source else "write"
    # Dead letters and alternates are written to an exchange, by the right of whoever declares.
    return "configure" if name == declaration.name else "write"
