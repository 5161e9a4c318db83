"""The log lines of an attempt: kept while it runs, written out only if it fails."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from django_rmq_retry.core.verdict import short

LINES = 100
LINE_LIMIT, TEXT_LIMIT = 2000, 16_000
OURS = "django_rmq_retry"
Lines = deque[logging.LogRecord]

# A context variable, for what a handler awaits runs in another thread, with a copy of the worker's context.
_lines: ContextVar[Lines | None] = ContextVar("rmq_lines", default=None)


def begin() -> None:
    """An attempt begins in this thread."""
    lines = _lines.get()
    if lines is None:
        _lines.set(deque(maxlen=LINES))
    elif lines:
        lines.clear()


def text() -> str:
    """What was logged since the attempt began, the latest lines if there are many."""
    lines = _lines.get()
    if not lines:
        return ""
    kept: list[str] = []
    room = TEXT_LIMIT
    for record in reversed(lines):
        line = _line(record)
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


@contextmanager
def captured() -> Iterator[None]:
    """Lines of all loggers that propagate are kept, in the threads in which attempts begin."""
    keeper = _Keeper()
    root = logging.getLogger()
    root.addHandler(keeper)
    try:
        yield
    finally:
        root.removeHandler(keeper)


class _Keeper(logging.Handler):
    """Keeps records as they are: most attempts succeed, and then no line was formatted in vain."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _lines.get()
        if lines is not None and record.name.partition(".")[0] != OURS:
            lines.append(record)
        # Without a handler of the project's, Python shows warnings by itself, but not beside a handler of ours.
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._alone(record.name):
            last.handle(record)

    def _alone(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


def _line(record: logging.LogRecord) -> str:
    try:
        said = record.getMessage()
    except Exception as broken:  # noqa: BLE001 - the project's own arguments
        said = f"({type(broken).__name__} while this line was written) {record.msg!s}"
    at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
    error = record.exc_info[0] if record.exc_info else None
    failed = f" ({error.__name__})" if error else ""
    return short(f"{at} {record.levelname} {record.name}: {said}{failed}", LINE_LIMIT)
