"""Runs a command of manage.py that ends with its standard input, and so with the demo, even a killed one."""

import os
import signal
import sys
import threading
import time

from django.core.management import execute_from_command_line

GRACE = 20.0


def _end_with_the_demo() -> None:
    # The read returns when the other end is closed, which the system does for a killed process too.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    execute_from_command_line(["manage.py", *sys.argv[1:]])
