"""The messages that the handlers receive, as an AsyncAPI document: channels, operations, messages and policies."""

import inspect
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, count

from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.codecs import Described
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.topology.declarations import (
    EXCHANGE_TYPES,
    BindingDeclaration,
    ExchangeDeclaration,
    QueueDeclaration,
    Topology,
)

SPECIFICATION = "3.0.0"
BINDING = {"bindingVersion": "0.3.0"}
"""The version of AsyncAPI's objects for AMQP 0-9-1."""
REPLY_ADDRESS = "$message.header#/reply_to"

Part = dict[str, object]
Way = tuple[BindingDeclaration, ExchangeDeclaration]
"""A binding by which messages reach a queue, and the exchange to which they are published for it."""


def asyncapi(
    work_queues: Sequence[WorkQueue], topology: Topology, *, title: str, version: str, vhost: str = "/"
) -> Part:
    """Return the document of a project: what it receives, from where, and what happens to a message that fails."""
    document = Document(topology, vhost)
    for work_queue in work_queues:
        document.add(work_queue)
    components = {"messages": document.messages, "schemas": document.schemas}
    return {
        "asyncapi": SPECIFICATION,
        "info": {"title": title, "version": version},
        "channels": document.channels,
        "operations": document.operations,
        "components": {name: part for name, part in components.items() if part},
    }


class Document:
    """The parts of the document, each under an id that AsyncAPI allows and that a reference contains as it is."""

    def __init__(self, topology: Topology, vhost: str) -> None:
        self.channels: dict[str, Part] = {}
        self.operations: dict[str, Part] = {}
        self.messages: dict[str, Part] = {}
        self.schemas: dict[str, object] = {}
        self._topology = topology
        self._vhost = vhost
        self._by_way: dict[str, dict[str, Part]] = {}

    def add(self, work_queue: WorkQueue) -> None:
        """Add the channel of a queue, the operations and messages of its handlers, and the channels of its bindings."""
        ways = list(_ways(self._topology, work_queue.queue.name))
        queue = self._topology.queues[work_queue.queue.name]
        channel = _free(queue.name, self.channels)
        messages: dict[str, Part] = {}
        self.channels[channel] = self._queue(queue, ways, messages)
        for subscription in work_queue.subscriptions:
            # Added together, so the message, its schema and its operation have the same id.
            one = _free(subscription.name, self.messages)
            self.messages[one] = self._message(subscription, one)
            self.operations[one] = _operation(subscription, channel, one)
            messages[one] = {"$ref": f"#/components/messages/{one}"}
        for way in ways:
            self._exchange(way, messages)

    def _queue(self, queue: QueueDeclaration, ways: Sequence[Way], messages: dict[str, Part]) -> Part:
        bound = [f"to exchange {way[1].name!r} with {_matching(way)}" for way in ways]
        own = [] if queue.named_by_broker else [f"to the default exchange with the routing key {queue.name!r}"]
        named: Part = {} if queue.named_by_broker else {"name": queue.name}
        flags = {"durable": queue.durable, "exclusive": queue.exclusive, "autoDelete": queue.auto_delete}
        return {
            "address": None if queue.named_by_broker else queue.name,
            "title": queue.name,
            "description": f"Publish {', or '.join([*bound, *own])}.",
            "messages": messages,
            "bindings": {"amqp": {"is": "queue", "queue": {**named, **flags, "vhost": self._vhost}, **BINDING}},
        }

    def _exchange(self, way: Way, messages: Mapping[str, Part]) -> None:
        binding, source = way
        # Several queues may be bound alike: publishers see one address, with the messages of all of them.
        alike = f"{source.name} {binding.key} {sorted(binding.arguments.items(), key=str)}"
        if alike in self._by_way:
            self._by_way[alike].update(messages)
            return
        known = self._by_way[alike] = dict(messages)
        # The schema of the binding does not list the types of plugins.
        kind = {"type" if source.type in EXCHANGE_TYPES else "x-type": source.type}
        flags = {"durable": source.durable, "autoDelete": source.auto_delete}
        exchange = {"name": source.name, **kind, **flags, "vhost": self._vhost}
        self.channels[_free(f"{source.name}-{binding.key}" if binding.key else source.name, self.channels)] = {
            "address": binding.key,
            "title": f"{source.name}: {binding.key or source.type}",
            "description": f"Publish to exchange {source.name!r} with {_matching(way)}.",
            "messages": known,
            "bindings": {"amqp": {"is": "routingKey", "exchange": exchange, **BINDING}},
        }

    def _message(self, subscription: Subscription, own: str) -> Part:
        match = subscription.match
        message: Part = {"name": match.type or subscription.name, "title": match.type or subscription.name}
        message["contentType"] = subscription.codec.content_type
        if match.headers:
            values = {name: {"const": plain(value)} for name, value in match.headers.items()}
            message["headers"] = {"type": "object", "properties": values, "required": list(values)}
        # A codec of a project may have an attribute of this name that is something else.
        if isinstance(subscription.codec, Described) and callable(subscription.codec.schema):
            self.schemas[own] = _schema(subscription, subscription.codec, f"#/components/schemas/{own}")
            message["payload"] = {"$ref": f"#/components/schemas/{own}"}
        amqp = {"messageType": match.type} if match.type is not None else {}
        message["bindings"] = {"amqp": {**amqp, **BINDING}}
        return message


