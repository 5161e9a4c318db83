"""A process that sends waiting retries and is killed: ``python -m tests.operators.dying_early RUN STEP NTH``."""

import os
import sys
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from django_rmq_retry import Delivery, Ladder, Queue, RetryThenPark, handler
from tests.operators.dying import dying
from tests.tooling.filled import VARIABLE, given

WORK = "ledger.post"
WAITS_SECONDS = 600.0
WAITING = f"{WORK}.retry.10m"
EARLY, MOVE = "django_rmq_retry.parked.early_sender", "django_rmq_retry.amqp.move"
STEPS = {
    "before a claim": (EARLY, "", "_claim", "before"),
    "after a claim": (EARLY, "", "_claim", "after"),
    "after a copy": (MOVE, "Copier", "copy", "after"),
    "after the confirms, before the rows are stored": (MOVE, "Copier", "settle", "after"),
    "at the end": (EARLY, "", "note_in", "before"),
}


def place(step: str) -> tuple[Any, str, str]:
    """Return the function at which the process of a step dies, as its owner and name, and when in its work."""
    module, owner, name, when = STEPS[step]
    found = import_module(module)
    return (getattr(found, owner) if owner else found), name, when


def declared(kind: Any) -> None:
    """The project: one queue, whose retries wait in one queue."""

    @handler(Queue(WORK, type=kind), policy=RetryThenPark(attempts=5, via=Ladder([WAITS_SECONDS])))
    def post(message: Delivery) -> None:
        """Nothing."""


def main(run: int, kind: str, step: str, nth: int) -> None:
    settings.configure(
        SECRET_KEY="only-for-tests",
        USE_TZ=True,
        DATABASES={"default": given(os.environ[VARIABLE])},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry"],
        RMQ_RETRY={"URL": os.environ["RMQ_URL"]},
    )
    django.setup()
    declared(kind)
    owner, name, when = place(step)
    setattr(owner, name, dying(getattr(owner, name), when, nth))
    import_module("django_rmq_retry.parked.run_steps").send_run(run, "doomed", outcomes=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
