"""A process that publishes or relays, and is killed at a step: ``python -m tests.outbox.dying STEP``."""

import os
import signal
import sys
from typing import Any

import django

QUEUE = "q"


def die(*_arguments: Any, **_options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(step: str) -> None:
    django.setup()
    # These imports read the settings.
    from django.db import transaction  # noqa: PLC0415 - as above

    from django_rmq_retry import publish  # noqa: PLC0415 - as above
    from django_rmq_retry.publishing import outbox, outbox_rows  # noqa: PLC0415 - as above
    from tests.outbox.made import relay  # noqa: PLC0415 - as above

    if step == "before it is sent":
        outbox.AfterCommit.__call__ = die  # type: ignore[method-assign]
    else:
        outbox_rows.delete = die
    if step == "a relay before it forgets":
        relay("default").turn()
    with transaction.atomic():
        publish({"n": 1}, routing_key=QUEUE, message_id="mine")


if __name__ == "__main__":
    main(sys.argv[1])