def plain(value: object) -> object:
    """Return a value that JSON has: an object of a policy as a dict with its class, classes and functions by name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        # A field that is not shown in a log is not shown to readers of the document either.
        shown = {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.repr}
        return {"is": type(value).__qualname__, **shown}
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def _ways(topology: Topology, queue: str) -> Iterator[Way]:
    """Return the ways to a queue, also those through exchanges that are bound to exchanges."""
    ends = [(queue, False)]
    for end in ends:
        for binding in topology.bindings:
            if (binding.destination, binding.to_exchange) == end:
                source = topology.exchanges[binding.source]
                if not source.internal:
                    yield binding, source
                if (source.name, True) not in ends:
                    # The outer loop goes on with it.
                    ends.append((source.name, True))


def _matching(way: Way) -> str:
    binding, exchange = way
    headers = {name: value for name, value in binding.arguments.items() if name != "x-match"}
    if headers:
        named = ", ".join(f"{name}={value!r}" for name, value in headers.items())
        return f"{binding.arguments.get('x-match', 'all')} of the headers {named}"
    if exchange.type in {"fanout", "headers"}:
        return "any routing key"
    pattern = exchange.type == "topic" and {"*", "#"} & set(binding.key)
    return f"a routing key that matches {binding.key!r}" if pattern else f"the routing key {binding.key!r}"


def _operation(subscription: Subscription, channel: str, message: str) -> Part:
    operation: Part = {"action": "receive", "channel": {"$ref": f"#/channels/{channel}"}, "title": subscription.name}
    if text := inspect.getdoc(subscription.run):
        operation["summary"], _, more = (part.strip() for part in text.partition("\n\n"))
        if more:
            operation["description"] = more
    operation["messages"] = [{"$ref": f"#/channels/{channel}/messages/{message}"}]
    if subscription.policy.answers:
        operation["reply"] = {"address": {"location": REPLY_ADDRESS}}
    operation["bindings"] = {"amqp": {"ack": subscription.ack == "manual", **BINDING}}
    if subscription.match.routing_key is not None:
        operation["x-routing-key"] = subscription.match.routing_key
    operation["x-retry-policy"] = _policy(subscription)
    return operation


def _policy(subscription: Subscription) -> Part:
    policy = subscription.policy
    written = plain(policy.written)
    own = written if isinstance(written, dict) else {"is": type(policy.written).__qualname__}
    shown: Part = {**own, "parked": subscription.park}
    if policy.waits:
        # The waits in use: a policy may leave its back-off to the default of its carrier. Those of `schedules` follow.
        backoff, attempts = policy.waits[0]
        shown["waits"] = list(backoff.steps(attempts))
    return shown


def _schema(subscription: Subscription, codec: Described, at: str) -> object:
    where = f"Handler {subscription.name}: {type(codec).__name__}.schema()"
    try:
        schema = codec.schema()
        json.dumps(schema, allow_nan=False)
    except Exception as broken:
        raise ConfigurationError(f"{where} must return JSON, and raised {ErrorNote.of(broken)}") from broken
    if not isinstance(schema, Mapping):
        raise ConfigurationError(
            f"{where} returns a JSON Schema as a dict, such as {{'type': 'object'}}, not a {type(schema).__name__}."
        )
    return _moved(schema, at)


def _moved(part: object, at: str) -> object:
    """Return a schema with its inner references, which begin at its own root, for its place in the document."""
    if isinstance(part, Mapping):
        moved = {name: _moved(value, at) for name, value in part.items()}
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = at + reference[1:]
        return moved
    return [_moved(each, at) for each in part] if isinstance(part, list | tuple) else part


def _free(wanted: str, taken: Container[str]) -> str:
    """Return a free id. AsyncAPI allows letters, digits, dots, hyphens and underscores in one."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", wanted)
    return next(one for one in chain([stem], (f"{stem}-{n}" for n in count(2))) if one not in taken)
