"""The project on a broker of its own, with a database that its processes share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import ParkedMessage
from tests.shop.running import Shop
from tests.tooling.filled import Own

Send = Callable[..., None]


class Project(Shop):
    """The commands of the shop, run in this project."""

    def environment(self, **changed: str) -> dict[str, str]:
        return super().environment(**{"DJANGO_SETTINGS_MODULE": "tests.aftermath.project.settings", **changed})


@pytest.fixture
def project(broker_url: str, tmp_path: Path, own_database: Own) -> Project:
    """Declare the queues and create the tables."""
    return Project(url=broker_url, notes=tmp_path / "notes", records=own_database.environment).declared()


@pytest.fixture
def send(amqp: BlockingChannel) -> Send:
    """Publish like any client."""
    amqp.confirm_delivery()

    def send(number: int, *, to: str, **data: Any) -> None:
        said = BasicProperties(message_id=f"m{number}", delivery_mode=2)
        amqp.basic_publish("", f"aftermath.{to}", json.dumps({"n": number, **data}).encode(), said, mandatory=True)

    return send


def rows() -> list[str]:
    """Return the names of the rows that are committed."""
    return sorted(Group.objects.using("own").values_list("name", flat=True))


def parked() -> list[str]:
    """Return the errors of the messages that are parked."""
    return list(ParkedMessage.objects.using("own").order_by("pk").values_list("error_text", flat=True))
