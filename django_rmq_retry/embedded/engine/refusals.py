"""Refusals in RabbitMQ's words: which close a channel and which a connection."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from django_rmq_retry.errors import RmqRetryError

NAMES = {
    320: "CONNECTION_FORCED",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
HARD = 500
TEXT_LIMIT = 255

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Refused(RmqRetryError):
    """A request is refused: its channel closes, or (hard) its whole connection."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        self.class_id = 0
        self.method_id = 0
        super().__init__(self.text)

    @property
    def hard(self) -> bool:
        return self.code >= HARD

    @property
    def text(self) -> str:
        """The reply text, cut to fit a short string."""
        # A client may publish to an exchange whose name is not valid UTF-8.
        whole = f"{NAMES[self.code]} - {self.reason}".encode("utf-8", "replace")
        cut = whole if len(whole) <= TEXT_LIMIT else whole[: TEXT_LIMIT - 3] + b"..."
        return cut.decode("utf-8", "ignore")


def method(class_id: int, method_id: int) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Attach the AMQP method that a refusal answers."""

    def named(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(function)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(self, *args, **kwargs)
            except Refused as refused:
                refused.class_id, refused.method_id = class_id, method_id
                raise

        return call

    return named


def shown(kind: str, name: str, vhost: str) -> str:
    """Format a resource as RabbitMQ does: queue 'payments' in vhost '/'."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def missing(kind: str, name: str, vhost: str) -> Refused:
    return Refused(404, f"no {shown(kind, name, vhost)}")


def locked(queue: str, vhost: str) -> Refused:
    return Refused(
        405,
        f"cannot obtain exclusive access to locked {shown('queue', queue, vhost)}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration.",
    )


def unequal(argument: str, thing: str, received: str, current: str) -> Refused:
    return Refused(406, f"inequivalent arg '{argument}' for {thing}: received {received} but current is {current}")
