"""A process that drives a run and is killed at a step: ``python -m tests.operators.dying RUN KIND STEP NTH``.

For the kind "discarding", RUN is a list of keys, whose messages are discarded; for "approving", a request. For
"editing" it is without meaning: one change is stored for all messages.
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
    "before a claim": ("item_sender.claim", "before"),
    "in a claim, before its commit": ("claims._claim_items", "after"),
    "after a claim": ("item_sender.claim", "after"),
    "after the first copy": ("item_sender.publish", "first"),
    "after a publish": ("item_sender.publish", "after"),
    "in a note, records changed": ("claims._store_items", "before"),
    "in a note, before its commit": ("claims._store_items", "after"),
    "after a note": ("item_sender.store_results", "after"),
    "at the end": ("run_steps.advance", "before"),
}
LISTING_STEPS = {
    "before a part": ("run_steps.list_part", "before"),
    "in a part, before its commit": ("listing._insert", "after"),
    "after a part": ("run_steps.list_part", "after"),
}
LETTING_GO_STEPS = {
    "before a part": ("run_steps.skip_unsent", "before"),
    "in a part, before its commit": ("items.locked_run", "after"),
    "after a part": ("run_steps.skip_unsent", "after"),
}
DISCARDING_STEPS = {
    "in a slice, records changed": ("actions._note", "before"),
    "in a slice, before its commit": ("actions._note", "after"),
    "after a slice": ("actions.change_slice", "after"),
}
EDITING_STEPS = {
    "before the transaction": ("edit_many._store", "before"),
    "messages locked": ("edit_many.next_version", "before"),
    "versions written": ("edit_many.F", "before"),
    "records changed": ("edit_many.log_action", "before"),
    "before the commit": ("edit_many.log_action", "after"),
    "after the commit": ("edit_many._store", "after"),
}
APPROVING_STEPS = {
    "before the decision": ("approvals._decide", "before"),
    "what was asked for is checked": ("approvals._check_seal", "after"),
    "the act is done, not the decision": ("approvals._log", "before"),
    "before the commit": ("approvals._log", "after"),
    "after the commit": ("approvals._decide", "after"),
}
SLICE_STEPS = {
    "in a slice, before its commit": ("gated_acts.change_slice", "after"),
    "after a slice": ("approvals._next_slice", "after"),
}
KINDS = {
    "sending": STEPS,
    "listing": LISTING_STEPS,
    "letting go": LETTING_GO_STEPS,
    "discarding": DISCARDING_STEPS,
    "editing": EDITING_STEPS,
    "approving": APPROVING_STEPS | SLICE_STEPS,
}
CHANGE: dict[str, Any] = {"path": "amount", "act": "replace", "find": ",", "value": ".", "number": True}
"""What an editing process changes."""
PART = 3
"""Items that are written, or skipped, in one transaction; messages that are discarded in one."""


def place(kind: str, step: str) -> tuple[Any, str, str]:
    """Return the function at which the process of a step dies, as its owner and name, and when in its work."""
    path, when = KINDS[kind][step]
    module, name = path.split(".")
    return import_module(f"django_rmq_retry.parked.{module}"), name, when


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
        RMQ_RETRY={"URL": os.environ["RMQ_URL"], "OPERATORS": {"EDITABLE": {"*": True}}},
    )
    django.setup()
    # These imports need the settings.
    from django_rmq_retry.parked import actions, items, listing  # noqa: PLC0415 - as above

    listing.PART_ITEMS = items.SKIPPED_AT_ONCE = actions.MESSAGES_AT_ONCE = PART
    owner, name, when = place(kind, step)
    setattr(owner, name, dying(getattr(owner, name), when, nth))
    {"discarding": discard, "editing": edit, "approving": approve}.get(kind, send)(run)


def discard(keys: int) -> None:
    actions = import_module("django_rmq_retry.parked.actions")
    chosen = import_module("django_rmq_retry.parked.selection").Selection.of_filter(
        {"keys": {"list": keys, "count": 0}}
    )
    actions.discard(chosen, doomed(), category="duplicate")


def edit(_run: int) -> None:
    edit_many = import_module("django_rmq_retry.parked.edit_many")
    rows = import_module("django_rmq_retry.models").ParkedMessage.objects.values_list("pk", "revision")
    edit_many.store_many(edit_many.PathChange(**CHANGE), doomed(), revisions=dict(rows), reason="comma")


def charge(_message: object) -> None:
    """Read the queue whose breaker is closed."""


def approve(request: int) -> None:
    import_module("django_rmq_retry").handler("payments.charge")(charge)
    bob = import_module("django.contrib.auth").get_user_model().objects.get(username="bob")
    second = import_module("django_rmq_retry.parked.operators").Actor(name="bob", user_id=bob.pk, source="admin")
    import_module("django_rmq_retry.parked.approvals").approve(request, second)


def send(run: int) -> None:
    import_module("django_rmq_retry.parked.run_steps").send_run(run, "doomed", outcomes=False)


def doomed() -> Any:
    return import_module("django_rmq_retry.parked.operators").Actor.of_code("doomed")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
