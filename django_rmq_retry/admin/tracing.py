"""How an attempt failed, as it was written down: exceptions, the newest first, the project's own lines told apart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django_rmq_retry.models import Attempt


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


def latest_trace(fingerprint: str) -> Trace | None:
    """How it failed last in a group."""
    attempt = Attempt.objects.filter(fingerprint=fingerprint).order_by("-started_at").defer("logs").first()
    return trace_of(attempt) if attempt else None


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
