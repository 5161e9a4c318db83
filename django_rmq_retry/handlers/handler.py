"""The ``@handler`` decorator."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from django_rmq_retry.arguments import TABLE, TEXT, Argument, check_seconds, check_value, one_of, per_second
from django_rmq_retry.errors import ConfigurationError, DeadlineExceeded
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.batch import Batch
from django_rmq_retry.handlers.call import BatchFailed, Call, alone, awaited, guarded, signature_of
from django_rmq_retry.handlers.loop import AsyncFunction, handler_loop
from django_rmq_retry.handlers.subscription import (
    Ack,
    Fingerprint,
    HandlerOptions,
    Keys,
    Match,
    MessageName,
    Subscription,
)
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.policies.breaker import Breaker
from django_rmq_retry.policies.dead_letter import QUEUE
from django_rmq_retry.policies.policy import Policy, RetryThenPark
from django_rmq_retry.publishing.calls import acall, call
from django_rmq_retry.publishing.destination import Destination
from django_rmq_retry.publishing.options import options_of
from django_rmq_retry.publishing.publish import adispatch, dispatch, message_of
from django_rmq_retry.topology.declarations import Queue, check_name, check_queue, check_text

R = TypeVar("R")
PROMISING = ("policy", "park", "once", "order_by", "rate", "breaker", "batch")
"""Options that work only while the broker still has the message, so not with ``ack="auto"``."""
EXAMPLE = "@handler('payments.charge')\ndef charge(message): ..."

CODEC = Argument(
    "a codec, such as Json() or Raw()",
    lambda value: not isinstance(value, type) and callable(getattr(value, "encode", None)) and hasattr(value, "decode"),
)
ONCE = Argument("True, or a function of the message", lambda value: isinstance(value, bool) or callable(value))
BATCH = one_of(Batch, "a value such as Batch(100)").optional
GIVEN = {"park": QUEUE.optional, "codec": CODEC, "once": ONCE, "batch": BATCH}


class Handler(Generic[R]):
    """A decorated function. Called directly, for example in a test, it behaves like the plain function."""

    __name__: str
    __wrapped__: Callable[[Any], R]

    def __init__(self, function: Callable[[Any], R], name: str) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self._destination: Destination | None = None
        self._version: object = None

    def __call__(self, message: Any) -> R:
        return self.__wrapped__(message)

    @property
    def subscription(self) -> Subscription:
        """The function with its queue and policy, in the form that the consumer uses."""
        return registry.subscription(self.name)

    @property
    def queue(self) -> Queue:
        return self.subscription.queue

    @property
    def destination(self) -> Destination:
        """The destination of the handler's messages, computed again only after a change of handlers or settings."""
        if self._destination is None or self._version is not registry.version:
            self._version, self._destination = registry.version, destination_of(self.subscription)
        return self._destination

    def message(self, data: object, *, exchange: str = "", routing_key: str = "", **options: Any) -> Message:
        """Return a message to this handler, for ``publish_many``; the options are those of ``publish``."""
        return self._message(data, "message", (), exchange=exchange, routing_key=routing_key, **options)

    def _message(
        self,
        data: object,
        function: str,
        own: Sequence[str],
        *,
        exchange: str = "",
        routing_key: str = "",
        **options: Any,
    ) -> Message:
        """Return a message; the function with its own options is for the error that names all of them."""
        given = options_of(options, function, ("exchange", "routing_key", *own))
        return message_of(data, exchange=exchange, routing_key=routing_key, options=given, destination=self.destination)

    def publish(
        self,
        data: object,
        *,
        timeout: float | None = None,
        immediate: bool = False,
        outbox: bool = True,
        **options: Any,
    ) -> str:
        """Publish to this handler's queue: ``charge.publish({"payment": 7}, delay=60)``; return the message's id.

        Options are ``headers``, ``type``, ``priority``, ``expiration``, ``correlation_id``, ``message_id``,
        ``reply_to``, ``content_type``, ``content_encoding``, ``timestamp``, ``app_id``, ``user_id``, ``delay``,
        ``at``, ``order_key``, ``exchange`` and ``routing_key``. Inside ``transaction.atomic()`` the message is stored
        as a row of the transaction and sent after the commit. With ``outbox=False`` it is sent on commit without a
        row; with ``immediate=True`` it is sent now.
        """
        message = self._message(data, "publish", ("timeout", "immediate", "outbox"), **options)
        return dispatch(message, handler=self.name, timeout=timeout, immediate=immediate, outbox=outbox)

    async def apublish(
        self,
        data: object,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - another thread waits for the broker's confirm
        **options: Any,
    ) -> str:
        """Publish like ``publish``, without blocking the event loop.

        The message is sent immediately; in a handler with ``once``, it is a part of that handler's transaction.
        """
        message = self._message(data, "apublish", ("timeout",), **options)
        return await adispatch(message, handler=self.name, timeout=timeout)

    def call(self, data: object, *, timeout: float = 5.0, exclusive: bool = False, **options: Any) -> Any:
        """Publish and return the handler's answer: ``quote.call({"pair": "EURUSD"}, timeout=2)``."""
        given = options_of(options, "call", ("timeout", "exclusive"))
        return call(data, destination=self.destination, timeout=timeout, exclusive=exclusive, options=given)

    async def acall(
        self,
        data: object,
        *,
        timeout: float = 5.0,  # noqa: ASYNC109 - it limits the thread that waits for the answer
        exclusive: bool = False,
        **options: Any,
    ) -> Any:
        """Publish and return the handler's answer, like ``call``, without blocking the event loop."""
        given = options_of(options, "acall", ("timeout", "exclusive"))
        return await acall(data, destination=self.destination, timeout=timeout, exclusive=exclusive, options=given)

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"


