import subprocess
import sys

from celery import Celery

app = Celery("bank", broker=sys.argv[1], backend="rpc://")


@app.task(name="add", acks_late=True)
def add(one, other):
    return one + other


if sys.argv[2:] == ["worker"]:
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "WARNING"])
else:
    worker = subprocess.Popen([sys.executable, __file__, sys.argv[1], "worker"])
    try:
        assert add.delay(2, 3).get(timeout=20) == 5
        assert [add.delay(number, 1).get(timeout=20) for number in range(20)] == list(range(1, 21))
    finally:
        worker.terminate()
        code = worker.wait(20)
    assert code == 0, code
