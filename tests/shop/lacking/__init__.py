"""An app whose system check queries a table that does not exist yet."""

from django.core.checks import CheckMessage, register
from django.db import connection


@register
def lacks(databases: object = None, **_: object) -> list[CheckMessage]:
    """Query the databases that are passed to the check."""
    if databases != []:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM shop_limit")
    return []
