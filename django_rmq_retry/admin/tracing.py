"""How an attempt failed, as it was written down: exceptions, the newest first, the project's own lines told apart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, F, JSONField, Subquery, Value, When

from django_rmq_retry.models import Attempt

LOOKED_AT = 200
"""The newest attempts of a group, for its deploys."""
DEPLOYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One place in the code."""

    file: str
    line: str
    function: str
    code: str
    own: bool

    def __str__(self) -> str:
        return f'  File "{self.file}", line {self.line}, in {self.function}' + (
            f"\n    {self.code}" if self.code else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One exception of a chain."""

    error: str
    text: str
    lines: tuple[Line, ...]

    @property
    def own(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.own)

    @property
    def said(self) -> str:
        return f"{self.error}: {self.text}" if self.text else self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The whole of it, as far as it was kept."""

    attempt: Attempt
    causes: tuple[Cause, ...]

    @property
    def full(self) -> str:
        """As Python prints it, for whoever copies it; the newest exception last."""
        return "\n\n".join("\n".join([*map(str, cause.lines), cause.said]) for cause in reversed(self.causes))


def trace_of(attempt: Attempt) -> Trace | None:
    """What an attempt tells; nothing where it tells nothing."""
    causes = tuple(_causes(attempt.chain))
    return Trace(attempt=attempt, causes=causes) if causes else None


def latest(fingerprint: str, *, traced: bool) -> tuple[Trace | None, list[tuple[str, datetime | None]]]:
    """How it failed last in a group, and the deploys that its newest attempts ran under, by one question.

    Of each deploy since when, the newest first; of the one at the end of what was looked at nobody knows.
    """
    attempts = Attempt.objects.filter(fingerprint=fingerprint).order_by("-started_at", "-pk")
    # Of one row only: a chain is long.
    newest = [When(pk=Subquery(attempts.values("pk")[:1]), then=F("chain"))] if traced else []
    told = Case(*newest, default=Value(None), output_field=JSONField(null=True))
    rows = list(attempts.defer("chain", "logs", "error_text").annotate(told=told)[:LOOKED_AT])
    since: dict[str, datetime | None] = {attempt.deploy: attempt.started_at for attempt in rows if attempt.deploy}
    if len(rows) == LOOKED_AT and rows[-1].deploy:
        since[rows[-1].deploy] = None
    if not rows or not traced:
        return None, list(since.items())[:DEPLOYS]
    rows[0].chain = rows[0].told
    return trace_of(rows[0]), list(since.items())[:DEPLOYS]


def _causes(chain: Any) -> Iterator[Cause]:
    for entry in chain if isinstance(chain, list) else ():
        if isinstance(entry, Mapping):
            frames = entry.get("frames")
            lines = tuple(_lines(frames if isinstance(frames, list) else []))
            yield Cause(error=str(entry.get("error", "")), text=str(entry.get("text", "")), lines=lines)


def _lines(frames: list[Any]) -> Iterator[Line]:
    for frame in frames:
        if isinstance(frame, Mapping):
            texts = {name: str(frame.get(name, "")) for name in ("file", "line", "function", "code")}
            yield Line(**texts, own=bool(frame.get("own")))
