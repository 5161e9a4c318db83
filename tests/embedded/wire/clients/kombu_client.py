import sys

from kombu import Connection, Consumer, Exchange, Queue

with Connection(sys.argv[1], heartbeat=5, transport_options={"confirm_publish": True}) as connection:
    queue = Queue("kombu", Exchange("kombu", "direct"), routing_key="k")
    found = []

    def take(body, message):
        found.append(body)
        message.ack()

    producer = connection.Producer()
    for number in range(100):
        producer.publish({"n": number}, exchange=queue.exchange, routing_key="k", declare=[queue], serializer="json")
    with Consumer(connection, queues=[queue], callbacks=[take], prefetch_count=10):
        while len(found) < 100:
            connection.drain_events(timeout=5)
    assert found == [{"n": number} for number in range(100)]
