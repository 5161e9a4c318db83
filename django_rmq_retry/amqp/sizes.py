"""The body sizes that a broker accepts: larger bodies are tested before they are sent, as a refusal ends a channel."""

from collections.abc import Callable

from pika.exceptions import NoFreeChannels

from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.refusals import limit_in

ALWAYS_ACCEPTED_BYTES = 4096
"""A body size that no broker refuses; each new largest body above it is tested before it is sent."""
UNROUTABLE = "rmq-retry.size"
"""The routing key of the probe message that tests the broker's size limit."""


class Sizes:
    """The body sizes known to be accepted on one connection; the next one tests again: the limit may have changed."""

    def __init__(self, open_channel: Callable[..., object]) -> None:
        self._open_channel = open_channel
        self.accepted = ALWAYS_ACCEPTED_BYTES
        """A body up to this size can be sent without a test."""
        self.limit: int | None = None
        """The broker's limit, once it has refused a body."""

    def learn(self, limit: int) -> None:
        self.limit = self.accepted = limit

    def test(self, size: int, callback: Callable[[], None]) -> None:
        """Call back once the broker is known to accept a body of this size, or its limit is known.

        The test is a message of zeros for no queue and a round trip: the broker answers, or closes the channel. If it
        names no limit, for example because the user may not write there, or if no channel is free, the real body is
        the test.
        """
        ended = False

        def end(limit: int | None = None) -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            if limit is not None:
                self.learn(limit)
            elif self.limit is None:
                self.accepted = max(self.accepted, size)
            callback()

        def opened(channel: Channel) -> None:
            def accepted(_frame: object) -> None:
                end()
                channel.close()

            channel.add_on_close_callback(lambda _channel, reason: end(limit_in(getattr(reason, "reply_text", ""))))
            channel.basic_publish("", UNROUTABLE, bytes(size))
            channel.basic_qos(prefetch_count=1, callback=accepted)

        try:
            self._open_channel(on_open_callback=opened)
        except NoFreeChannels:
            end()
