"""The databases of which a test asks, and a connection that is lost."""

import pytest
from django.db import connection

from django_rmq_retry import Delivery

MARIADB, POSTGRESQL, SQLITE = "mysql", "postgresql", "sqlite"
OWN_END = {POSTGRESQL: "SELECT pg_terminate_backend(pg_backend_pid())", MARIADB: "KILL CONNECTION_ID()"}


def not_on(vendor: str) -> None:
    if connection.vendor == vendor:
        pytest.skip(f"not on {vendor}")


def end_own(_message: Delivery) -> None:
    """Lose the connection by a statement of the handler."""
    with connection.cursor() as cursor:
        cursor.execute(OWN_END[connection.vendor])
