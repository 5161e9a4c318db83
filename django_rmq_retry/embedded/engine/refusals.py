"""Refusals in RabbitMQ's words: which close a channel and which a connection."""

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
FIRST_HARD_CODE = 500
MOST_TEXT_BYTES = 255


class RequestRefused(RmqRetryError):
    """A request is refused: its channel closes, or (hard) its whole connection."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        self.class_id = 0
        self.method_id = 0
        super().__init__(self.text)

    def answering(self, method_index: int) -> "RequestRefused":
        """Name the method that is refused, by its class and number."""
        self.class_id, self.method_id = method_index >> 16, method_index & 0xFFFF
        return self

    @property
    def hard(self) -> bool:
        return self.code >= FIRST_HARD_CODE

    @property
    def text(self) -> str:
        """The reply text, cut to fit a short string."""
        # A client may publish to an exchange whose name is not valid UTF-8.
        whole = f"{NAMES[self.code]} - {self.reason}".encode("utf-8", "replace")
        cut = whole if len(whole) <= MOST_TEXT_BYTES else whole[: MOST_TEXT_BYTES - 3] + b"..."
        return cut.decode("utf-8", "ignore")


def resource_text(kind: str, name: str, vhost: str) -> str:
    """Format a resource as RabbitMQ does: queue 'payments' in vhost '/'."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def missing(kind: str, name: str, vhost: str) -> RequestRefused:
    return RequestRefused(404, f"no {resource_text(kind, name, vhost)}")


def locked(queue: str, vhost: str) -> RequestRefused:
    return RequestRefused(
        405,
        f"cannot obtain exclusive access to locked {resource_text('queue', queue, vhost)}. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def unequal(argument: str, thing: str, received: str, current: str) -> RequestRefused:
    return RequestRefused(
        406, f"inequivalent arg '{argument}' for {thing}: received {received} but current is {current}"
    )
