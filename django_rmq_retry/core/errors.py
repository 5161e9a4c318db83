"""The exceptions of the product; each carries its facts as attributes and says them in a sentence."""


class RmqRetryError(Exception):
    """The base of every error this package raises."""


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
            f"The properties and headers of this message take {size} bytes, but the broker takes at most {limit} "
            "in one frame. Shorten the headers: large values belong in the body."
        )
