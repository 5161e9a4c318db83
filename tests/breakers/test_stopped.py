"""Which queues are stopped: the query for many rows agrees with the state of one."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.breakers.queue_state import Flow
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.models import QueueControl

NOW = timezone.now()
ENDS = {"never": None, "later": NOW + timedelta(seconds=1), "now": NOW, "earlier": NOW - timedelta(seconds=1)}


@pytest.mark.django_db
@pytest.mark.parametrize("opened", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("paused", [False, True], ids=["not paused", "paused"])
@pytest.mark.parametrize("ends", ENDS)
def test_the_query_for_stopped_queues_finds_those_whose_state_is_stopped(ends: str, paused: bool, opened: bool) -> None:
    row = QueueControl.objects.create(queue="q", paused=paused, until=ENDS[ends], opened=opened)
    stops = opened or (paused and ends in {"never", "later"})

    assert QueueControl.objects.stopped(NOW).exists() is stops
    assert (state_of(row).state(NOW.timestamp()) is not Flow.FLOWING) is stops
