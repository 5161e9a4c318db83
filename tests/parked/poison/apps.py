"""Found by Django."""

from typing import Any

from django.apps import AppConfig


class PoisonConfig(AppConfig):
    """Stands in for a database that refuses what the message holds."""

    name = "tests.parked.poison"

    def ready(self) -> None:
        # Needs the models.
        from django_rmq_retry.parked.store import BatchWriter  # noqa: PLC0415 - as above

        write = BatchWriter.write

        def refusing(filing: BatchWriter) -> None:
            if any(arrival.parked.body == b"poison" for arrival in filing._arrivals):
                raise ValueError("poison")
            write(filing)

        patched: Any = BatchWriter
        patched.write = refusing
