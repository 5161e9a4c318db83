"""All exceptions of the package. Each carries its facts as attributes."""

from collections.abc import Mapping, Sequence


class RmqRetryError(Exception):
    """The base of every error of this package."""


class UndecodableHeaders(RmqRetryError):
    """A message carries properties or headers that cannot be read as AMQP 0-9-1 values."""

    def __init__(self, problem: str, *, header: str = "") -> None:
        self.problem = problem
        self.header = header
        subject = f"Header {header!r} cannot be decoded" if header else "The message's properties cannot be decoded"
        super().__init__(f"{subject}: {problem}.")


class HeadersTooLarge(RmqRetryError):
    """The properties of a message do not fit into one frame, so the broker would close the connection."""

    def __init__(self, size: int, *, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"The properties and headers of this message take {size} bytes, but the broker accepts at most {limit} "
            "in one frame. Shorten the headers: large values belong in the body."
        )


class ConfigurationError(RmqRetryError, ValueError):
    """An invalid handler, policy, queue or setting; raised where it is defined."""


class TopologyConflict(ConfigurationError):
    """One project defines the same name twice with different arguments."""

    def __init__(self, what: str, name: str, differences: Mapping[str, tuple[object, object]]) -> None:
        self.what = what
        self.name = name
        self.differences = dict(differences)
        differing = "; ".join(
            f"{part}: {one!r} in one place, {two!r} in another" for part, (one, two) in differences.items()
        )
        super().__init__(
            f"The {what} {name!r} is defined twice with different arguments: {differing}. "
            "Define it once and use that object in both places."
        )


class ExtraMissing(ConfigurationError):
    """A handler's annotation needs a package that is not installed."""

    def __init__(self, handler: str, extra: str) -> None:
        self.handler = handler
        self.extra = extra
        super().__init__(
            f"Handler {handler} names the type of its messages, which needs {extra}. Install it: pip install "
            f'"django-rmq-retry[{extra}]".'
        )


class UndecodableBody(RmqRetryError):
    """A body that its codec cannot read."""

    def __init__(self, problem: str, *, size: int) -> None:
        self.problem = problem
        self.size = size
        super().__init__(f"The body of {size} bytes {self.what}: {problem}.")

    what = "cannot be decoded"


class InvalidBody(UndecodableBody):
    """A body that its codec reads, but whose data do not fit the type that the handler's annotation names."""

    def __init__(self, misfit: "Misfit", *, size: int) -> None:
        self.misfit = misfit
        self.what = f"does not fit {misfit.type}"
        super().__init__(str(misfit), size=size)


class NoKey(RmqRetryError):
    """A message whose ordering key cannot be computed, so its place in the order is unknown."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"Its ordering key cannot be computed: order_by {problem}. Fix the message or order_by, and requeue it."
        )


class UnencodableData(RmqRetryError, TypeError):
    """Data that a codec cannot encode."""

    def __init__(self, problem: str, *, advice: str = "") -> None:
        self.problem = problem
        super().__init__(f"The data cannot be published: {problem}.{advice and f' {advice}'}")


class InvalidData(UnencodableData):
    """Data that do not fit the type that the handler's annotation names. Nothing was sent."""

    def __init__(self, misfit: "Misfit") -> None:
        self.misfit = misfit
        super().__init__(f"they do not fit {misfit.type}: {misfit}")


class Misfit(RmqRetryError, ValueError):
    """Why a value does not fit a type: a path and a problem for each field that is wrong."""

    def __init__(self, type_name: str, problems: Sequence[tuple[str, str]], *, fields: Sequence[str]) -> None:
        self.type = type_name
        self.problems = tuple(problems)
        """Pairs of a path, such as ``$.items[0].price``, and what is wrong there."""
        self.fields = tuple(fields)
        """The paths without what a sender chooses, such as ``$.items[].price``, by which failures are grouped."""
        super().__init__("; ".join(f"{path}: {problem}" for path, problem in self.problems))


class PublishError(RmqRetryError):
    """The broker did not confirm a message; the subclass says whether it may be stored."""

    advice = ""

    def __init__(self, exchange: str, routing_key: str, *, said: str = "", advice: str = "") -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.said = said
        where = f"exchange {exchange!r}" if exchange else "the default exchange"
        # The reason may be a sentence: its full stop would stand inside the parentheses.
        words = f" ({said.removesuffix('.')})" if said else ""
        super().__init__(
            f"The message to {where} with the routing key {routing_key!r} {self.what}{words}. {advice or self.advice}"
        )

    what = "was not published"


class MessageReturned(PublishError):
    """No queue accepts the message: nothing was stored."""

    what = "was returned: no queue accepts it, so nothing was stored"
    advice = "Declare the queues with `manage.py rmq_declare`, or correct the name of the exchange or the routing key."


class MessageNacked(PublishError):
    """A queue refused the message; other bound queues may have stored it."""

    what = "was refused by a queue"
    advice = "The queue is full or its node is down. Publish it again later with the same message id."


class PublishUnknown(PublishError):
    """The connection was lost, or the timeout expired, before the broker confirmed: it may have stored the message."""

    what = "was not confirmed: the broker may have stored it"
    advice = "Publish it again with the same message id; an idempotent handler makes this safe."


class MessageUnsent(PublishError):
    """The message never left this process, or the broker refused it before it stored anything."""

    what = "was not sent"
    advice = "Nothing was stored: publish it again once the broker is reachable."


class MessageTooLarge(MessageUnsent):
    """The body is larger than the broker accepts, so the message was not sent."""

    advice = "Nothing was stored: send a smaller body, or raise max_message_size on the broker."


