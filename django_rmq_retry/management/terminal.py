"""Texts for a terminal, a pipe or a file: log lines of the consumer, times, and text without control characters."""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from django.core.management.color import Style
from django.utils import timezone

from django_rmq_retry.conf import settings
from django_rmq_retry.telemetry.log_fields import LogFields

NAME = "django_rmq_retry"
LEVELS = (logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
"""Log levels by verbosity."""
SIGNS = {
    "ack": ("✓", "+", "SUCCESS"),
    "duplicate": ("≡", "d", "SUCCESS"),
    "retry": ("↻", "~", "WARNING"),
    "park": ("✕", "x", "ERROR"),
    "discard": ("○", "o", "WARNING"),
    "halt": ("■", "=", "ERROR"),
}
STYLES = {logging.WARNING: "WARNING", logging.ERROR: "ERROR", logging.CRITICAL: "ERROR"}
RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""The units of ages, in seconds."""
_BARE = re.compile(r'[^\s"=\\]+')
_KEY = re.compile(r"[^\w.-]")


class Lines(logging.Formatter):
    """Format a record as one coloured line.

    ``03:02:11 ✕ payment.transfer PAY-88121 attempt 5/5 30.0 s → parked: Gave up after 5 attempts: GatewayTimeout``.
    """

    def __init__(self, style: Style, *, plain: bool, with_pid: bool) -> None:
        super().__init__()
        self._colours = style
        self._plain = plain
        self._with_pid = with_pid

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock} [{record.process}]" if self._with_pid else clock
        sign = SIGNS.get(getattr(record, "event", "")) if record.name == NAME else None
        text = self._verdict(record, sign) if sign and hasattr(record, "attempts") else self._remark(record)
        trace = "".join(f"\n    {printable(line)}" for line in trace_text(record).splitlines())
        return f"{head} {text}{trace}"

    def _verdict(self, record: Any, sign: tuple[str, str, str]) -> str:
        style = getattr(self._colours, sign[2])
        name = record.handler if record.handler != "-" else record.queue
        tried = f"attempt {record.attempt}" if record.attempt else "no attempt"
        limit = f"/{record.attempts}" if record.attempts else ""
        words = [name, getattr(record, "key", "") or record.message_id or "", f"{tried}{limit}", took(record.seconds)]
        text = " ".join(flat(word) for word in words if word)
        ends = (part.replace("→", "->") if self._plain else part for part in _end(record) if part)
        end = " ".join(map(flat, ends))
        return f"{style(sign[1] if self._plain else sign[0])} {text}{' ' + style(end) if end else ''}"

    def _remark(self, record: logging.LogRecord) -> str:
        style = getattr(self._colours, STYLES.get(record.levelno, ""), str)
        source = "" if record.name == NAME else f"{record.name}: "
        sign = "!" if record.levelno >= logging.WARNING else "-" if self._plain else "·"
        return f"{style(sign)} {style(flat(source + record.getMessage()))}"


class Logfmt(logging.Formatter):
    """Format a record as logfmt.

    ``ts=2026-11-21T03:02:11.482Z level=error event=park queue=payments handler=…``.
    """

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(
            f"{key if key.isidentifier() else _KEY.sub('_', key)}={_quoted(value)}"
            for key, value in record_fields(record)
        )


class JsonLines(logging.Formatter):
    """Format a record as one line of JSON in ASCII, so that no text can break out of the line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(dict(record_fields(record)), default=str)


class Console(logging.StreamHandler[Any]):
    """A log handler that ignores errors of the terminal or pipe, so that they affect no message."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Ignore the error: a report would go to the stream that fails."""


def install(stream: Any, style: Style, *, verbosity: int, json_logs: bool, with_pid: bool) -> bool:
    """Write the log to this stream; return True if it does.

    A project whose own LOGGING writes this package's records to the console keeps that, except with ``json_logs``.
    """
    log, root = logging.getLogger(NAME), logging.getLogger()
    if log.level == logging.NOTSET or verbosity != 1:
        log.setLevel(LEVELS[verbosity])
    pika = logging.getLogger("pika")
    if pika.level == logging.NOTSET:
        # pika logs each lost connection in six lines; the package's own log line has the relevant facts.
        pika.setLevel(logging.INFO if verbosity == len(LEVELS) - 1 else logging.CRITICAL)
    for logger in (log, root):
        # Remove the handler of a command that ran before in this process, as in tests.
        logger.handlers[:] = [one for one in logger.handlers if not isinstance(one, Console)]
    theirs = [one for one in (*log.handlers, *(root.handlers if log.propagate else ())) if _on_console(one)]
    if (theirs or log.handlers) and not json_logs:
        return False
    for one in theirs:
        one.addFilter(lambda record: record.name.partition(".")[0] != NAME)
    handler = Console(stream)
    if settings().around:
        handler.addFilter(LogFields())
    colored = Lines(style, plain=not shows_signs(stream), with_pid=with_pid) if stream.isatty() else Logfmt()
    handler.setFormatter(JsonLines() if json_logs else colored)
    if any(map(_on_console, logging.getLogger("django").handlers)):
        # While DEBUG is on, Django writes its own records to the console itself.
        handler.addFilter(lambda record: record.name.partition(".")[0] != "django")
    (root if log.propagate else log).addHandler(handler)
    return True


def shows_signs(stream: Any) -> bool:
    """Return True if the stream's encoding can write the signs of the lines."""
    try:
        "✓↻✕○■→·".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def record_fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the fields of a record, most important first; empty ones are left out."""
    extras = {key: value for key, value in vars(record).items() if key not in RECORD_FIELDS and value not in (None, "")}
    if not extras.get("after"):
        extras.pop("after", None)
    yield "ts", datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    yield "level", record.levelname.lower()
    if "event" in extras:
        yield "event", extras.pop("event")
    if record.name != NAME:
        yield "logger", record.name
    if record.name != NAME or not hasattr(record, "attempts"):
        # Other records have a text of their own, and may have the fields of the attempt in which they were written.
        yield "msg", record.getMessage()
    yield from extras.items()
    yield "pid", record.process
    if record.exc_info:
        yield "trace", trace_text(record)


def trace_text(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def flat(text: object) -> str:
    """Return any text on one line, without characters that control a terminal."""
    line = str(text)
    return line if line.isprintable() else printable(line.replace("\n", "\\n").replace("\t", "\\t"))


def printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with control characters escaped, so that a name or an error cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def clock(at: datetime | None, *, terminal: bool) -> str:
    """Format a time: its age on a terminal, the full time elsewhere."""
    if at is None:
        return "-"
    if not terminal:
        return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    seconds = (timezone.now() - at).total_seconds()
    for unit, size in reversed(AGE_UNITS.items()):
        if abs(seconds) >= size and unit != "w":
            return f"{abs(seconds) / size:.0f} {unit}{' ago' if seconds > 0 else ' ahead'}"
    return "now"


def local(at: datetime | None) -> str:
    """Format a time for people: in the project's time zone, to the second; empty for None."""
    return "" if at is None else f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"


def utc(at: datetime | None) -> str | None:
    return None if at is None else clock(at, terminal=False)


def took(seconds: float) -> str:
    """Return a duration, such as ``30.0 s``, ``83 ms`` or ``0.4 ms``."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"  # noqa: PLR2004


def _end(record: Any) -> Iterator[str]:
    """Yield the end of a verdict's line: the error, and what happens to the message."""
    yield from {
        "retry": (record.detail, f"→ next attempt in {round(record.after or 0, 1):.12g} s"),
        "park": (f"→ parked: {record.detail or record.reason}",),
        "discard": (f"→ discarded: {record.detail}",),
        "halt": (record.detail, f"→ next attempt in {round(record.after or 0, 1):.12g} s"),
        "duplicate": ("→ skipped: already handled",),
    }.get(record.event, ())


def _quoted(value: object) -> str:
    text = str(value)
    # isprintable() first: a line is written for every message, and a search of each character costs more.
    if text.isprintable() and _BARE.fullmatch(text):
        return text
    return printable(json.dumps(text, ensure_ascii=False))


def _on_console(handler: logging.Handler) -> bool:
    consoles: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and handler.stream in consoles
