import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(url=os.environ.get("DRAMATIQ_URL") or sys.argv[1], confirm_delivery=True)
dramatiq.set_broker(broker)
diary = Path(os.environ.get("DRAMATIQ_DIARY") or Path(tempfile.mkdtemp()) / "diary")


@dramatiq.actor(min_backoff=100, max_backoff=100, max_retries=3)
def add(number):
    with diary.open("a") as file:
        file.write(f"{number}\n")
    if number == 7 and lines().count("7") < 3:
        raise RuntimeError("not yet")


def lines():
    return diary.read_text().split() if diary.exists() else []


def main():
    env = os.environ | {"DRAMATIQ_URL": sys.argv[1], "DRAMATIQ_DIARY": str(diary)}
    command = [sys.executable, "-m", "dramatiq", Path(__file__).stem, "--processes", "1", "--threads", "2"]
    worker = subprocess.Popen([*command, "--path", str(Path(__file__).parent)], env=env)
    try:
        add.send(7)
        add.send_with_options(args=(8,), delay=200)
        pause = threading.Event()
        deadline = time.monotonic() + 40
        while len(lines()) < 4 and time.monotonic() < deadline:
            pause.wait(0.05)
        broker.join(add.queue_name, timeout=20_000)
    finally:
        worker.terminate()
        code = worker.wait(20)
    assert sorted(lines()) == ["7", "7", "7", "8"], lines()
    assert code == 0, code


if __name__ == "__main__":
    main()
