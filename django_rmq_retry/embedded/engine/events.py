"""What the broker tells a client without being asked: each lies in the outbox of its session until a face takes it."""

from django_rmq_retry.embedded.engine.messages import Message


class Deliver:
    """A message for a consumer; `raw` are its properties with the counts of its queue."""

    __slots__ = ("channel", "consumer", "message", "raw", "redelivered", "tag")

    def __init__(
        self, channel: int, consumer: str, tag: int, message: Message, *, raw: bytes, redelivered: bool
    ) -> None:
        self.channel = channel
        self.consumer = consumer
        self.tag = tag
        self.message = message
        self.raw = raw
        self.redelivered = redelivered


class Got:
    """The answer to basic.get; `left` is how many messages are ready behind it."""

    __slots__ = ("left", "message", "raw", "redelivered", "tag")

    def __init__(self, tag: int, message: Message, *, raw: bytes, redelivered: bool, left: int) -> None:
        self.tag = tag
        self.message = message
        self.raw = raw
        self.redelivered = redelivered
        self.left = left


class Return:
    """A mandatory message that no queue takes."""

    __slots__ = ("channel", "code", "message", "text")

    def __init__(self, channel: int, message: Message) -> None:
        self.channel = channel
        self.message = message
        self.code = 312
        self.text = "NO_ROUTE"


class Ack:
    """Everything published up to `number` and not refused is taken care of."""

    __slots__ = ("channel", "multiple", "number")

    def __init__(self, channel: int, number: int) -> None:
        self.channel = channel
        self.number = number
        self.multiple = False


class Nack:
    """A queue refused what was published."""

    __slots__ = ("channel", "number")

    def __init__(self, channel: int, number: int) -> None:
        self.channel = channel
        self.number = number


class Cancel:
    """The queue of a consumer is gone."""

    __slots__ = ("channel", "consumer")

    def __init__(self, channel: int, consumer: str) -> None:
        self.channel = channel
        self.consumer = consumer


Event = Deliver | Return | Ack | Nack | Cancel
