"""Ways in which a handler may start a process."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

from django_rmq_retry import publish

CHILDS_QUEUE = "child"


def bare() -> None:
    """Fork a child that ends like a script, with its exit handlers."""
    child = os.fork()
    if not child:
        try:
            sys.exit(0)
        except SystemExit:
            os._exit(0)
    _expect(child)


def publishing() -> None:
    """Fork a child that publishes over its inherited connection."""
    child = os.fork()
    if not child:
        try:
            publish({"from": "child"}, routing_key=CHILDS_QUEUE, timeout=5)
        except BaseException:  # noqa: BLE001 - a child must never continue as its parent
            os._exit(1)
        os._exit(0)
    _expect(child)


def multi() -> None:
    """Start a forked process of multiprocessing, which runs its exit handlers."""
    process = multiprocessing.get_context("fork").Process(target=_publish)
    process.start()
    process.join(15)
    if process.exitcode != 0:
        raise RuntimeError(f"the child ended with {process.exitcode}")


def sub() -> None:
    """Run another program."""
    subprocess.run([sys.executable, "-c", "pass"], check=True, preexec_fn=os.setsid)


def _publish() -> None:
    publish({"from": "child"}, routing_key=CHILDS_QUEUE, timeout=5)


def _expect(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the child ended with {status}")


WAYS: Mapping[str, Callable[[], None]] = {"bare": bare, "publishing": publishing, "multi": multi, "sub": sub}
