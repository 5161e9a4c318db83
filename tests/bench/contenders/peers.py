"""The handler of other frameworks: the row of ours, in a transaction, by Django."""

import os
from collections.abc import Callable
from uuid import uuid4

import django
from django.db import transaction

from tests.bench.marks import Marks
from tests.bench.task import Task


def inserting_in(task: Task) -> Callable[[], None]:
    """Set up Django, and return a function that inserts one row and counts it."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    django.setup()
    from django.contrib.auth.models import Group  # noqa: PLC0415 - Django must be set up first

    tick = Marks(task).tick

    def insert() -> None:
        with transaction.atomic():
            Group.objects.create(name=uuid4().hex)
        tick()

    return insert
