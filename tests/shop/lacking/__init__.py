"""An app of the project's whose system check queries a table that is not there yet."""

from django.core.checks import CheckMessage, register
from django.db import connection


@register
def lacks(databases: object = None, **_: object) -> list[CheckMessage]:
    """A check that queries only what it is told to, such as all by default."""
    if databases != []:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM shop_limit")
    return []
