"""An app that asks the database while Django starts, as some do in spite of Django's warning."""

import os
import warnings

from django.apps import AppConfig
from django.db import connection


class Project(AppConfig):
    """The app of the handlers."""

    name = "tests.aftermath.project"

    def ready(self) -> None:
        if os.environ.get("AFTERMATH_POOL"):
            with warnings.catch_warnings(action="ignore"), connection.cursor() as cursor:
                cursor.execute("SELECT 1")
