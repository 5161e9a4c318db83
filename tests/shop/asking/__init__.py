"""An app of the project's whose system check asks the database."""

from django.core.checks import CheckMessage, register
from django.db import connection


@register
def asks(**_: object) -> list[CheckMessage]:
    """As some projects do, against Django's advice."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return []