class BrokerRefused(RmqRetryError):
    """The broker was reached and refused the connection; a retry would change nothing."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(
            f"The broker at {address} cannot be used: {reason}. Check RMQ_RETRY['URL'] and the user's permissions."
        )


class BrokerUnreachable(RmqRetryError):
    """No host of the broker answered."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"The broker at {address} cannot be reached: {reason}.")


class QueueUnusable(RmqRetryError):
    """A queue cannot be consumed: it is missing, or the user may not read it."""

    def __init__(self, queue: str, reason: str, *, advice: str) -> None:
        self.queue = queue
        self.reason = reason
        super().__init__(f"Queue {queue!r} cannot be consumed: {reason}. {advice}")


MOST_NAMED = 3
"""The most missing queues and exchanges that are named: the command that declares them names all."""
OWNER_DECLARES = "is external (existing=True), so `manage.py rmq_declare` does not create it: ask its owner to."


class TopologyMissing(RmqRetryError):
    """Queues or exchanges that messages, retries or parked messages need are missing."""

    def __init__(self, names: Sequence[str], *, external: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        named, more = ", ".join(names[:MOST_NAMED]), len(names) - MOST_NAMED
        named = f"{named} and {more} more" if more > 0 else named
        several = f"{len(names)} queues or exchanges of the handlers: " if len(names) > 1 else ""
        parts = [f"The broker lacks {several}{named}. No message was taken."]
        if len(external) < len(names):
            parts.append("Declare them with `manage.py rmq_declare`.")
        parts += [f"The {name} {OWNER_DECLARES}" for name in external]
        super().__init__(" ".join(parts))


class CallUnanswered(RmqRetryError, TimeoutError):
    """A call got no answer. Once it was sent, its handler may have run."""

    def __init__(self, routing_key: str, *, timeout: float, sent: bool, reason: str = "") -> None:
        self.routing_key = routing_key
        self.timeout = timeout
        self.sent = sent
        why = f"the connection was lost: {reason}" if reason else f"no answer within {timeout:g} s"
        what = "its handler may have run" if sent else "it was not sent"
        super().__init__(f"The call to {routing_key!r} has no answer: {why}; {what}. Is its consumer running?")


class CallFailed(RmqRetryError):
    """The called handler answered with an error."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"The handler answered with {kind}: {text}" if text else f"The handler answered with {kind}.")


class NotDelayable(ConfigurationError):
    """A delay was requested for a handler without waiting queues."""

    def __init__(self, handler: str, carrier: str) -> None:
        self.handler = handler
        self.carrier = carrier
        super().__init__(
            f"Handler {handler} cannot be published to with delay=…: its carrier {carrier} has no waiting queues. "
            "Use via=Ladder([…]) with the delays you need."
        )


class NotExpirable(ConfigurationError):
    """An expiration was requested for a handler whose expired messages would not be parked."""

    def __init__(self, handler: str, carrier: str) -> None:
        self.handler = handler
        self.carrier = carrier
        super().__init__(
            f"Handler {handler} cannot be published to with expiration=…: its carrier {carrier} sends expired "
            "messages round its loop, where RabbitMQ drops them, instead of parking them. Omit expiration, or use "
            "via=Ladder()."
        )


class BrokerUnfit(RmqRetryError):
    """The broker lacks a feature that a handler's carrier needs."""


class DeadlineExceeded(BaseException):
    """A handler ran for longer than its ``timeout``, or its ``order_by`` (``part``) for longer than ten seconds.

    It is not an ``Exception``, like ``asyncio.CancelledError``: a handler's or library's ``except Exception`` must not
    swallow it and continue.
    """

    def __init__(self, handler: str = "", timeout: float = 0.0, *, hung: bool = False, part: str = "") -> None:
        self.handler = handler
        self.timeout = timeout
        self.hung = hung
        self.part = part
        late = f"The {part} of handler {handler}" if part else f"Handler {handler}"
        if not handler:
            super().__init__("The handler ran for longer than its timeout")
        elif hung:
            super().__init__(f"{late} did not end within twice its timeout of {timeout:g} s")
        else:
            super().__init__(f"{late} ran for longer than its timeout of {timeout:g} s")


class EffectsLost(RmqRetryError):
    """A handler returned, but its database changes would not be, or were not, committed."""

    def __init__(self, handler: str, database: str, *, what: str, advice: str) -> None:
        self.handler = handler
        self.database = database
        self.what = what
        super().__init__(
            f"Handler {handler} ended without an error, but its changes cannot be committed in {database!r}: {what}. "
            f"{advice}"
        )


class NeverRan(RmqRetryError):
    """A handler returned a coroutine, a generator or another awaitable, whose code has not run."""

    def __init__(self, handler: str, *, kind: str, advice: str) -> None:
        self.handler = handler
        article = "an" if kind[:1] in "aeiou" else "a"
        super().__init__(f"Handler {handler} returned {article} {kind}, so the code in it has not run. {advice}")


__all__ = [
    "BrokerRefused",
    "BrokerUnfit",
    "BrokerUnreachable",
    "CallFailed",
    "CallUnanswered",
    "ConfigurationError",
    "DeadlineExceeded",
    "EffectsLost",
    "ExtraMissing",
    "HeadersTooLarge",
    "InvalidBody",
    "InvalidData",
    "MessageNacked",
    "MessageReturned",
    "MessageTooLarge",
    "MessageUnsent",
    "Misfit",
    "NeverRan",
    "NoKey",
    "NotDelayable",
    "NotExpirable",
    "PublishError",
    "PublishUnknown",
    "QueueUnusable",
    "RmqRetryError",
    "TopologyConflict",
    "TopologyMissing",
    "UndecodableBody",
    "UndecodableHeaders",
    "UnencodableData",
]