def destination_of(subscription: Subscription) -> Destination:
    match = subscription.match
    return Destination(
        handler=subscription.name,
        queue=subscription.queue,
        codec=subscription.codec,
        type=match.type,
        routing_key=match.routing_key,
        headers=match.headers,
        via=subscription.policy.via,
        route=subscription.route,
    )


def handler(
    queue: Queue | str,
    *,
    policy: Policy | None = None,
    park: Queue | str | None = None,
    type: str | None = None,  # noqa: A002  # the message property's own name
    routing_key: str | None = None,
    headers: Mapping[str, object] | None = None,
    codec: Codec = JSON,
    keys: Keys | None = None,
    fingerprint: Fingerprint | None = None,
    once: bool | MessageName = False,
    formerly: str | Sequence[str] = (),
    using: str = "",
    order_by: MessageName | None = None,
    rate: float | str | None = None,
    breaker: Breaker | None = None,
    timeout: float | None = None,
    batch: Batch | None = None,
    ack: Ack = "manual",
    name: str | None = None,
) -> Callable[[Callable[[Any], R]], Handler[R]]:
    """Make a function the handler of a queue: ``@handler("payments.charge", policy=RetryThenPark(attempts=5))``.

    The function takes the message; it may be ``async def``. With ``type``, ``routing_key`` or ``headers`` it takes only
    the matching messages of its queue; in ``routing_key``, ``*`` matches one word and ``#`` any number of words.

    Messages that the policy gives up go to the queue ``park``, by default the queue's name with ``.parked``. ``keys``
    returns the business keys by which operators find a message, ``fingerprint`` the group of its failure. With
    ``order_by``, a failed message blocks later messages with the same ordering key. A ``breaker`` pauses the handler
    while a service that it needs is down, and ``rate`` limits its runs per second. With ``once=True``, its changes to
    the database ``using`` happen once for each message; ``formerly`` is the earlier name of a renamed handler, or
    all of them, the first one first, so that it recognizes what it handled before. A run is ended after ``timeout``
    seconds. With ``batch=Batch(100)`` the function takes a list of messages. With ``ack="auto"`` the broker drops each
    message as it sends it.
    """
    _check_match(headers, type=type, routing_key=routing_key, name=name)
    options = HandlerOptions(
        match=Match(type=type, routing_key=routing_key, headers=dict(headers or {})),
        codec=codec,
        keys=getattr(codec, "keys", None) if keys is None else keys,
        fingerprint=fingerprint,
        once=once,
        formerly=_names(formerly),
        using=using,
        order_by=order_by,
        rate=None if rate is None else per_second(rate),
        ack=ack,
        timeout=timeout,
        breaker=breaker,
        batch=batch,
    )
    _check({"queue": queue, "policy": policy, "park": park, **options.written()})

    def decorate(function: Callable[[Any], R]) -> Handler[R]:
        undecorated = function.__wrapped__ if isinstance(function, Handler) else function
        registration = _registration(undecorated, name, options, queue=queue, policy=policy, park=park)
        registry.register(registration)
        return Handler(undecorated, registration.name)

    return decorate


def _names(formerly: object) -> tuple[str, ...]:
    """Return the earlier names of a handler, of which one may be written without a list."""
    names = (formerly,) if isinstance(formerly, str) and formerly else formerly
    if not isinstance(names, (tuple, list)) or not all(isinstance(one, str) and one for one in names):
        raise ConfigurationError(
            f"A handler's formerly is its earlier name, such as 'payments.handlers.charge', or a list of them, not "
            f"{formerly!r}."
        )
    return tuple(dict.fromkeys(names))


