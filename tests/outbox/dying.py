"""A process that publishes or relays, and is killed at a step, or ends: ``python -m tests.outbox.dying STEP``."""

import os
import signal
import sys
import threading
from typing import Any

import django

QUEUE = "q"
MANY = 600


def die(*_arguments: Any, **_options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _is_parent() -> bool:
    """Fork a child that does the rest and ends like its parent, with its clean-up."""
    # These imports read the settings.
    from django.db import connections  # noqa: PLC0415 - as above

    connections.close_all()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return bool(child)


def main(step: str) -> None:
    django.setup()
    # These imports read the settings.
    from django.db import transaction  # noqa: PLC0415 - as above

    from django_rmq_retry import publish  # noqa: PLC0415 - as above
    from django_rmq_retry.publishing import outbox, outbox_rows  # noqa: PLC0415 - as above
    from tests.outbox.made import relay  # noqa: PLC0415 - as above

    if step in ("on its way", "at its end", "in a child"):
        for number in range(MANY):
            if step == "in a child" and number == MANY // 2 and _is_parent():
                return
            with transaction.atomic():
                publish(number, routing_key=QUEUE, message_id=str(number))
        if step == "on its way":
            die()
        return
    if step == "before it is sent":
        outbox.AfterCommit.__call__ = die  # type: ignore[method-assign]
    else:
        outbox_rows.delete = die
    if step == "a relay before it forgets":
        relay("default").turn()
    with transaction.atomic():
        publish({"n": 1}, routing_key=QUEUE, message_id="mine")
    # The process is killed by its sender.
    threading.Event().wait(60)


if __name__ == "__main__":
    main(sys.argv[1])
