"""Publishing from Django: data to messages, and inside a transaction on its commit."""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress

from asgiref.sync import sync_to_async
from django.db import transaction

from django_rmq_retry import wiring
from django_rmq_retry.addressing import addressed, delayed
from django_rmq_retry.broker.base import ERRORS, Outcome
from django_rmq_retry.broker.envelope import marshal_publish
from django_rmq_retry.core.backoff import check_seconds
from django_rmq_retry.core.codec import JSON, Codec
from django_rmq_retry.core.errors import ConfigurationError, NotExpirable
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Message
from django_rmq_retry.core.properties import Properties, encode_properties
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.topology import milliseconds
from django_rmq_retry.options import FRAME_MAX, PLAIN, Options, check, checked_headers, encoded, options_of

log = logging.getLogger("django_rmq_retry")


def publish(
    data: object,
    *,
    exchange: str = "",
    routing_key: str = "",
    codec: Codec = JSON,
    timeout: float | None = None,
    at_once: bool = False,
    outbox: bool = True,
    **options: object,
) -> str:
    """Publish to an exchange, persistent, confirmed and mandatory; return the message's id.

    Inside ``transaction.atomic()`` it is a row of the transaction and leaves when that has committed; without
    ``outbox`` it leaves on commit, and with ``at_once`` now. Options: see ``Options``.
    """
    message = message_of(data, exchange=exchange, routing_key=routing_key, codec=codec, options=options_of(options))
    return dispatch(message, timeout=timeout, at_once=at_once, outbox=outbox)


async def apublish(
    data: object,
    *,
    exchange: str = "",
    routing_key: str = "",
    codec: Codec = JSON,
    timeout: float | None = None,  # noqa: ASYNC109 - the broker's answer is waited for elsewhere
    **options: object,
) -> str:
    """As ``publish``, without blocking the event loop. There are no transactions in async code: it leaves at once."""
    message = message_of(data, exchange=exchange, routing_key=routing_key, codec=codec, options=options_of(options))
    return await adispatch(message, timeout=timeout)


def publish_many(
    messages: Iterable[Message],
    *,
    window: int = 1000,
    timeout: float | None = None,
    at_once: bool = False,
    outbox: bool = True,
) -> int:
    """Publish messages made by ``message_of`` with a window of confirms outstanding; return how many were confirmed.

    Inside ``transaction.atomic()`` they leave on commit, unless ``at_once``; then it returns how many will.
    """
    _check_timeout(timeout)
    using = None if at_once else wiring.open_transaction()
    if using is None:
        return wiring.publisher().publish_many(map(_free, messages), window=window, timeout=timeout)
    rows = wiring.outbox(using) if outbox else None
    if rows is not None:
        return rows.keep(messages, using=using)
    kept = list(map(_free, messages))
    for message in kept:
        check_writable(message)
    transaction.on_commit(lambda: _all_after_commit(kept, window, timeout), using=using, robust=True)
    return len(kept)


def message_of(
    data: object,
    *,
    exchange: str = "",
    routing_key: str = "",
    codec: Codec = JSON,
    options: Options = PLAIN,
    subscription: Subscription | None = None,
) -> Message:
    """Data as a message, with an id of its own; to a handler where a subscription is given."""
    if subscription is not None:
        exchange, routing_key, options = addressed(subscription, exchange, routing_key, options)
        codec = subscription.codec
        if options.expiration is not None and not subscription.policy.via.parks:
            raise NotExpirable(subscription.name, type(subscription.policy.via).__name__)
    headers = checked_headers(options.headers)
    check(options)
    expiration = None if options.expiration is None else milliseconds(options.expiration)
    if options.delay:
        if subscription is None or expiration is not None:
            raise ConfigurationError("delay=… needs a handler to publish to, and goes without expiration=….")
        check_seconds("delay=…", options.delay)
        exchange, routing_key, expiration, headers = delayed(
            subscription, options.delay, (exchange, routing_key), headers
        )
    found = encoded(headers)
    properties = _properties(options, found, codec.content_type, None if expiration is None else str(expiration))
    return Message(
        body=codec.encode(data),
        properties=properties,
        exchange=exchange,
        routing_key=routing_key,
        order_key=options.order_key,
    )