def _registration(
    function: Callable[[Any], Any],
    name: str | None,
    options: HandlerOptions,
    *,
    queue: Queue | str,
    policy: Policy | None,
    park: Queue | str | None,
) -> registry.Registration:
    _check_function(function)
    name = name or f"{function.__module__}.{function.__qualname__}"
    if name in options.formerly:
        raise ConfigurationError(f"formerly={name!r} is the handler's name of today. Give the one that it had before.")
    asynchronous = any(map(inspect.iscoroutinefunction, (function, inspect.unwrap(function), type(function).__call__)))
    run = _run_of(function, name, options.timeout) if asynchronous else guarded(function, name)
    registration = registry.Registration(
        name=name,
        run=run if options.batch is None else _run_one(run),
        run_batch=None if options.batch is None else run,
        queue=queue,
        policy=policy,
        park=park,
        options=options,
        asynchronous=asynchronous,
        function=function,
        module=function.__module__,
        execution=getattr(inspect.unwrap(function), "__globals__", {}).get("__spec__"),
    )
    # Build a subscription now, to report invalid options where they are written; the settings are not known yet.
    registration.joined(
        registration.queue if isinstance(registration.queue, Queue) else Queue(registration.queue), RetryThenPark()
    )
    return registration


def _run_one(run_batch: Call) -> Call:
    """Return the function that runs one message as a batch of its own."""

    @functools.wraps(run_batch)
    def run(message: Delivery) -> object:
        try:
            return run_batch([message])
        except BaseException as error:
            failed = alone(error)
            if isinstance(failed, BatchFailed) and (named := failed.of([message])):
                raise named[message] from named[message].__cause__
            raise

    return run


def _run_of(function: Callable[[Any], Any], name: str, timeout: float | None) -> Call:
    """Return the function with which a thread runs an async function in the event loop of its process.

    Django's async ORM runs its queries in the thread that waits for it, so they use the connections that are renewed
    around each attempt.
    """
    call = limited(awaited(function, name), name, timeout)

    @functools.wraps(function)
    def run(message: Any) -> object:
        return handler_loop().run(call, message, name)

    return run


def limited(function: AsyncFunction, name: str, timeout: float | None) -> AsyncFunction:
    """Return the async function with a timeout, which cancels it in its event loop."""

    async def call(message: Any) -> object:
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await function(message)
        except TimeoutError as late:
            if timeout is None or not deadline.expired():
                raise
            raise DeadlineExceeded(name, timeout) from late

    return call


def _check_queue(queue: object) -> None:
    if isinstance(queue, Queue):
        return
    if callable(queue):
        raise ConfigurationError(f"@handler needs the name of a queue:\n{EXAMPLE}")
    check_name("queue", queue)


def _check_match(headers: object, **texts: object) -> None:
    check_value("handler", "headers", headers, TABLE.optional)
    for name, text in texts.items():
        check_value("handler", name, text, TEXT.optional)
    check_text("routing key of handler(routing_key=…)", str(texts["routing_key"] or ""))


def _check(written: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for invalid options, before the function is decorated."""
    for name, kind in GIVEN.items():
        check_value("handler", name, written[name], kind)
    if written["park"] is not None:
        check_queue(written["park"])
    _check_queue(written["queue"])
    policy, breaker = written["policy"], written["breaker"]
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigurationError(f"A handler's policy is a value such as RetryThenPark(attempts=5), not {policy!r}.")
    if breaker is not None and not isinstance(breaker, Breaker):
        raise ConfigurationError(f"A handler's breaker is a value such as Breaker(on=BankDown), not {breaker!r}.")
    _check_ack(written)
    if written["timeout"] is not None:
        check_seconds("A handler's timeout", written["timeout"])
    for name in ("keys", "fingerprint", "order_by"):
        option = written[name]
        if option is not None and not callable(option):
            raise ConfigurationError(f"A handler's {name} is a function, such as lambda message: …, not {option!r}.")
    if written["formerly"] and not written["once"]:
        raise ConfigurationError(
            f"formerly={written['formerly'][0]!r} finds the messages that once=True has stored. Add once=True, or omit "
            "formerly."
        )
    if not isinstance(written["using"], str):
        raise ConfigurationError(
            f"A handler's using is a database's alias, such as 'ledger', not {written['using']!r}."
        )


def _check_ack(written: Mapping[str, Any]) -> None:
    if written["ack"] not in ("manual", "auto"):
        raise ConfigurationError(f"A handler's ack is 'manual' or 'auto', not {written['ack']!r}.")
    named = [name for name in PROMISING if written[name] not in (None, False)]
    if written["ack"] == "auto" and named:
        raise ConfigurationError(
            "With ack='auto' the broker deletes a message when it sends it, so no message is retried, counted or "
            f"parked. Omit {named[0]}, or ack."
        )


def _check_function(function: object) -> None:
    given = getattr(function, "__qualname__", repr(function))
    if inspect.isclass(function) or not callable(function) or not hasattr(function, "__qualname__"):
        raise ConfigurationError(f"@handler decorates a function, not {given}:\n{EXAMPLE}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"Handler {given} contains 'yield', so calling it would run nothing. Use return.")
    try:
        signature_of(function).bind(object())
    except TypeError:
        problem = f"Handler {given}{signature_of(function)} must take one argument, the message, and no other."
    else:
        return
    owner = given.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        raise ConfigurationError(f"{problem} A method cannot be a handler; write a function:\n{EXAMPLE}")
    raise ConfigurationError(f"{problem} Write it like this:\n{EXAMPLE}")
