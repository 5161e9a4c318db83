"""The base of the outbox contenders: a transaction that inserts a row and publishes."""

import os
from typing import Any

import django

from tests.bench.task import Task, payload


def run(**options: Any) -> None:
    """Run one transaction after the other, like views. The last one counts when all rows are sent and deleted."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    django.setup()
    # Settings can be read only after setup().
    from django.contrib.auth.models import Group  # noqa: PLC0415
    from django.db import transaction  # noqa: PLC0415

    from django_rmq_retry.publishing import sender  # noqa: PLC0415
    from tests.bench.project.handlers import charge, marks  # noqa: PLC0415

    total = Task.given().total
    for number in range(1, total + 1):
        with transaction.atomic():
            Group.objects.create(name=f"payment {number}")
            charge.publish(payload(number), **options)
        if number == total:
            sender.sender.finish(60)
        marks.tick()
