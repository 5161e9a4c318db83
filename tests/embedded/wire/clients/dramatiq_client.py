import logging
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

# What fails here is meant to fail.
logging.disable(logging.CRITICAL)
broker = RabbitmqBroker(url=sys.argv[1], confirm_delivery=True)
dramatiq.set_broker(broker)
found = []


@dramatiq.actor(min_backoff=100, max_backoff=100, max_retries=3)
def add(number):
    found.append(number)
    if found.count(7) < 3 and number == 7:
        raise RuntimeError("not yet")


worker = dramatiq.Worker(broker, worker_timeout=100)
worker.start()
add.send(7)
add.send_with_options(args=(8,), delay=200)
broker.join(add.queue_name, timeout=20_000)
worker.join()
worker.stop()
broker.close()
assert sorted(found) == [7, 7, 7, 8], found
