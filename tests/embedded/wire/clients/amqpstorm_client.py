import sys

from amqpstorm import UriConnection

with UriConnection(sys.argv[1]) as connection, connection.channel() as channel:
    channel.confirm_deliveries()
    channel.queue.declare("storm", durable=True)
    channel.basic.qos(10)
    for number in range(100):
        assert channel.basic.publish(str(number), "storm", properties={"headers": {"n": number}}, mandatory=True)
    found = []

    def take(message):
        found.append(message.body)
        message.ack()
        if len(found) == 100:
            channel.stop_consuming()

    channel.basic.consume(take, "storm")
    channel.start_consuming()
    assert found == [str(number) for number in range(100)]
    assert channel.queue.delete("storm")["message_count"] == 0
