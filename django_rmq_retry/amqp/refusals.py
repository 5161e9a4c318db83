"""Errors of the broker: what refused declarations, lost connections and cancelled subscriptions mean."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AMQPHeartbeatTimeout,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from django_rmq_retry.amqp.contracts import Cause, PublishEnd, PublishResult, Scope
from django_rmq_retry.errors import OWNER_DECLARES, RmqRetryError
from django_rmq_retry.messages.message import Message

FORBIDDEN, MISSING, LOCKED, UNEQUAL, NOT_ALLOWED = 403, 404, 405, 406, 530

_UNEQUAL = re.compile(r"inequivalent arg '(?P<argument>.*?)' for (?P<what>queue|exchange) '.*' in vhost", re.DOTALL)
_TYPED = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'", re.DOTALL)
_ACCESS = re.compile(
    r"(?:(?P<right>configure|write|read) )?access to (?P<what>queue|exchange|topic) '(?P<name>.*)' in "
    r"(?:vhost|exchange).* refused for user '(?P<user>.*?)'",
    re.DOTALL,
)
NO_AMQP = "the server there closed the connection without an answer in AMQP 0-9-1"
_AWAY = ("home node", "timeout", "is down or inaccessible")

# The broker names these causes only in its text, which may be cut off: it sends at most 255 bytes.
_NO_WRITE_ACCESS = re.compile(r"ACCESS_REFUSED - (?:write )?access to (?P<what>exchange|topic) '")
_NO_EXCHANGE = re.compile(r"no exchange '(?P<exchange>.*)' in vhost")
_TOO_LARGE = re.compile(r"larger than configured max size (?P<limit>\d+)")

_CLOSED = ("Connection reset", ConnectionResetError.__name__, BrokenPipeError.__name__, "indicated EOF")
"""What pika's texts hold if the server, or a proxy in front of it, ended the connection."""
_SILENT = "Timeout while setting up AMQP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """The one argument that a refused declaration names, and its value on the broker."""

    argument: str
    value: object = None
    reported: bool = True
    """False if the broker's text, at most 255 bytes long, is cut off before the value."""


class Refusal(RmqRetryError):
    """The broker refused a request and closed the channel, or the whole connection."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code} {text}")

    @property
    def away(self) -> bool:
        """True if the queue exists on a node that is down: a declaration must not treat it as missing."""
        return self.code == MISSING and any(word in self.text for word in _AWAY)

    @property
    def missing(self) -> bool:
        return self.code == MISSING and not self.away

    @property
    def forbidden(self) -> bool:
        return self.code == FORBIDDEN and "access to" in self.text

    @property
    def unequal(self) -> Unequal | None:
        match = _UNEQUAL.search(self.text) if self.code == UNEQUAL else None
        if match is None:
            return None
        _, found_current, current = self.text.rpartition(" but current is ")
        if not found_current:
            return Unequal(argument=match["argument"], reported=False)
        return Unequal(argument=match["argument"], value=_value(current))

    def sentence(self, right: Callable[[str, str], str] = lambda *_: "configure") -> str:
        """Return a sentence for an operator; ``right`` names the missing permission if the broker does not."""
        match = _ACCESS.search(self.text) if self.code == FORBIDDEN else None
        if match is not None:
            needed = match["right"] or right(match["what"], match["name"])
            return (
                f"The user {match['user']!r} lacks the {needed} right on the "
                f"{match['what']} {match['name']!r}. Grant it with `rabbitmqctl set_permissions`."
            )
        if self.away:
            return "The node that holds it is down or does not answer. Nothing was created; try again when it is back."
        _, _, reason = self.text.partition(" - ")
        return f"The broker refuses it: {reason or self.text} ({self.code})."


def _value(current: str) -> object:
    if current == "none":
        return None
    typed = _TYPED.fullmatch(current)
    kind = typed["type"] if typed else ""
    text = typed["value"] if typed else current[1:-1] if current[:1] == "'" else current
    if kind in ("longstr", "table", "array"):
        return text
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def limit_in(text: str) -> int | None:
    """Return the broker's body limit in bytes; None if its refusal does not name one."""
    match = _TOO_LARGE.search(text)
    return int(match["limit"]) if match else None


def above(size: int, limit: int) -> str:
    return f"{size} bytes are above the broker's {limit}"


def no_exchange(exchange: str) -> str:
    return f"exchange {exchange!r} does not exist"


