"""Run by the supervisor's tests: a supervisor whose children follow one instruction for each start.

``python -m tests.consumer.children FOLDER PROCESSES WORD...``; children note their starts and ends in FOLDER.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from django_rmq_retry.consumer import supervisor

supervisor.FIRST_RESTART_SECONDS = supervisor.LONGEST_REACHED_RESTART_SECONDS = supervisor.TICK_SECONDS = 0.05


def main(folder: Path, processes: int, words: list[str]) -> int:
    if "stick" in words:
        # Only a child to be killed for a timeout gets little time: on a busy machine, all children are slow.
        supervisor.KILL_GRACE_SECONDS = 0.5
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

    def work(number: int) -> int:
        starts = len(list(folder.glob(f"start-{number}-*")))
        (folder / f"start-{number}-{os.getpid()}").touch()
        stopped = threading.Event()
        supervisor.listen(lambda _why: stopped.set(), at_once=supervisor.ignore)
        word = words[min(starts, len(words) - 1)]
        if word == "reach":
            parent.reached(number)
        if word in ("die", "reach"):
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "leave":
            os._exit(0)
        if word == "stick":
            signal.pause()
            threading.Event().wait()
        if word == "wait":
            while not stopped.wait(0.05):
                pass
            (folder / f"end-{number}-{os.getpid()}").touch()
            return 0
        return int(word)

    parent = supervisor.Supervisor(processes, work, shutdown=0.1)
    return parent.run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
