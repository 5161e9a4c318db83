"""A halted queue in the list of queues."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.models import QueueControl
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge")]


@pytest.mark.parametrize("seen", [0, 60])
def test_a_queue_whose_first_message_fails_is_listed_as_halted(seen: int) -> None:
    """A queue that had been halted for 15 min was "flowing", and again after its consumer had been killed."""
    now = timezone.now()
    halt = {"halted_message": "9f3c-1", "halted_error": "BankDown", "halted_at": now - timedelta(minutes=15)}
    halt["halted_key"] = "PAY-1"
    QueueControl.objects.create(queue="payments.charge", halted_seen_at=now - timedelta(seconds=seen), **halt)
    [_head, row] = run("rmq_queue", "list").lines
    [item] = run("rmq_queue", "list", "--json").data["items"]

    assert (row[1], item["state"]) == ("halted", "halted")
    assert (item["halt"]["message"], item["halt"]["key"]) == ("9f3c-1", "PAY-1")
    assert row[-1].startswith("PAY-1, the first message, fails: BankDown")
    assert ("(last known at " in row[-1]) is bool(seen)
