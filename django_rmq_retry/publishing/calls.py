"""Calls: messages whose sender waits for the answer of the handler."""

import asyncio
import uuid
from dataclasses import replace

from django_rmq_retry.arguments import check_seconds
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import CallFailed, ConfigurationError
from django_rmq_retry.messages.codecs import JSON, Codec, decoded, untyped
from django_rmq_retry.messages.header_names import ANSWER, FAILED
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.publishing.destination import Destination
from django_rmq_retry.publishing.options import PLAIN, PublishOptions
from django_rmq_retry.publishing.publish import hooked, message_of


def call(
    data: object,
    *,
    destination: Destination,
    timeout: float = 5.0,
    exclusive: bool = False,
    options: PublishOptions = PLAIN,
) -> object:
    """Send a call, also inside a transaction at once, as its caller waits; return the handler's answer."""
    message = _call_message(data, destination, options, timeout)
    with hooked(message, destination.handler, kind="call") as sent:
        answer = broker_connections.connections.caller(exclusive=exclusive).call(sent, timeout=timeout)
        return _answer_of(answer, untyped(destination.codec))


async def acall(
    data: object,
    *,
    destination: Destination,
    timeout: float = 5.0,  # noqa: ASYNC109 - it limits the wait of a thread
    exclusive: bool = False,
    options: PublishOptions = PLAIN,
) -> object:
    message = _call_message(data, destination, options, timeout)
    caller = broker_connections.connections.caller(exclusive=exclusive)
    with hooked(message, destination.handler, kind="call") as sent:
        return _answer_of(await asyncio.to_thread(caller.call, sent, timeout=timeout), untyped(destination.codec))


def _call_message(data: object, destination: Destination, options: PublishOptions, timeout: float) -> Message:
    check_seconds("timeout=…", timeout)
    if options.correlation_id is not None:
        raise ConfigurationError("call(…) sets correlation_id=… itself, to match the answer. Leave it out.")
    if options.order_key:
        raise ConfigurationError("call(…) is sent at once, so order_key=… has no effect. Leave it out.")
    known = replace(options, correlation_id=uuid.uuid4().hex)
    return message_of(data, options=known, destination=destination)


def _answer_of(answer: Delivery, codec: Codec) -> object:
    if answer.headers.get(ANSWER) != FAILED:
        return decoded(answer, codec, settings().limits)
    # An error is always JSON, even if the handler has another codec.
    data = decoded(answer, JSON, settings().limits)
    error = data.get("error") if isinstance(data, dict) else None
    facts = error if isinstance(error, dict) else {}
    raise CallFailed(str(facts.get("type", "an error")), str(facts.get("message", "")))