def _properties(options: Options, headers: Headers, content_type: str, expiration: str | None) -> Properties:
    return Properties(
        content_type=content_type,
        headers=headers,
        delivery_mode=2,
        priority=options.priority,
        correlation_id=options.correlation_id,
        reply_to=options.reply_to,
        expiration=expiration,
        message_id=options.message_id or uuid.uuid4().hex,
        timestamp=int(time.time()),
        type=options.type,
    )


def dispatch(message: Message, *, timeout: float | None = None, at_once: bool = False, outbox: bool = True) -> str:
    """Send a message now, or where a transaction is open, when it has committed."""
    _check_timeout(timeout)
    name = message.properties.message_id or ""
    using = None if at_once else wiring.open_transaction()
    rows = None if using is None or not outbox else wiring.outbox(using)
    if using is None:
        wiring.publisher().publish(_free(message), timeout=timeout)
    elif rows is not None:
        rows.keep([message], using=using)
    else:
        _free(message)
        check_writable(message)
        # Robust: one that fails must not keep the messages after it from leaving.
        transaction.on_commit(lambda: _after_commit(message, timeout), using=using, robust=True)
    return name


async def adispatch(message: Message, *, timeout: float | None = None) -> str:  # noqa: ASYNC109 - as above
    """Send a message and await its confirm; from a handler with ``once``, as a part of its transaction."""
    _check_timeout(timeout)
    if wiring.in_once.get():
        # Its transaction is open in the thread that waits for this code.
        return await sync_to_async(dispatch)(message, timeout=timeout)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Outcome, str]] = loop.create_future()

    def done(outcome: Outcome, said: str) -> None:
        # Whoever awaited it may have gone, and the event loop with them: that must not reach the I/O thread.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, ended, (outcome, said))

    wiring.publisher().send(_free(message), done, timeout=timeout)
    outcome, said = await ended
    if outcome is not Outcome.CONFIRMED:
        raise ERRORS[outcome](message.exchange, message.routing_key, said=said)
    return message.properties.message_id or ""


def _resolve(ended: "asyncio.Future[tuple[Outcome, str]]", result: tuple[Outcome, str]) -> None:
    if not ended.done():
        ended.set_result(result)


def _after_commit(message: Message, timeout: float | None) -> None:
    """What was committed stays so whatever happens here: say which message is missing, and let the others go."""
    try:
        wiring.publisher().publish(message, timeout=timeout)
    except Exception as error:
        log.critical(
            "Committed, but message %r was not published: %s",
            message.properties.message_id,
            error,
            extra={"event": "unpublished", "message_id": message.properties.message_id},
        )
        raise


def _all_after_commit(messages: Sequence[Message], window: int, timeout: float | None) -> None:
    try:
        wiring.publisher().publish_many(messages, window=window, timeout=timeout)
    except Exception as error:
        log.critical(
            "Committed, but of %s messages some were not published: %s",
            *(len(messages), error),
            extra={"event": "unpublished", "message_ids": [message.properties.message_id for message in messages]},
        )
        raise


def _free(message: Message) -> Message:
    """A message that leaves by itself: none with an order, for it would pass those that wait in the outbox."""
    if message.order_key:
        raise ConfigurationError(
            f"order_key={message.order_key!r} takes effect in an outbox only: publish inside transaction.atomic() of a "
            "database that has one, from synchronous code, without at_once=True and without outbox=False."
        )
    return message


def _check_timeout(timeout: float | None) -> None:
    """Before anything is sent: what is wrong with it must not be found out while a message is on its way."""
    if timeout is not None:
        check_seconds("timeout=…", timeout)


def check_writable(message: Message) -> None:
    """What cannot be written is to fail here: inside its transaction, or before a record is claimed for it."""
    marshal_publish(
        1,
        encode_properties(message.properties),
        b"",
        exchange=message.exchange,
        routing_key=message.routing_key,
        mandatory=message.mandatory,
        frame_max=FRAME_MAX,
    )
