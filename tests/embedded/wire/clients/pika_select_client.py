import sys

import pika

settled, returned, found, cancelled = [], [], [], []


class Client:
    """Declares, publishes without waiting, consumes, and receives its consumer's end."""

    def __init__(self, url):
        self.connection = pika.SelectConnection(
            pika.URLParameters(url), on_open_callback=self.opened, on_close_callback=self.closed
        )

    def opened(self, connection):
        connection.channel(on_open_callback=self.ready)

    def ready(self, channel):
        self.channel = channel
        channel.add_on_return_callback(lambda *told: returned.append(told[-1]))
        channel.add_on_cancel_callback(self.ended)
        channel.confirm_delivery(self.confirmed, callback=lambda _: channel.queue_declare("select", callback=self.fill))

    def fill(self, _):
        self.channel.basic_publish("", "nowhere", b"lost", mandatory=True)
        for number in range(100):
            self.channel.basic_publish("", "select", b"%d" % number)
        self.channel.basic_qos(prefetch_count=10, callback=self.listen)

    def listen(self, _):
        self.channel.basic_consume("select", self.take, consumer_tag="taker")

    def confirmed(self, frame):
        settled.append((frame.method.NAME, frame.method.delivery_tag, frame.method.multiple))

    def take(self, channel, method, _, body):
        found.append(body)
        channel.basic_ack(method.delivery_tag, multiple=True)
        if len(found) == 100:
            channel.queue_delete("select")

    def ended(self, frame):
        cancelled.append(frame.method.consumer_tag)
        self.connection.close()

    def closed(self, connection, _):
        connection.ioloop.stop()


Client(sys.argv[1]).connection.ioloop.start()
last = max(tag for _, tag, _ in settled)
assert {name for name, _, _ in settled} == {"Basic.Ack"}
assert last == 101
assert len(settled) == 101 or any(multiple for _, _, multiple in settled)
assert returned == [b"lost"]
assert found == [b"%d" % number for number in range(100)]
assert cancelled == ["taker"]
