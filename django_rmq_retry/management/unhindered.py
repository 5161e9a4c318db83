"""Lets Django's own checks wait for nobody's lock."""

from django.db import OperationalError, connections


def look_without_lock() -> None:
    """Ask each SQLite whether it knows JSON.

    Django asks so in a transaction, from 6.1 on before every command with checks. Where transactions take SQLite's lock
    as they begin, that waits for whoever has it, and then says that this SQLite knows no JSON.
    """
    for connection in connections.all():
        if connection.vendor != "sqlite" or not connection.settings_dict["OPTIONS"].get("transaction_mode"):
            continue
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT JSON('{}')")
        except OperationalError:
            # Django says what is the matter.
            continue
        connection.features.supports_json_field = True
