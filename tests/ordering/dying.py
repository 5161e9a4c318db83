"""``rmq_consume`` that is killed at a step: ``python -m tests.ordering.dying STEP NTH``."""

import sys
from typing import Any

import django
from django.core.management import execute_from_command_line

from tests.parked.dying import die, dying


def steps() -> dict[str, tuple[Any, str, str]]:
    """Return the function at which each step's process dies, with its owner, and whether before or after its work."""
    # These imports need the settings.
    from django_rmq_retry.amqp.publisher import PikaPublisher  # noqa: PLC0415 - as above
    from django_rmq_retry.ordering import gate  # noqa: PLC0415 - as above
    from django_rmq_retry.publishing.outbox import OutboxWriter  # noqa: PLC0415 - as above

    return {
        "before the block": (gate, "block", "before"),
        "in the block": (gate, "block", "after"),
        "after the block": (gate.OrderGate, "_block", "after"),
        "after the copy's confirm": (PikaPublisher, "send", "confirmed"),
        "before it is stored": (gate, "add_waiting", "before"),
        "after it is stored": (gate, "add_waiting", "after"),
        "between the row and the ack": (gate.OrderGate, "_wait_behind", "after"),
        "before the unblocking": (gate, "pass_on", "before"),
        "in the unblocking": (OutboxWriter, "keep", "after"),
        "at the end of the unblocking": (gate, "pass_on", "after"),
        "between unblocking and ack": (gate.OrderGate, "_unblock", "after"),
    }


def _confirmed(send: Any, nth: int) -> Any:
    """The function, which kills the process when the copy of a retry is confirmed, before the original is acked."""
    seen = iter(range(1, 1000))

    def sending(self: Any, message: Any, done: Any, *, timeout: float | None = None) -> None:
        def ended(*answer: Any) -> None:
            if ".retry." in message.routing_key and next(seen) == nth:
                die()
            done(*answer)

        send(self, message, ended, timeout=timeout)

    return sending


def main(step: str, nth: int) -> None:
    django.setup()
    owner, name, when = steps()[step]
    found = getattr(owner, name)
    setattr(owner, name, _confirmed(found, nth) if when == "confirmed" else dying(found, when, nth))
    execute_from_command_line(["manage.py", "rmq_consume", "--max-runtime", "900"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
