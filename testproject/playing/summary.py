"""What became of all that was published, as a text."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from django_rmq_retry import registry
from django_rmq_retry.conf import settings
from django_rmq_retry.core.declarations import Role
from testproject.payments.models import Payment
from testproject.playing.depths import depths
from tests.tooling.management import Management

MOST = 20


def summary() -> str:
    """Handled, waiting, parked, with the reasons of what is parked."""
    found = depths()
    posted = Payment.objects.filter(state=Payment.State.POSTED).count()
    lines = [
        "",
        f"handled  {posted:3}   payments in the ledger, each once",
        f"answers  {found[Role.OTHER]:3}   in reply-queue, one for each withdrawal",
        f"waiting  {found[Role.WAITING]:3}   for their next attempt, or for the time they were ordered for",
        f"parked   {found[Role.PARKED]:3}   for a person:",
        *(f"           {line}" for line in parked()),
    ]
    return "\n".join(lines)


def parked() -> Iterator[str]:
    """Where and why, of each parked message."""
    names = [queue.name for queue in registry.topology().queues.values() if queue.role is Role.PARKED]
    for name in names:
        for headers in _looked_at(name):
            yield f"{name}: {headers.get('rmq-retry-reason')}: {headers.get('rmq-retry-detail')}"


def _looked_at(queue: str) -> Iterator[dict[str, Any]]:
    """The headers of what lies in a queue; it stays there."""
    management = Management(url=os.environ["BANK_MANAGEMENT_URL"])
    vhost = quote(settings().access().vhost, safe="")
    asked = {"count": MOST, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for row in management.call("POST", f"queues/{vhost}/{quote(queue, safe='')}/get", asked):
        yield row["properties"].get("headers", {})
