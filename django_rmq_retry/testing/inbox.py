"""The inbox in a test: as in production, within the transaction that the test itself may have."""

from collections.abc import Callable

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.connection import ConnectionDoesNotExist
from django.utils.module_loading import import_string

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.subscription import Subscription

ONCE = "django_rmq_retry.inbox.running.once"
"""By its name: pytest loads the kit before a project has its settings, and models ask for them."""


class NoDatabase(AssertionError):
    """A handler with ``once`` needs the database, which this test has not got."""


class Inbox:
    """Runs handlers with ``once``; what is the test's own mistake ends the test, and is no failure of a handler."""

    def __init__(self, end: Callable[[BaseException], None]) -> None:
        self._end = end

    def __call__(self, subscription: Subscription, delivery: Delivery) -> object:
        lack = _lack(subscription)
        if lack is not None:
            self._end(lack)
            raise lack
        run: Callable[[Subscription, Delivery], object] = import_string(ONCE)
        return run(subscription, delivery)


def _lack(subscription: Subscription) -> NoDatabase | None:
    alias = subscription.using or DEFAULT_DB_ALIAS
    said = f"Handler {subscription.name} runs with once in a transaction of database {alias!r}"
    try:
        connection = connections[alias]
        connection.ensure_connection()
    except (Error, ConnectionDoesNotExist, ImproperlyConfigured) as error:
        return NoDatabase(f"{said}, which cannot be used: {error}")
    except (RuntimeError, AssertionError) as error:
        # As pytest-django and SimpleTestCase refuse it.
        return NoDatabase(f"{said}, and this test may not use it: {error}")
    blocks = connection.atomic_blocks
    if blocks and not getattr(blocks[-1], "_from_testcase", False):
        return NoDatabase(f"{said}, and the test has one open. Call drain() or advance() outside of atomic().")
    return None
