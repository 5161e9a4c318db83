"""pika's log records about this package's connections are hidden, unless logging of `pika` or below is configured."""

import logging
import threading

# A filter applies only to the logger that makes a record, not to those below it; this package triggers all of these.
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


def hide_pika_logs() -> None:
    """Hide pika's log records of the current thread, unless logging of pika is configured."""
    _threads.append(threading.get_ident())
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_wanted)


def show_pika_logs() -> None:
    """Stop hiding them when the thread ends: the next thread may get the same identifier."""
    _threads.remove(threading.get_ident())


def _wanted(record: logging.LogRecord) -> bool:
    return record.thread not in _threads or _configured(record.name)


def _configured(name: str) -> bool:
    while name:
        logger = logging.getLogger(name)
        # pika adds a NullHandler to its own logger, which is no configuration.
        if logger.level or any(not isinstance(one, logging.NullHandler) for one in logger.handlers):
            return True
        name = name.rpartition(".")[0]
    return False
