import sys

import pika
from pika.exceptions import ChannelClosedByBroker, UnroutableError

with pika.BlockingConnection(pika.URLParameters(sys.argv[1])) as connection:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("blocking", durable=True, arguments={"x-queue-type": "quorum"})
    channel.basic_qos(prefetch_count=10)
    for number in range(100):
        properties = pika.BasicProperties(delivery_mode=2, headers={"n": number})
        channel.basic_publish("", "blocking", b"%d" % number, properties, mandatory=True)
    found = []
    for method, properties, body in channel.consume("blocking", inactivity_timeout=5):
        found.append((body, properties.headers["n"]))
        channel.basic_ack(method.delivery_tag)
        if len(found) == 100:
            break
    assert channel.cancel() == 0
    assert found == [(b"%d" % number, number) for number in range(100)]
    texts = []
    try:
        channel.basic_publish("", "nowhere", b"", mandatory=True)
    except UnroutableError as error:
        texts = [one.method.reply_text for one in error.messages]
    assert texts == ["NO_ROUTE"]
    channel.queue_delete("blocking")
    code = 0
    try:
        channel.queue_declare("blocking", passive=True)
    except ChannelClosedByBroker as error:
        code = error.reply_code
    assert code == 404
