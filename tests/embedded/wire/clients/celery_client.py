import subprocess
import sys

from celery import Celery

app = Celery("bank", broker=sys.argv[1], backend="rpc://")
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=2, broker_connection_retry_on_startup=False)
if "quorum" in sys.argv[2:]:
    # Then Celery makes its delays of 28 levels of waiting queues and exchanges bound to exchanges.
    app.conf.update(task_default_queue="careful", task_default_queue_type="quorum", worker_detect_quorum_queues=True)


@app.task(name="add")
def add(one, other):
    return one + other


@app.task(name="flaky", bind=True, max_retries=3)
def flaky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return self.request.retries


if "worker" in sys.argv[2:]:
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "WARNING"])
else:
    worker = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "worker"])
    try:
        assert add.delay(2, 3).get(timeout=40) == 5
        assert [add.delay(number, 1).get(timeout=20) for number in range(20)] == list(range(1, 21))
        assert flaky.delay().get(timeout=20) == 2
    finally:
        worker.terminate()
        code = worker.wait(20)
    assert code == 0, code
