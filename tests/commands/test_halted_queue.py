"""A halted queue in the list of queues."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.models import QueueControl
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge")]


@pytest.mark.parametrize(("seen", "state"), [(0, "halted"), (60, "flowing")])
def test_a_queue_whose_first_message_fails_is_listed_as_halted(seen: int, state: str) -> None:
    """A queue that had been halted for 15 min was "flowing"."""
    now = timezone.now()
    halt = {"halted_message": "PAY-1", "halted_error": "BankDown", "halted_at": now - timedelta(minutes=15)}
    QueueControl.objects.create(queue="payments.charge", halted_seen_at=now - timedelta(seconds=seen), **halt)
    [_head, row] = run("rmq_queue", "list").lines
    [item] = run("rmq_queue", "list", "--json").data["items"]

    assert (row[1], item["state"]) == (state, state)
    assert ("PAY-1, the first message, fails: BankDown" in row[-1]) is (state == "halted")
    assert (item["halt"] is not None) is (state == "halted")
