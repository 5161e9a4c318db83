"""Calls: publish a question to a handler and wait for its answer."""

import asyncio
import uuid
from dataclasses import replace

from django_rmq_retry import wiring
from django_rmq_retry.core.backoff import check_seconds
from django_rmq_retry.core.codec import JSON
from django_rmq_retry.core.errors import CallFailed, ConfigurationError
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.stamps import ANSWER, FAILED
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.options import PLAIN, Options
from django_rmq_retry.publishing import message_of


def call(
    data: object,
    *,
    subscription: Subscription,
    timeout: float = 5.0,
    exclusive: bool = False,
    options: Options = PLAIN,
) -> object:
    """The handler's answer. A call leaves at once, also inside a transaction: its caller waits."""
    message = _question(data, subscription, options, timeout)
    answer = wiring.caller(exclusive=exclusive).call(message, timeout=timeout)
    return _read(answer, subscription)


async def acall(
    data: object,
    *,
    subscription: Subscription,
    timeout: float = 5.0,  # noqa: ASYNC109 - it bounds the thread that waits
    exclusive: bool = False,
    options: Options = PLAIN,
) -> object:
    """As ``call``, without blocking the event loop."""
    message = _question(data, subscription, options, timeout)
    caller = wiring.caller(exclusive=exclusive)
    return _read(await asyncio.to_thread(caller.call, message, timeout=timeout), subscription)


def _question(data: object, subscription: Subscription, options: Options, timeout: float) -> Message:
    check_seconds("timeout=…", timeout)
    if options.correlation_id is not None:
        raise ConfigurationError("call(…) makes its own correlation_id=…, by which it knows the answer: leave it out.")
    if options.order_key:
        raise ConfigurationError("call(…) leaves at once, and so has no order_key=…: leave it out.")
    known = replace(options, correlation_id=uuid.uuid4().hex)
    return message_of(data, options=known, subscription=subscription)


def _read(answer: Delivery, subscription: Subscription) -> object:
    if answer.headers.get(ANSWER) != FAILED:
        return subscription.codec.decode(answer.body, answer.properties)
    # An error is JSON, whatever codec the handler's own data has.
    data = JSON.decode(answer.body, answer.properties)
    error = data.get("error") if isinstance(data, dict) else None
    told = error if isinstance(error, dict) else {}
    raise CallFailed(str(told.get("type", "an error")), str(told.get("message", "")))