def channel_closed(code: int, text: str, *, message: Message, alone: bool) -> PublishResult:
    """Return the result of a message that was unconfirmed on a channel that the broker closed.

    Only if it was `alone` is it the one that the broker refused. Of several to an exchange that was deleted, some may
    have been stored before.
    """
    missing = _NO_EXCHANGE.search(text)
    if missing is not None and missing["exchange"] == message.exchange:
        gone = no_exchange(message.exchange)
        kind, scope = (PublishEnd.RETURNED, Scope.MESSAGE) if alone else (PublishEnd.UNKNOWN, Scope.CHANNEL)
        return PublishResult(kind=kind, scope=scope, cause=Cause.NO_EXCHANGE, code=code, text=gone)
    limit, size = limit_in(text), len(message.body)
    if limit is not None and size > limit:
        return PublishResult(kind=PublishEnd.TOO_LARGE, cause=Cause.BODY_LIMIT, code=code, text=above(size, limit))
    denial = _NO_WRITE_ACCESS.match(text) if code == FORBIDDEN else None
    cause = Cause.OTHER
    if denial is not None:
        cause = Cause.ACCESS_TOPIC if denial["what"] == "topic" else Cause.ACCESS_EXCHANGE
    # The broker checks the right before it stores anything.
    kind = PublishEnd.UNSENT if alone and denial is not None else PublishEnd.UNKNOWN
    return PublishResult(kind=kind, scope=Scope.CHANNEL, cause=cause, code=code, text=text)


def cause_of(error: object) -> object:
    """Return the error inside the exceptions in which pika wraps the end of a connection attempt."""
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
    """Return the reason if a retry cannot help (credentials, virtual host, no AMQP server); else an empty string."""
    if _refused(error, ProbableAuthenticationError) or _code(error) == FORBIDDEN:
        return "it refused the user name or password"
    if denied(error):
        return "the virtual host does not exist, or this user may not use it"
    # pika keeps only the text of its cause. A broker that is just starting or stopping also resets connections.
    if isinstance(error, IncompatibleProtocolError) and ConnectionResetError.__name__ not in str(error):
        # Whether another protocol was spoken or nothing was said cannot be told apart: pika drops what it cannot read.
        return NO_AMQP
    return ""


def denied(error: object) -> bool:
    return _refused(error, ProbableAccessDeniedError) or _code(error) == NOT_ALLOWED


def _refused(error: object, probable: type[AMQPConnectionError]) -> bool:
    """True if the broker said so: pika guesses the same from a connection that a dying broker lost at that step."""
    return isinstance(error, probable) and StreamLostError.__name__ not in str(error)


def _code(error: object) -> int:
    return error.reply_code if isinstance(error, ConnectionClosedByBroker) else 0


def error_text(error: object) -> str:
    if isinstance(error, ConnectionClosedByBroker):
        return f"{error.reply_code} {error.reply_text}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    if _SILENT in text:
        # pika's own text has its states and the arguments of the socket.
        return "it accepts connections, but does not answer as RabbitMQ does"
    return _in_words(error, text) or (f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _in_words(error: object, text: str) -> str:
    """Return what a lost connection means, without the names of pika and Python; empty if that is not known."""
    if isinstance(error, AMQPHeartbeatTimeout):
        return "it sent no heartbeat in time"
    if isinstance(error, AMQPError) and any(word in text for word in _CLOSED):
        return "it closed the connection"
    return "it does not use AMQP 0-9-1" if isinstance(error, IncompatibleProtocolError) else ""


def unrecoverable(reason: BaseException | str, *, granted: bool, external: bool = False) -> tuple[str, str] | None:
    """Return the problem and the fix if subscribing again cannot help; None if it may."""
    if not isinstance(reason, ChannelClosedByBroker) or granted:
        return None
    text = reason.reply_text
    if Refusal(reason.reply_code, text).missing:
        fix = f"It {OWNER_DECLARES}" if external else "Declare it with `manage.py rmq_declare`."
        return "it does not exist", fix
    if "inequivalent" in text:
        return f"it was declared otherwise ({text})", "Delete the old queue, or give this one another name."
    if reason.reply_code == FORBIDDEN and "exclusive" not in text:
        return f"the broker says {text}", "Give the user the right to read it."
    return None


def forbidden(reason: BaseException | str) -> bool:
    return isinstance(reason, ChannelClosedByBroker) and reason.reply_code == FORBIDDEN


def queue_may_be_gone(reason: BaseException | str) -> bool:
    """True if the queue may be gone: cancelled, or not found. For other reasons only the channel is gone."""
    return not isinstance(reason, ChannelClosedByBroker) or reason.reply_code == MISSING


def interruption_text(reason: BaseException | str) -> str:
    if isinstance(reason, ChannelClosedByBroker):
        return f"the broker closed the channel ({reason.reply_code} {reason.reply_text})"
    return str(reason)
