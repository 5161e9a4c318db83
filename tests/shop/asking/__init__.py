"""An app whose system check queries the database."""

from django.core.checks import CheckMessage, register
from django.db import connection


@register
def asks(**_: object) -> list[CheckMessage]:
    """Query the database in a check, against Django's advice."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return []
