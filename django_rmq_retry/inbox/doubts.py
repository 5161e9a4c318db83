"""What is parked unseen by its handler: nobody here can tell whether running it would be right."""

from dataclasses import replace

from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.verdict import ErrorNote, Reason, park
from django_rmq_retry.runtime.surroundings import Instead

DECIDED = (Reason.CONFLICT.value, Reason.ALIKE.value)
"""What was parked for these is run where a person sends it back: that is the decision it was parked for."""


def conflict(handler: str, name: str) -> Instead:
    return _parked(
        Reason.CONFLICT,
        f"Handler {handler} has handled {name!r} before, with another body. This one was not run: look which of the "
        "two is right. Requeued, it runs.",
    )


def alike(handler: str) -> Instead:
    return _parked(
        Reason.ALIKE,
        f"It has no id, and handler {handler} has handled one with the same bytes: it may be a second message or a "
        "second copy of the first, and a person must look. Requeued, it runs; discarded, it was a copy.",
    )


def unnamed(handler: str, why: str, error: BaseException | None = None) -> Instead:
    note = None if error is None else ErrorNote.of(error)
    said = f"{why} {note}" if note else why
    return _parked(Reason.UNNAMED, f"once=… of handler {handler} {said}. It was not run.", note)


def unreadable(error: UndecodableHeaders) -> Instead:
    return _parked(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error))


def _parked(reason: Reason, detail: str, note: ErrorNote | None = None) -> Instead:
    return Instead(replace(park(reason, detail, note), counted=False))
