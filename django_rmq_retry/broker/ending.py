"""How a connection, or the attempt at one, ended: the cause under pika's wrappings, and what it means, in words."""

from pika.exceptions import (
    AMQPConnectionError,
    ConnectionClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

ACCESS_REFUSED, NOT_ALLOWED = 403, 530


def cause_of(error: object) -> object:
    """What lies under the exceptions in which pika wraps the end of a connection attempt."""
    while True:
        inner = getattr(error, "exceptions", None) or getattr(error, "exception", None)
        if isinstance(inner, (list, tuple)):
            inner = inner[-1] if inner else None
        if inner is None and isinstance(error, AMQPConnectionError) and error.args:
            inner = error.args[0] if isinstance(error.args[0], BaseException) else None
        if inner is None:
            return error
        error = inner


def refusal_in(error: object) -> str:
    """What no waiting mends: wrong credentials, no such virtual host, not an AMQP server."""
    if isinstance(error, ProbableAuthenticationError) or _code(error) == ACCESS_REFUSED:
        return "it refused the user name or password"
    if denied(error):
        return "the virtual host does not exist, or this user may not use it"
    if isinstance(error, IncompatibleProtocolError):
        return "what answers there does not speak AMQP 0-9-1"
    return ""


def denied(error: object) -> bool:
    return isinstance(error, ProbableAccessDeniedError) or _code(error) == NOT_ALLOWED


def _code(error: object) -> int:
    return error.reply_code if isinstance(error, ConnectionClosedByBroker) else 0


def words_of(error: object) -> str:
    if isinstance(error, ConnectionClosedByBroker):
        return f"{error.reply_code} {error.reply_text}"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
