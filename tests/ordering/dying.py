"""``rmq_consume`` that is killed at a step: ``python -m tests.ordering.dying STEP NTH``."""

import sys
from typing import Any

import django
from django.core.management import execute_from_command_line

from tests.parked.dying import die, dying


def _patched(step: str, nth: int) -> None:
    # These imports need the settings.
    from django_rmq_retry.amqp.publisher import PikaPublisher  # noqa: PLC0415 - as above
    from django_rmq_retry.ordering import gate, keys  # noqa: PLC0415 - as above

    if step == "after the copy's confirm":
        _confirmed(PikaPublisher, nth)
        return
    owner, name, when = {
        "before the block": (gate, "block", "before"),
        "in the block": (gate, "block", "after"),
        "after the block": (gate.OrderGate, "_block", "after"),
        "before it is stored": (gate, "add_waiting", "before"),
        "after it is stored": (gate, "add_waiting", "after"),
        "between the row and the ack": (gate.OrderGate, "_wait_behind", "after"),
        "before the unblocking": (gate, "pass_on", "before"),
        "in the unblocking": (keys, "keep", "after"),
        "at the end of the unblocking": (gate, "pass_on", "after"),
        "between unblocking and ack": (gate.OrderGate, "_unblock", "after"),
    }[step]
    setattr(owner, name, dying(getattr(owner, name), when, nth))


def _confirmed(publisher: Any, nth: int) -> None:
    """Kill the process when the copy of a retry is confirmed, before the original is acked."""
    send = publisher.send
    seen = iter(range(1, 1000))

    def sending(self: Any, message: Any, done: Any, *, timeout: float | None = None) -> None:
        def ended(*answer: Any) -> None:
            if ".retry." in message.routing_key and next(seen) == nth:
                die()
            done(*answer)

        send(self, message, ended, timeout=timeout)

    publisher.send = sending


STEPS = (
    *("before the block", "in the block", "after the block", "after the copy's confirm"),
    *("before it is stored", "after it is stored", "between the row and the ack"),
    *("before the unblocking", "in the unblocking", "at the end of the unblocking", "between unblocking and ack"),
)


def main(step: str, nth: int) -> None:
    django.setup()
    _patched(step, nth)
    execute_from_command_line(["manage.py", "rmq_consume", "--max-runtime", "900"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
