"""A process that drives a run and is killed at a step: ``python -m tests.operators.dying RUN KIND STEP NTH``.

For the kind "discarding", RUN is a list of keys, whose messages are discarded.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from tests.tooling.filled import VARIABLE, given

STEPS = {
    "before a claim": ("run.claim", "before"),
    "in a claim, before its commit": ("claims._claim_items", "after"),
    "after a claim": ("run.claim", "after"),
    "after the first copy": ("run.publish", "first"),
    "after a publish": ("run.publish", "after"),
    "in a note, records changed": ("claims._settle_items", "before"),
    "in a note, before its commit": ("claims._settle_items", "after"),
    "after a note": ("run.store_results", "after"),
    "at the end": ("run.advance", "before"),
}
LISTING_STEPS = {
    "before a part": ("run.list_part", "before"),
    "in a part, before its commit": ("items._insert", "after"),
    "after a part": ("run.list_part", "after"),
}
LETTING_GO_STEPS = {
    "before a part": ("run.skip_unsent", "before"),
    "in a part, before its commit": ("items.locked_run", "after"),
    "after a part": ("run.skip_unsent", "after"),
}
DISCARDING_STEPS = {
    "in a slice, records changed": ("actions._note", "before"),
    "in a slice, before its commit": ("actions._note", "after"),
    "after a slice": ("actions._slice", "after"),
}
KINDS = {"sending": STEPS, "listing": LISTING_STEPS, "letting go": LETTING_GO_STEPS, "discarding": DISCARDING_STEPS}
PART = 3
"""Items that are written, or skipped, in one transaction; messages that are discarded in one."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function: Callable[..., Any], when: str, nth: int) -> Callable[..., Any]:
    """The function, of which the process does not live to see the nth call's end."""
    calls = 0

    def called(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < nth:
            return function(*args, **options)
        if when == "before":
            die()
        if when == "first":
            args = (args[0][:1], *args[1:])
        result = function(*args, **options)
        die()
        return result

    return called


def main(run: int, kind: str, step: str, nth: int) -> None:
    settings.configure(
        SECRET_KEY="only-for-tests",
        USE_TZ=True,
        DATABASES={"default": given(os.environ[VARIABLE])},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry"],
        RMQ_RETRY={"URL": os.environ["RMQ_URL"]},
    )
    django.setup()
    import_module("django_rmq_retry.parked.items").PART_ITEMS = PART  # type: ignore[attr-defined]
    path, when = KINDS[kind][step]
    module, name = path.split(".")
    found = import_module(f"django_rmq_retry.parked.{module}")
    setattr(found, name, dying(getattr(found, name), when, nth))
    if kind == "discarding":
        found = import_module("django_rmq_retry.parked.actions")
        found.MESSAGES_AT_ONCE = PART  # type: ignore[attr-defined]
        chosen = import_module("django_rmq_retry.parked.selection").Selection.of_filter(
            {"keys": {"list": run, "count": 0}}
        )
        doomed = import_module("django_rmq_retry.parked.operators").Actor.of_code("doomed")
        found.discard(chosen, doomed, category="duplicate")
    import_module("django_rmq_retry.parked.drive").drive(run, "doomed", outcomes=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
