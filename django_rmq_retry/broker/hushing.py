"""Keeps pika's log lines about our own connections to itself: what matters of them is in ours, in one line each.

Whoever configures the logger `pika`, or one below it, gets them all. Lines about other people's connections stay.
"""

import logging
import threading

# A filter holds for the very logger that a record is made by, not for those below it; these are all that we set off.
LOGGERS = (
    "pika.adapters.base_connection",
    "pika.adapters.select_connection",
    "pika.adapters.utils.connection_workflow",
    "pika.adapters.utils.io_services_utils",
    "pika.adapters.utils.selector_ioloop_adapter",
    "pika.callback",
    "pika.channel",
    "pika.connection",
    "pika.diagnostic_utils",
    "pika.heartbeat",
)
_threads: list[int] = []


def hush() -> None:
    """From now on, for what this thread does."""
    _threads.append(threading.get_ident())
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_wanted)


def speak() -> None:
    """The end of it: the next thread may get the same number."""
    _threads.remove(threading.get_ident())


def _wanted(record: logging.LogRecord) -> bool:
    return record.thread not in _threads or _configured(record.name)


def _configured(name: str) -> bool:
    while name:
        logger = logging.getLogger(name)
        # pika gives its own logger a handler that does nothing.
        if logger.level or any(not isinstance(one, logging.NullHandler) for one in logger.handlers):
            return True
        name = name.rpartition(".")[0]
    return False
