"""Rule 1 of grouping: which failures have one cause. By classes, places in the project's code and reason; no texts."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from django_rmq_retry.core.tracing import Cause
from django_rmq_retry.core.verdict import short

RULE = 1
PLACES = 5
CULPRIT_LIMIT = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """To which group a failure belongs."""

    fingerprint: str
    culprit: str = ""
    """The innermost function of the project's that it came through."""


def traced(causes: Sequence[Cause], *, reason: str) -> Grouping | None:
    """The group of an exception and its causes; nothing where none came through code of the project's."""
    for cause in causes:
        places = cause.stack.places[-PLACES:]
        if places:
            return _ruled(_kinds(causes), places, reason)
    return None


def _kinds(causes: Sequence[Cause]) -> tuple[str, ...]:
    if len(causes) == 1:
        return (causes[0].kind,)
    # The members of a group come in any order.
    members = sorted({cause.kind for cause in causes if cause.link == "member"})
    return (causes[0].kind, *members, *(cause.kind for cause in causes[1:] if cause.link != "member"))


@lru_cache(maxsize=512)
def _ruled(kinds: tuple[str, ...], places: tuple[str, ...], reason: str) -> Grouping:
    return Grouping(fingerprint=_digest(RULE, kinds, places, reason), culprit=short(places[-1], CULPRIT_LIMIT))


def untraced(error: str, *, reason: str, queue: str) -> Grouping:
    """The group of what has no traceback: the name of the error's class if there is one, the reason and the queue."""
    return Grouping(fingerprint=_digest(RULE, error, reason, queue))


def named(name: str) -> str:
    """The fingerprint of a group that a handler names itself."""
    return _digest("named", name)


def _digest(*parts: object) -> str:
    # JSON, for no text in it can then be taken for two; in ASCII, for a name may hold what UTF-8 cannot.
    return hashlib.sha1(json.dumps(parts).encode(), usedforsecurity=False).hexdigest()
