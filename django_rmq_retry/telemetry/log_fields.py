"""Fields of the attempt in progress, for the project's own log lines: by structlog, or by a filter of logging."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType

from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.business_keys import first_business_key
from django_rmq_retry.hooks import Around, AroundAttempt
from django_rmq_retry.messages.message import message_id

try:
    from structlog.contextvars import bound_contextvars as in_structlog
except ImportError:

    def in_structlog(**_fields: object) -> AbstractContextManager[None]:  # type: ignore[misc]  # without structlog
        """Bind nothing: structlog is optional."""
        return nullcontext()


FIELDS = ("message_id", "key", "attempt", "queue", "handler")
"""The names of the fields, which are those of this package's own records."""

_bound: ContextVar[Mapping[str, object]] = ContextVar("django_rmq_retry_log_fields", default=MappingProxyType({}))


def bind(one: Around) -> AbstractContextManager[None] | None:
    """Bind the fields of an attempt to the log lines of its thread or coroutine; a hook for AROUND."""
    return _bind(one) if isinstance(one, AroundAttempt) else None


class LogFields(logging.Filter):
    """A logging filter that adds the bound fields to a record; outside of an attempt, they are empty texts.

    An attribute that the record has already is left as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        bound = _bound.get()
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, bound.get(name, ""))
        return True


def key_of(one: AroundAttempt) -> str:
    """Return the first business key of a message; an empty text without one, or if the handler's function fails."""
    try:
        subscription = registry.subscription(one.handler)
    except KeyError:
        return ""
    return first_business_key(subscription, one.delivery, one.error)


@contextmanager
def _bind(one: AroundAttempt) -> Iterator[None]:
    delivery = one.delivery
    values = (message_id(delivery) or "", key_of(one), delivery.attempt, delivery.queue, one.handler)
    fields = dict(zip(FIELDS, values, strict=True))
    token = _bound.set(fields)
    try:
        with in_structlog(**fields):
            yield
    finally:
        _bound.reset(token)
