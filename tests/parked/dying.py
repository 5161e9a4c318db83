"""``rmq_consume --park-only`` that is killed at a step: ``python -m tests.parked.dying STEP NTH``."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import django
from django.core.management import execute_from_command_line


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Callable[..., Any], when: str, nth: int) -> Callable[..., Any]:
    """The function, of which the process does not live to see the nth call's end."""
    calls = 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            die()
        result = function(*args, **options)
        if calls == nth:
            die()
        return result

    return called


def steps() -> dict[str, tuple[Any, str, str]]:
    """Return the function at which each step's process dies, with its owner, and whether before or after its work."""
    # What these import needs the settings.
    from django_rmq_retry.consumer.drainer import Drainer  # noqa: PLC0415 - as above
    from django_rmq_retry.parked.store import BatchWriter, RecordStore  # noqa: PLC0415 - as above

    return {
        "before the batch": (RecordStore, "store", "before"),
        "in the transaction": (BatchWriter, "_add", "after"),
        "before the commit": (BatchWriter, "write", "after"),
        "between commit and ack": (RecordStore, "store", "after"),
        "after the ack was handed over": (Drainer, "_settle", "after"),
    }


def main(step: str, nth: int) -> None:
    django.setup()
    # This import needs the settings.
    from django_rmq_retry.consumer import drainer  # noqa: PLC0415 - as above

    drainer.BATCH_MESSAGES = 10
    owner, name, when = steps()[step]
    setattr(owner, name, dying(getattr(owner, name), when, nth))
    execute_from_command_line(["manage.py", "rmq_consume", "--park-only", "--max-runtime", "60"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
