"""The log lines of an attempt, kept until its verdict is known."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from django_rmq_retry import database_connections
from django_rmq_retry.messages.texts import short

MOST_LOG_LINES = 100
LOG_LINE_LIMIT, LOG_BYTES = 2000, 16_000
OURS = "django_rmq_retry"
Lines = deque[logging.LogRecord]

# A context variable, because code that a handler awaits runs in another thread, with a copy of the worker's context.
_lines: ContextVar[Lines | None] = ContextVar("rmq_lines", default=None)


class FreshConnectionsAndLog(database_connections.FreshConnections):
    """Like ``FreshConnections``; it also keeps the log lines of the attempt until its verdict is known."""

    __slots__ = ()

    def __enter__(self) -> None:
        begin()
        super().__enter__()


def begin() -> None:
    """Start to collect the log lines of an attempt that begins in this thread."""
    lines = _lines.get()
    if lines is None:
        _lines.set(deque(maxlen=MOST_LOG_LINES))
    elif lines:
        lines.clear()


def text() -> str:
    """Return the lines logged since the attempt began; only the latest ones if they exceed the limit."""
    lines = _lines.get()
    if not lines:
        return ""
    kept: list[str] = []
    room = LOG_BYTES
    for record in reversed(lines):
        line = _line(record)
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


@contextmanager
def captured() -> Iterator[None]:
    """Keep the lines of all loggers that propagate, in the threads in which attempts begin."""
    handler = _LineHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _LineHandler(logging.Handler):
    """Keeps log records unformatted: most attempts succeed, and formatting their lines would be wasted work."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is not None and record.name.partition(".")[0] != OURS:
            lines.append(record)
        # If the project configures no handler, Python prints warnings itself, but stops once this handler is installed.
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_only_handler(record.name):
            last.handle(record)

    def _is_only_handler(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


def _line(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception as broken:  # noqa: BLE001 - the project's own arguments
        text = f"(this line could not be formatted: {type(broken).__name__}) {record.msg!s}"
    at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
    error = record.exc_info[0] if record.exc_info else None
    failed = f" ({error.__name__})" if error else ""
    return short(f"{at} {record.levelname} {record.name}: {text}{failed}", LOG_LINE_LIMIT)
